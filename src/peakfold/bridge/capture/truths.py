"""Truth tests that an optimizer made on its numbers: its program holds while they come out the same.

Numbers are those of the groups, and those that are read from a parameter's state: a count of steps, say.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import cast

import torch
from torch._subclasses.fake_tensor import FakeTensor

from peakfold.bridge.capture.binding import Hyperparameter
from peakfold.bridge.capture.host import OPERATORS, Comparison, HostNumber, Operand
from peakfold.bridge.codegen.operators import overload
from peakfold.ops.comparisons import COMPARISONS

Call = tuple[str, tuple[float, ...], tuple[tuple[str, float], ...]]
"""An operator on a tensor of one number: its name, the arguments after the tensor, keyword arguments."""


@dataclass(frozen=True, slots=True)
class StateNumber:
    """A number that is read from ``optimizer.state[parameter][key]``, a tensor of no dimension.

    Attributes:
        parameter, key: where the tensor is.
        start: what it is filled with before the first step.
        dtype: of the tensor.
        calls: operators that run on it before it is read.
    """

    parameter: str
    key: str
    start: float | Hyperparameter
    dtype: torch.dtype
    calls: tuple[Call, ...] = ()

    def of(self, number: float) -> float:
        """Return what is read where the tensor holds a number now.

        Example:
            >>> step = StateNumber("weight", "step", 0.0, torch.float32, (("aten.add.Tensor", (1,), ()),))
            >>> step.of(4.0)
            5.0
        """
        tensor = torch.full((), number, dtype=self.dtype)
        for name, args, kwargs in self.calls:
            tensor = overload(name)(tensor, *args, **dict(kwargs))
        return float(tensor)


@dataclass(frozen=True, slots=True)
class Place:
    """Stands for the state's number of this index, which differs from parameter to parameter."""

    index: int


Expression = float | Hyperparameter | Place | tuple[object, ...]
"""A number, where it comes from, or ``(operator, *expressions)``."""


@dataclass(frozen=True)
class Truth:
    """A comparison of numbers, made for each of several parameters.

    Attributes:
        op: of the comparison.
        left, right: its sides.
        outcome: what it must come out as.
        rows: the state's numbers of each parameter it was made for; one empty row where it reads none.
    """

    op: str
    left: Expression
    right: Expression
    outcome: bool
    rows: tuple[tuple[StateNumber, ...], ...]

    def holds(self, optimizer: torch.optim.Optimizer, parameters: Mapping[str, torch.Tensor]) -> bool:
        """Whether it comes out the same for the numbers that an optimizer holds now."""
        distinct = {tuple(_reading(optimizer, parameters, number) for number in row) for row in self.rows}
        for readings in distinct:
            numbers = [calls.of(now) for calls, now in readings]
            sides = (_evaluate(side, optimizer, numbers) for side in (self.left, self.right))
            if COMPARISONS[self.op](*sides) is not self.outcome:
                return False
        return True

    def broken(self) -> str:
        """Say that it does not hold."""
        if not any(self.rows):
            what = "weight_decay, momentum, .."
            return f"a number of the optimizer's groups ({what}) became zero, or no longer is"
        return (
            f"the optimizer's state {self.rows[0][0].key!r} has come to where the optimizer "
            "computes something else"
        )


def _reading(
    optimizer: torch.optim.Optimizer, parameters: Mapping[str, torch.Tensor], number: StateNumber
) -> tuple[StateNumber, float]:
    """Return what is in the state now, and what is done to it, whosesoever it is."""
    owner = parameters.get(number.parameter)
    held = None if owner is None else optimizer.state.get(owner, {}).get(number.key)
    now = number.start if held is None else float(held)
    if isinstance(now, Hyperparameter):
        now = number_of(now, optimizer)
    return StateNumber("", "", 0.0, number.dtype, number.calls), now


def number_of(origin: Hyperparameter, optimizer: torch.optim.Optimizer) -> float:
    """Return a number of an optimizer's groups as it is now."""
    entry = optimizer.param_groups[origin.group][origin.key]
    return float(entry if origin.item < 0 else entry[origin.item])


def _evaluate(side: Expression, optimizer: torch.optim.Optimizer, numbers: Sequence[float]) -> float:
    if isinstance(side, Place):
        return numbers[side.index]
    if isinstance(side, Hyperparameter):
        return number_of(side, optimizer)
    if isinstance(side, tuple):
        op, *parts = side
        return OPERATORS[cast(str, op)](
            *(_evaluate(cast(Expression, part), optimizer, numbers) for part in parts)
        )
    return side


def truths_of(comparisons: Iterable[Comparison]) -> tuple[Truth, ...]:
    """Return what comparisons of one capture demand; those of several parameters are one."""
    found: dict[tuple[str, Expression, Expression, bool], list[tuple[StateNumber, ...]]] = {}
    for comparison in comparisons:
        read: list[StateNumber] = []
        left, right = _expression(comparison.left, read), _expression(comparison.right, read)
        found.setdefault((comparison.op, left, right, comparison.outcome), []).append(tuple(read))
    return tuple(Truth(*test, tuple(dict.fromkeys(rows))) for test, rows in found.items())


def _expression(side: Operand, read: list[StateNumber]) -> Expression:
    if not isinstance(side, HostNumber):
        return side
    if side.op != "given":
        return (side.op, *(_expression(cast(Operand, part), read) for part in side.operands))
    origin = side.operands[0]
    if isinstance(origin, StateNumber):
        if origin not in read:
            read.append(origin)
        return Place(read.index(origin))
    assert isinstance(origin, Hyperparameter)
    return origin


def readable(held: object) -> bool:
    """Whether an entry of an optimizer's state is one number that can be read now."""
    if not isinstance(held, torch.Tensor) or isinstance(held, FakeTensor):
        return False
    return held.dim() == 0 and held.device.type == "cpu" and held.dtype.is_floating_point


def broken_truth(
    truths: Iterable[Truth], optimizer: torch.optim.Optimizer, parameters: Mapping[str, torch.Tensor]
) -> Iterator[str]:
    """Yield what does not hold."""
    return (truth.broken() for truth in truths if not truth.holds(optimizer, parameters))
