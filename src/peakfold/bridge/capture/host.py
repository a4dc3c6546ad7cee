"""Host numbers that may change between steps, recorded while Python computes with them.

``torch.optim`` computes ``-lr``, ``1 - beta1**step`` and the like in Python float64 and hands plain
floats to operators. A `HostNumber` is a float that remembers the expression that made it, in the order
in which Python evaluated it. Its own value is a *tag*: a number with a random mantissa, so that a
plain float that reaches an operator is recognised by its bits. Truth tests are answered from the
real value and kept as `Comparison`, to be guarded.
"""

import builtins
import math
import operator
import random
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import reduce
from typing import Any, Union
from unittest.mock import patch

import torch
from torch.utils._python_dispatch import _disable_current_modes

from peakfold.errors import CaptureError
from peakfold.ops.comparisons import COMPARISONS

TAGGED_ELEMENTS = 64
"""Constants of more elements are no numbers of an optimizer."""

Operand = Union["HostNumber", float, int]

OPERATORS: Mapping[str, Callable[..., float]] = {
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "truediv": operator.truediv,
    "pow": operator.pow,
    "neg": operator.neg,
    "abs": operator.abs,
    "max": max,
    "min": min,
}
"""What the operators ``host.<name>`` compute."""


_CHOICES = ("abs", "max", "min")
"""Operators that may give an operand back, whose tag is that of another number."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """A truth test that Python made: it must come out the same for the captured program to hold."""

    op: str
    left: Operand
    right: Operand
    outcome: bool


class HostNumber(float):
    """A float that remembers how Python computed it."""

    __slots__ = ("actual", "book", "op", "operands")

    book: "HostBook"
    op: str
    operands: tuple[object, ...]
    actual: float | None

    def __deepcopy__(self, memo: object) -> "HostNumber":
        return self

    def __bool__(self) -> bool:
        return self.book.compare("ne", self, 0)

    def __hash__(self) -> int:
        return float.__hash__(self)


def _binary(op: str, reflected: bool) -> Callable[[HostNumber, object], object]:
    def method(self: HostNumber, other: object) -> object:
        if not isinstance(other, float | int):
            return NotImplemented
        pair = (other, self) if reflected else (self, other)
        return self.book.compute(op, *pair)

    return method


def _unary(op: str) -> Callable[[HostNumber], HostNumber]:
    return lambda self: self.book.compute(op, self)


def _comparison(op: str) -> Callable[[HostNumber, object], object]:
    def method(self: HostNumber, other: object) -> object:
        return self.book.compare(op, self, other) if isinstance(other, float | int) else NotImplemented

    return method


for _name in ("add", "sub", "mul", "truediv", "pow"):
    setattr(HostNumber, f"__{_name}__", _binary(_name, reflected=False))
    setattr(HostNumber, f"__r{_name}__", _binary(_name, reflected=True))
for _name in ("neg", "abs"):
    setattr(HostNumber, f"__{_name}__", _unary(_name))
for _name in COMPARISONS:
    setattr(HostNumber, f"__{_name}__", _comparison(_name))


@dataclass
class HostBook:
    """Every host number of one capture, found by the bits of its tag."""

    numbers: dict[float, HostNumber] = field(default_factory=dict)
    comparisons: dict[tuple[object, ...], Comparison] = field(default_factory=dict)
    source: random.Random = field(default_factory=lambda: random.Random(20))

    def given(self, origin: object, real: float | None) -> HostNumber:
        """Return a new number without operands.

        Args:
            origin: what it is; becomes its only operand.
            real: its value now, None where nobody knows it during capture.
        """
        return self._register("given", (origin,), self._fresh(), real)

    def _fresh(self) -> float:
        return 0.25 + self.source.random() / 2

    def find(self, number: float) -> HostNumber | None:
        """Return the recorded number with these bits."""
        return number if isinstance(number, HostNumber) else self.numbers.get(number)

    def holds_tag(self, tensor: torch.Tensor) -> bool:
        """Whether a small tensor was filled from a recorded number, whose value it then is not."""
        if not self.numbers or not tensor.is_floating_point() or tensor.numel() > TAGGED_ELEMENTS:
            return False
        with _disable_current_modes():
            tags = torch.tensor(list(self.numbers), dtype=torch.float64).to(tensor.dtype)
            return bool(torch.isin(tensor.detach().cpu().flatten(), tags).any())

    def compute(self, op: str, *operands: float) -> HostNumber:
        """Return ``op`` of numbers, recorded."""
        known = tuple(self._known(operand) for operand in operands)
        reals = [operand.actual if isinstance(operand, HostNumber) else operand for operand in known]
        missing = any(real is None for real in reals)
        real = None if missing else _quiet(OPERATORS[op], *reals)
        tag = None if op in _CHOICES else _quiet(OPERATORS[op], *map(_plain, known))
        return self._register(op, known, self._fresh() if tag is None else tag, real)

    def compare(self, op: str, left: float, right: float) -> bool:
        """Return the truth of a comparison on the real values, and keep it to be guarded."""
        sides = self._known(left), self._known(right)
        first, second = (side.actual if isinstance(side, HostNumber) else side for side in sides)
        if first is None or second is None:
            raise CaptureError(
                stage="capture",
                what="the optimizer decides control flow by a number that is read from a tensor",
                expected="decisions by numbers of param_groups only",
                hint="pass optimizer=None: the step leaves gradients, and the optimizer runs by itself",
            )
        outcome = COMPARISONS[op](first, second)
        key = (op, *map(_plain, sides))
        self.comparisons.setdefault(key, Comparison(op, sides[0], sides[1], outcome))
        return outcome

    def _known(self, operand: float) -> Operand:
        found = self.find(operand) if isinstance(operand, float) else None
        return operand if found is None else found

    def _register(self, op: str, operands: tuple[object, ...], tag: float, real: float | None) -> HostNumber:
        known = self.numbers.get(tag)
        if known is not None:
            return known
        number = HostNumber(tag)
        number.book, number.op, number.operands, number.actual = self, op, operands, real
        self.numbers[tag] = number
        return number


def _plain(number: Operand) -> float:
    return float(number) if isinstance(number, HostNumber) else number


def _quiet(compute: Callable[..., float], *reals: float | None) -> float | None:
    try:
        result = compute(*reals)
    except (ZeroDivisionError, OverflowError):
        return None
    return None if isinstance(result, complex) else result


def unrecorded(number: float) -> bool:
    """Whether a plain float looks computed rather than written by a person: many digits.

    Example:
        >>> unrecorded(0.9), unrecorded(1e-08), unrecorded(0.1 / 0.3)
        (False, False, True)
        >>> unrecorded(2.0**-23)  # of a type's precision, say: no product of tags is a power of two
        False
    """
    if abs(math.frexp(number)[0]) == 0.5:
        return False
    digits = repr(abs(number)).split("e")[0].replace(".", "").strip("0")
    return len(digits) > 14


@contextmanager
def extremes_recorded() -> Iterator[None]:
    """Have Python's ``max`` and ``min`` of recorded numbers recorded: which is taken, each step decides."""

    def recorded(plain: Callable[..., Any], op: str) -> Callable[..., Any]:
        def extreme(*args: Any, **kwargs: Any) -> Any:
            number = next((arg for arg in args if isinstance(arg, HostNumber)), None)
            if len(args) < 2 or kwargs or number is None:
                return plain(*args, **kwargs)
            return reduce(lambda left, right: number.book.compute(op, left, right), args)

        return extreme

    with ExitStack() as stack:
        for op in ("max", "min"):
            stack.enter_context(patch.object(builtins, op, recorded(getattr(builtins, op), op)))
        yield


def parts(number: HostNumber) -> Iterator[HostNumber]:
    """Yield the recorded operands of a number."""
    yield from (part for part in number.operands if isinstance(part, HostNumber))
