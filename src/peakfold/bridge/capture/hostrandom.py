"""Random numbers that a program takes from Python or numpy, which a graph cannot draw again."""

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy

from peakfold.errors import CaptureError

DRAWS: frozenset[object] = frozenset(
    getattr(super(random.Random, random._inst), name)
    for name in ("random", "getrandbits", "seed", "setstate")
)
"""Functions by which everything else in ``random`` comes to the state that its functions share."""


@contextmanager
def no_draws_of_python(drawn_at: Callable[[], str]) -> Iterator[None]:
    """Refuse what draws inside from ``random`` or ``numpy.random``; both streams are as before after it.

    Args:
        drawn_at: gives file, line and text of the model's code that came to Python's stream; empty for none.

    Raises:
        CaptureError: a number was drawn.

    Example:
        >>> with no_draws_of_python(str):
        ...     pass
    """
    before, array_before = random.getstate(), numpy.random.get_state(legacy=False)
    yield
    now, array_now = random.getstate(), numpy.random.get_state(legacy=False)
    drawn = "random" if now != before else "numpy.random" if _differ(array_before, array_now) else None
    if drawn is None:
        return
    random.setstate(before)
    numpy.random.set_state(array_before)
    raise CaptureError(
        stage="capture",
        what=f"the forward pass draws from Python's {drawn}, each time another number",
        where=drawn_at() if drawn == "random" else "",
        expected="random numbers of torch only, as values of the graph",
        hint="draw outside of the model, and pass the number in the batch",
    )


def _differ(before: object, now: object) -> bool:
    return repr(before) != repr(now) or _position(before) != _position(now)


def _position(state: object) -> object:
    assert isinstance(state, dict)
    return state["state"].get("pos")
