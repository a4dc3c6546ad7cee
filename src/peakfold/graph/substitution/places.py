"""Bound places, and how monomials are made simple by what is known of places and sizes."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from fractions import Fraction

from peakfold.graph.substitution.dims import Dim, Solver, symbol
from peakfold.graph.substitution.polynomials import (
    Factor,
    Function,
    Guards,
    Mono,
    Poly,
    Read,
    moved_inside,
    multiplied,
    reads,
    size_poly,
)


@dataclass
class Places:
    """Names of bound places, and of places that are read from an index or follow from groups.

    Attributes:
        solver: what is known of sizes.
        facts: forms known to be at least 0: places of the output are inside of it.
    """

    solver: Solver
    facts: Guards = frozenset()
    count: int = 0

    def fresh(self) -> str:
        """Return a new name of a bound place."""
        self.count += 1
        name = f"k{self.count}"
        self.solver.least[name] = -(10**9)
        return name

    def renamed(self, mono: Mono) -> Mono:
        """Return a monomial whose bound places have new names."""
        names = {name: self.fresh() for name in mono.bound}
        moved = moved_inside(mono, {old: symbol(new) for old, new in names.items()})
        return replace(moved, bound=tuple(names.values()))

    def times(self, a: Poly, b: Poly) -> Poly:
        """Return the product."""
        products = (
            (multiplied(x, self.renamed(y) if y.bound else y), c * d)
            for x, c in a.monos.items()
            for y, d in b.monos.items()
        )
        return self.simple(Poly.total(products))

    def bind(self, mono: Mono, name: str, value: Dim) -> Mono:
        """Return a monomial with a bound place set."""
        kept = tuple(other for other in mono.bound if other != name)
        return moved_inside(replace(mono, bound=kept), {name: value})

    def is_never(self, guard: Dim, others: Iterable[Dim]) -> bool:
        """Return whether a guard cannot hold, alone or with another."""
        negative = guard.times(-1)
        least = self.solver.is_at_least
        return least(negative, 1) or any(least(negative - other, 1) for other in others)

    def is_implied(self, guard: Dim, others: Iterable[Dim]) -> bool:
        """Return whether a guard holds, always or where another does."""
        least = self.solver.is_at_least
        return least(guard, 0) or any(least(guard - other, 0) for other in others)

    def simple(self, poly: Poly, facts: Guards = frozenset()) -> Poly:
        """Return a polynomial without guards that others imply and without what is always 0."""
        found: list[tuple[Mono, Fraction]] = []
        for mono, factor in poly.monos.items():
            for simpler, c in self._simple_mono(mono, facts | self.facts):
                found.append((simpler, c * factor))
        return Poly.total(found)

    def _simple_mono(self, mono: Mono, facts: Guards) -> Iterator[tuple[Mono, Fraction]]:
        mono = self._settled(mono)
        known = facts | mono.inner_support
        everything = known | mono.guards
        if any(self.is_never(g, everything) for g in mono.guards | mono.inner_support):
            return
        kept = set(mono.guards)
        for guard in sorted(mono.guards, key=str):
            if self.is_implied(guard, known | (kept - {guard})):
                kept.discard(guard)
        mono = replace(mono, guards=frozenset(kept))
        yield from self._counted(mono)

    def _settled(self, mono: Mono) -> Mono:
        """Set bound places that guards or axes of size 1 leave no choice."""
        while True:
            for name, value in self._settable(mono):
                mono = self.bind(mono, name, value)
                break
            else:
                return mono

    def _settable(self, mono: Mono) -> Iterator[tuple[str, Dim]]:
        support = mono.inner_support | mono.guards
        for guard in sorted(support, key=str):
            if guard.times(-1) not in support:
                continue
            for name, factor in guard.terms:
                if name in mono.bound and abs(factor) == 1:
                    yield name, (guard - symbol(name).times(factor)).times(-factor)

    def _counted(self, mono: Mono) -> Iterator[tuple[Mono, Fraction]]:
        """Replace a sum over a place that nothing reads by the number of terms."""
        read = _symbols(mono)
        for name in mono.bound:
            guards = [g for g in mono.guards if name in g.symbols]
            if self._inside(name, read) or len(guards) != 2:
                continue
            factors = sorted(dict(g.terms)[name] for g in guards)
            if factors == [-1, 1]:
                rest = replace(
                    mono, bound=tuple(b for b in mono.bound if b != name), guards=mono.guards - set(guards)
                )
                for size, c in size_poly(guards[0] + guards[1] + 1).monos.items():
                    for simpler, d in self._simple_mono(multiplied(rest, size), frozenset()):
                        yield simpler, c * d
                return
        yield mono, Fraction(1)

    def _inside(self, name: str, read: set[str]) -> bool:
        if name in read:
            return True
        return any(reads(place, name) for place in read)


def _symbols(mono: Mono) -> set[str]:
    found: set[str] = set()
    stack: list[Factor] = [factor for factor, _ in mono.factors]
    while stack:
        factor = stack.pop()
        if isinstance(factor, Read):
            found.update(name for place in factor.index for name in place.symbols)
        elif isinstance(factor, Function):
            for element in factor.elements:
                found.update(name for guard in element.guards for name in guard.symbols)
                for inner in element.of.monos:
                    found.update(name for guard in inner.guards for name in guard.symbols)
                    stack.extend(f for f, _ in inner.factors)
    return found
