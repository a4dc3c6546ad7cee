"""Functions as they are now: what they close over may be bound anew before they run again."""

from collections.abc import Callable
from functools import partial
from types import CellType, FunctionType
from typing import Any

Function = Callable[..., Any]


def as_now(function: Function) -> Function:
    """Return a function that goes on reading what another closes over at present.

    Functions that it closes over are taken likewise. The other one is left as it is.

    Example:
        >>> def pairs():
        ...     for factor in (2, 3):
        ...         times = lambda x: x * factor
        ...         yield times, as_now(times)
        >>> pairs = list(pairs())
        >>> [late(10) for late, _ in pairs], [now(10) for _, now in pairs]
        ([30, 30], [20, 30])
    """
    return _taken(function, {})


def _taken(function: Function, known: dict[int, Function]) -> Function:
    if isinstance(function, partial):
        return partial(_taken(function.func, known), *function.args, **function.keywords)
    if not isinstance(function, FunctionType) or function.__closure__ is None:
        return function
    if id(function) in known:
        return known[id(function)]
    cells = tuple(CellType() for _ in function.__closure__)
    made = FunctionType(
        function.__code__, function.__globals__, function.__name__, function.__defaults__, cells
    )
    made.__kwdefaults__ = function.__kwdefaults__
    known[id(function)] = made
    for cell, old in zip(cells, function.__closure__, strict=True):
        if _is_bound(old):
            held = old.cell_contents
            cell.cell_contents = _taken(held, known) if callable(held) else held
    return made


def _is_bound(cell: CellType) -> bool:
    try:
        return cell.cell_contents is not cell
    except ValueError:
        return False
