"""Sizes of axes as affine forms over symbols, and a solver of equalities between them."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import gcd

UNKNOWN = "@"
"""How the symbol of a place starts that an unknown function gives; such places are at least 0."""


class IllegalShape(Exception):
    """An operator does not take operands of these shapes."""


@dataclass(frozen=True, slots=True)
class Dim:
    """A whole number: a constant plus multiples of symbols.

    Attributes:
        const: the constant.
        terms: symbol and factor, sorted by symbol, no factor 0.

    Example:
        >>> n, m = symbol("n"), symbol("m")
        >>> str(n + m - n + 2), str(n.times(2) + m)
        ('m+2', 'm+2*n')
    """

    const: int
    terms: tuple[tuple[str, int], ...] = ()

    def __add__(self, other: "Dim | int") -> "Dim":
        if isinstance(other, int):
            return Dim(self.const + other, self.terms)
        if not other.terms:
            return Dim(self.const + other.const, self.terms)
        found = dict(self.terms)
        for name, factor in other.terms:
            found[name] = found.get(name, 0) + factor
        return Dim(self.const + other.const, _sorted(found))

    def __sub__(self, other: "Dim | int") -> "Dim":
        return self + (-other if isinstance(other, int) else other.times(-1))

    def times(self, factor: int) -> "Dim":
        """Return the multiple."""
        if factor == 0:
            return Dim(0)
        return Dim(self.const * factor, tuple((name, c * factor) for name, c in self.terms))

    def replace(self, values: Mapping[str, "Dim"]) -> "Dim":
        """Return the form with symbols replaced where ``values`` names them."""
        if not any(name in values for name, _ in self.terms):
            return self
        total = Dim(self.const)
        for name, factor in self.terms:
            total += values.get(name, Dim(0, ((name, 1),))).times(factor)
        return total

    @property
    def symbols(self) -> tuple[str, ...]:
        """The symbols that it depends on."""
        return tuple(name for name, _ in self.terms)

    def __str__(self) -> str:
        parts = [name if c == 1 else f"{c}*{name}" for name, c in self.terms]
        if self.const or not parts:
            parts.append(str(self.const))
        return "+".join(parts).replace("+-", "-")


def _sorted(found: Mapping[str, int]) -> tuple[tuple[str, int], ...]:
    return tuple(sorted((name, c) for name, c in found.items() if c))


def symbol(name: str) -> Dim:
    """Return a symbol as a form."""
    return Dim(0, ((name, 1),))


Shape = tuple[Dim, ...]


@dataclass
class Solver:
    """What is known of the symbols: which stand for forms of others, and how small they may be.

    Attributes:
        values: form of each symbol that is solved for.
        least: the least value of a symbol, where it is not 1.
        count: of symbols that were made.

    Example:
        >>> solver = Solver()
        >>> n, m = symbol("n"), symbol("m")
        >>> solver.equate(n + 2, m)
        >>> str(solver.find(m)), str(solver.find(n))
        ('n+2', 'n')
    """

    values: dict[str, Dim] = field(default_factory=dict)
    least: dict[str, int] = field(default_factory=dict)
    count: int = 0

    def fresh(self, least: int = 1) -> Dim:
        """Return a new symbol."""
        self.count += 1
        name = f"_{self.count}"
        if least != 1:
            self.least[name] = least
        return symbol(name)

    def find(self, dim: Dim) -> Dim:
        """Return a form in the symbols that are not solved for."""
        return dim.replace(self.values) if dim.terms else dim

    def equate(self, a: Dim, b: Dim) -> None:
        """Require two forms to be equal.

        Raises:
            IllegalShape: they cannot be, or it cannot be said how.
        """
        rest = self.find(a) - self.find(b)
        if not rest.terms:
            if rest.const:
                raise IllegalShape(f"{a} is not {b}")
            return
        if self.is_at_least(rest, 1) or self.is_at_least(rest.times(-1), 1):
            raise IllegalShape(f"{a} is never {b}")
        divisor = gcd(*(factor for _, factor in rest.terms))
        if rest.const % divisor:
            raise IllegalShape(f"{a} is never {b}")
        rest = Dim(rest.const // divisor, tuple((name, factor // divisor) for name, factor in rest.terms))
        simple = [name for name, factor in rest.terms if abs(factor) == 1]
        if not simple:
            raise IllegalShape(f"{a} = {b} has no simple answer")
        self._solve(rest, simple)

    def _solve(self, rest: Dim, simple: list[str]) -> None:
        """Solve for a symbol; if possible for one whose answer is surely large enough to be a size."""
        for name in reversed(simple):
            factor = dict(rest.terms)[name]
            answer = (rest - symbol(name).times(factor)).times(-factor)
            if self.is_at_least(answer, self._least(name)):
                break
        values = {name: answer}
        self.values = {known: form.replace(values) for known, form in self.values.items()} | values

    def raise_to(self, dim: Dim, least: int) -> None:
        """Require a form to be at least a number, where it is a symbol and a constant.

        Raises:
            IllegalShape: it is a smaller number.
        """
        found = self.find(dim)
        if self.is_at_least(found, least):
            return
        if not found.terms:
            raise IllegalShape(f"{dim} is less than {least}")
        if len(found.terms) == 1 and found.terms[0][1] == 1:
            name = found.terms[0][0]
            rise = least - found.const - self._least(name)
            self._solve_for(name, self.fresh(self._least(name)) + rise)

    def _solve_for(self, name: str, answer: Dim) -> None:
        values = {name: answer}
        self.values = {known: form.replace(values) for known, form in self.values.items()} | values

    def _least(self, name: str) -> int:
        return self.least.get(name, 0 if name.startswith(UNKNOWN) else 1)

    def is_at_least(self, dim: Dim, least: int) -> bool:
        """Return whether a form is surely at least a number."""
        total = dim.const
        for name, factor in dim.terms:
            if factor < 0:
                return False
            total += factor * self._least(name)
        return total >= least
