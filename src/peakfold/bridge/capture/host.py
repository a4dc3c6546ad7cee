"""Host numbers that may change between steps, recorded while Python computes with them.

``torch.optim`` computes ``-lr``, ``1 - beta1**step`` and the like in Python float64 and hands plain
floats to operators. A `HostNumber` is a float that remembers the expression that made it, in the order
in which Python evaluated it. Its own value is a *tag*: a number with a random mantissa, so that a
plain float that reaches an operator is recognised by its bits. Truth tests are answered from the
real value and kept as `Comparison`, to be guarded.
"""

import operator
import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Union

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
}
"""What the operators ``host.<name>`` compute."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """A truth test that Python made: it must come out the same for the captured program to hold."""

    op: str
    left: Operand
    right: Operand
    outcome: bool

    def holds(self, value: Callable[["HostNumber"], float]) -> bool:
        """Whether it comes out the same, given the value of each number of the user's.

        Args:
            value: maps a HostNumber without operands to its value now.
        """
        left, right = (evaluate(side, value) for side in (self.left, self.right))
        return COMPARISONS[self.op](left, right) is self.outcome


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
        return self._register("given", (origin,), 0.25 + self.source.random() / 2, real)

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
        return self._register(op, known, OPERATORS[op](*map(_plain, known)), real)

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
        return compute(*reals)
    except (ZeroDivisionError, OverflowError):
        return None


def evaluate(number: Operand, value: Callable[[HostNumber], float]) -> float:
    """Return a recorded number's value, given those of the numbers that it is made of."""
    if not isinstance(number, HostNumber):
        return number
    if number.op == "given":
        return value(number)
    return OPERATORS[number.op](*(evaluate(part, value) for part in number.operands))  # type: ignore[arg-type]


def unrecorded(number: float) -> bool:
    """Whether a plain float looks computed rather than written by a person: many digits.

    Example:
        >>> unrecorded(0.9), unrecorded(1e-08), unrecorded(0.1 / 0.3)
        (False, False, True)
    """
    digits = repr(abs(number)).split("e")[0].replace(".", "").strip("0")
    return len(digits) > 14


def parts(number: HostNumber) -> Iterator[HostNumber]:
    """Yield the recorded operands of a number."""
    yield from (part for part in number.operands if isinstance(part, HostNumber))
