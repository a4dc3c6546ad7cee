"""Sums of products of tensor elements at symbolic places, in a normal form.

A polynomial is a sum of monomials; a monomial is a product of factors, summed over whole numbers that are
bound in it, where its guards hold. Factors that read an input are 0 outside of it, so that joining and
padding need no cases: ``concat(a, b)[k]`` is ``a[k] + b[k - n]``.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cached_property
from itertools import islice, permutations
from itertools import product as tuples

from peakfold.graph.substitution.dims import Dim, Shape, Solver, symbol

Guards = frozenset[Dim]
"""Forms that are at least 0."""

_MOST_NAMINGS = 3000


@dataclass(frozen=True)
class Read:
    """An element of an input; 0 outside of it."""

    name: str
    index: tuple[Dim, ...]
    shape: Shape

    @cached_property
    def support(self) -> Guards:
        """Guards without which it is 0."""
        lows = frozenset(self.index)
        return lows | {size - 1 - place for place, size in zip(self.index, self.shape, strict=True)}

    @cached_property
    def key(self) -> str:
        """Text that names it."""
        return f"{self.name}[{','.join(map(str, self.index))}]"


@dataclass(frozen=True)
class Known:
    """A size or a symbolic constant."""

    name: str
    positive: bool
    support: Guards = frozenset()

    @property
    def key(self) -> str:
        """Text that names it."""
        return self.name


@dataclass(frozen=True)
class Element:
    """What a maximum is taken of: a polynomial at all bound places where the guards hold."""

    bound: tuple[str, ...]
    guards: Guards
    of: "Poly"


@dataclass(frozen=True)
class Function:
    """A function of polynomials: ``exp``, ``inv``, ``max``, or one of which nothing is known."""

    name: str
    elements: tuple[Element, ...]

    @cached_property
    def support(self) -> Guards:
        """Guards without which it is 0."""
        if self.name not in {"tanh"} and not self._keeps_zero:
            return frozenset()
        supports = [mono.support for element in self.elements for mono in element.of.monos]
        return frozenset.intersection(*supports) if supports else frozenset()

    @property
    def _keeps_zero(self) -> bool:
        return self.name == "max" and not any(element.bound for element in self.elements)

    @cached_property
    def key(self) -> str:
        """Text that names it."""
        parts = sorted(_element_key(element) for element in self.elements)
        return f"{self.name}<{' | '.join(parts)}>"


Factor = Read | Known | Function


@dataclass(frozen=True)
class Mono:
    """A product, summed over bound whole numbers where guards hold."""

    factors: tuple[tuple[Factor, Fraction], ...] = ()
    bound: tuple[str, ...] = ()
    guards: Guards = frozenset()

    @cached_property
    def support(self) -> Guards:
        """Guards on places outside without which it is 0."""
        found = set(self.guards)
        for factor, exponent in self.factors:
            if exponent > 0:
                found |= factor.support
        return frozenset(guard for guard in found if not set(guard.symbols) & set(self.bound))

    @cached_property
    def inner_support(self) -> Guards:
        """Guards without which its product is 0, those on bound places too."""
        found: set[Dim] = set()
        for factor, exponent in self.factors:
            if exponent > 0:
                found |= factor.support
        return frozenset(found)

    @cached_property
    def key(self) -> str:
        """Text that is the same for the same monomial, however its bound places are named."""
        if not self.bound:
            return _mono_text(self)
        return min(map(_mono_text, islice(_namings(self), _MOST_NAMINGS)))


@dataclass(frozen=True)
class Poly:
    """A sum of monomials."""

    monos: Mapping[Mono, Fraction] = field(default_factory=dict)

    @cached_property
    def key(self) -> str:
        """Text that is the same for the same polynomial."""
        return " + ".join(f"{factor}*{key}" for key, factor in sorted(self.keyed.items()))

    @cached_property
    def keyed(self) -> dict[str, Fraction]:
        """Factors by the keys of monomials."""
        found: dict[str, Fraction] = {}
        for mono, factor in self.monos.items():
            found[mono.key] = found.get(mono.key, Fraction(0)) + factor
        return {key: factor for key, factor in found.items() if factor}

    def __hash__(self) -> int:
        return hash(self.key)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Poly) and self.key == other.key

    def __add__(self, other: "Poly") -> "Poly":
        return Poly.total([*self.monos.items(), *other.monos.items()])

    def times(self, factor: Fraction) -> "Poly":
        """Return the multiple."""
        return Poly({mono: c * factor for mono, c in self.monos.items()}) if factor else Poly()

    @staticmethod
    def total(terms: Iterable[tuple[Mono, Fraction]]) -> "Poly":
        """Return the sum of monomials with factors, equal ones put together."""
        kept: dict[str, Mono] = {}
        sums: dict[str, Fraction] = {}
        for mono, factor in terms:
            kept.setdefault(mono.key, mono)
            sums[mono.key] = sums.get(mono.key, Fraction(0)) + factor
        return Poly({kept[key]: c for key, c in sums.items() if c})

    def guarded(self, guards: Guards) -> "Poly":
        """Return what it is where guards hold, 0 elsewhere."""
        return Poly({replace(m, guards=m.guards | guards): c for m, c in self.monos.items()})

    def summed(self, *bound: str) -> "Poly":
        """Return the sum over all whole numbers in the places of symbols."""
        return Poly({replace(m, bound=(*m.bound, *bound)): c for m, c in self.monos.items()})

    def single(self) -> tuple[Mono, Fraction] | None:
        """Return its only monomial and factor, if it has only one."""
        return next(iter(self.monos.items())) if len(self.monos) == 1 else None


def of_factor(factor: Factor, exponent: int = 1) -> Poly:
    """Return a polynomial of one factor."""
    return Poly({Mono(((factor, Fraction(exponent)),)): Fraction(1)})


def number(value: Fraction | int) -> Poly:
    """Return a constant polynomial."""
    return Poly({Mono(): Fraction(value)}) if value else Poly()


def size_poly(dim: Dim) -> Poly:
    """Return a size as a polynomial."""
    total = number(dim.const)
    for name, factor in dim.terms:
        total += of_factor(Known(f"|{name}|", True)).times(Fraction(factor))
    return total


def multiplied(a: Mono, b: Mono) -> Mono:
    """Return the product of monomials whose bound places have different names."""
    powers: dict[str, tuple[Factor, Fraction]] = {}
    for factor, exponent in (*a.factors, *b.factors):
        _, before = powers.get(factor.key, (factor, Fraction(0)))
        powers[factor.key] = (factor, before + exponent)
    factors = tuple(pair for _, pair in sorted(powers.items()) if pair[1])
    return Mono(factors, a.bound + b.bound, a.guards | b.guards)


_OPAQUES: dict[str, tuple[str, tuple[Dim, ...]]] = {}


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

    def opaque(self, kind: str, args: tuple[Dim, ...]) -> Dim:
        """Return the place that an unknown function of places gives."""
        name = f"@{kind}({';'.join(map(str, args))})"
        _OPAQUES[name] = (kind, args)  # a memo: the name says it all
        self.solver.least[name] = 0
        return symbol(name)

    def moved(self, dim: Dim, values: Mapping[str, Dim]) -> Dim:
        """Return a form with symbols replaced, inside of opaque places too."""
        inner = {
            name: self.opaque(kind, tuple(self.moved(arg, values) for arg in args))
            for name in dim.symbols
            if name in _OPAQUES
            for kind, args in [_OPAQUES[name]]
        }
        return dim.replace({**values, **inner})

    def moved_guards(self, guards: Guards, values: Mapping[str, Dim]) -> Guards:
        """Return guards with symbols replaced."""
        return frozenset(self.moved(guard, values) for guard in guards)

    def moved_factor(self, factor: Factor, values: Mapping[str, Dim]) -> Factor:
        """Return a factor with symbols replaced."""
        if isinstance(factor, Read):
            return replace(factor, index=tuple(self.moved(place, values) for place in factor.index))
        if isinstance(factor, Known):
            return factor
        elements = tuple(
            Element(e.bound, self.moved_guards(e.guards, values), self.moved_poly(e.of, values))
            for e in factor.elements
        )
        return Function(factor.name, elements)

    def moved_mono(self, mono: Mono, values: Mapping[str, Dim]) -> Mono:
        """Return a monomial with free symbols replaced."""
        values = {name: dim for name, dim in values.items() if name not in mono.bound}
        if not values:
            return mono
        return self._moved_inside(mono, values)

    def _moved_inside(self, mono: Mono, values: Mapping[str, Dim]) -> Mono:
        factors = ((self.moved_factor(f, values), e) for f, e in mono.factors)
        moved = Mono((), mono.bound, self.moved_guards(mono.guards, values))
        for factor, exponent in factors:
            moved = multiplied(moved, Mono(((factor, exponent),)))
        return moved

    def moved_poly(self, poly: Poly, values: Mapping[str, Dim]) -> Poly:
        """Return a polynomial with free symbols replaced."""
        return Poly.total((self.moved_mono(mono, values), c) for mono, c in poly.monos.items())

    def renamed(self, mono: Mono) -> Mono:
        """Return a monomial whose bound places have new names."""
        names = {name: self.fresh() for name in mono.bound}
        moved = self._moved_inside(mono, {old: symbol(new) for old, new in names.items()})
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
        return self._moved_inside(replace(mono, bound=kept), {name: value})

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
        opaque = (place for place in read if place in _OPAQUES)
        return any(name in arg.symbols for place in opaque for arg in _OPAQUES[place][1])


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


def _mono_text(mono: Mono) -> str:
    factors = sorted(f"{f.key}^{e}" if e != 1 else f.key for f, e in mono.factors)
    guards = sorted(f"({guard})" for guard in mono.guards)
    return f"S{','.join(sorted(mono.bound))} " * bool(mono.bound) + "*".join(factors + guards)


def _element_key(element: Element) -> str:
    if not element.bound:
        return " ".join(sorted(f"({g})" for g in element.guards)) + element.of.key
    as_mono = Mono(((Function("at", (Element((), frozenset(), element.of),)), Fraction(1)),), element.bound)
    return replace(as_mono, guards=element.guards).key


_PLACES = Places(Solver())


def _namings(mono: Mono) -> Iterator[Mono]:
    """Yield a monomial with bound places named b0, b1 .. in every order, counted from where they are read."""
    alike: dict[tuple[tuple[str, int, int], ...], list[str]] = {}
    for name in mono.bound:
        alike.setdefault(_use(mono, name), []).append(name)
    groups = [permutations(alike[use]) for use in sorted(alike)]
    for chosen_orders in tuples(*groups):
        order = tuple(name for group in chosen_orders for name in group)
        anchors = [_anchors(mono, name) for name in order]
        for chosen in tuples(*anchors):
            yield _anchored(mono, order, chosen)


def _use(mono: Mono, name: str) -> tuple[tuple[str, int, int], ...]:
    """Return in which axes of which inputs a bound place is read, and how often."""
    found = (
        (read.name, axis, factor)
        for read in _reads(mono)
        for axis, place in enumerate(read.index)
        for symbol_name, factor in place.terms
        if symbol_name == name
    )
    return tuple(sorted(found))


def _anchors(mono: Mono, name: str) -> list[tuple[Dim, int]]:
    """Return the indices in which a bound place stands alone, of those that are read from the first input."""
    found: dict[tuple[str, int], set[tuple[Dim, int]]] = {}
    for read in _reads(mono):
        for axis, place in enumerate(read.index):
            factor = dict(place.terms).get(name)
            if factor in (1, -1):
                found.setdefault((read.name, axis), set()).add((place, factor))
    if not found:
        return [(symbol(name), 1)]
    return sorted(found[min(found)], key=str)


def _reads(mono: Mono) -> Iterator[Read]:
    stack: list[Factor] = [factor for factor, _ in mono.factors]
    while stack:
        factor = stack.pop()
        if isinstance(factor, Read):
            yield factor
        elif isinstance(factor, Function):
            stack.extend(
                f for element in factor.elements for inner in element.of.monos for f, _ in inner.factors
            )


def _anchored(mono: Mono, order: tuple[str, ...], chosen: tuple[tuple[Dim, int], ...]) -> Mono:
    new = [f"b{number}" for number in range(len(order))]
    names = {old: symbol(name) for old, name in zip(order, new, strict=True)}
    values: dict[str, Dim] = {}
    for old, name, (place, factor) in zip(order, new, chosen, strict=True):
        rest = _PLACES.moved(place - symbol(old).times(factor), names | values)
        values[old] = (symbol(name) - rest).times(factor)
    moved = _PLACES._moved_inside(mono, values)
    return replace(moved, bound=tuple(new))
