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

from peakfold.graph.substitution.dims import UNKNOWN, Dim, Shape, symbol

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


def opaque(kind: str, args: tuple[Dim, ...]) -> Dim:
    """Return the place that an unknown function of places gives."""
    name = f"{UNKNOWN}{kind}({';'.join(map(str, args))})"
    _OPAQUES[name] = (kind, args)  # a memo: the name says it all
    return symbol(name)


def reads(place: str, name: str) -> bool:
    """Return whether a place is an unknown function of one that has this name."""
    return place in _OPAQUES and any(name in arg.symbols for arg in _OPAQUES[place][1])


def moved(dim: Dim, values: Mapping[str, Dim]) -> Dim:
    """Return a form with symbols replaced, inside of unknown functions too."""
    inner = {
        name: opaque(kind, tuple(moved(arg, values) for arg in args))
        for name in dim.symbols
        if name in _OPAQUES
        for kind, args in [_OPAQUES[name]]
    }
    return dim.replace({**values, **inner})


def moved_guards(guards: Guards, values: Mapping[str, Dim]) -> Guards:
    """Return guards with symbols replaced."""
    return frozenset(moved(guard, values) for guard in guards)


def _moved_factor(factor: Factor, values: Mapping[str, Dim]) -> Factor:
    if isinstance(factor, Read):
        return replace(factor, index=tuple(moved(place, values) for place in factor.index))
    if isinstance(factor, Known):
        return factor
    elements = tuple(
        Element(e.bound, moved_guards(e.guards, values), _moved_poly(e.of, values)) for e in factor.elements
    )
    return Function(factor.name, elements)


def _moved_mono(mono: Mono, values: Mapping[str, Dim]) -> Mono:
    values = {name: dim for name, dim in values.items() if name not in mono.bound}
    return moved_inside(mono, values) if values else mono


def moved_inside(mono: Mono, values: Mapping[str, Dim]) -> Mono:
    """Return a monomial with symbols replaced, bound ones too; they stay bound by their old names."""
    factors = ((_moved_factor(f, values), e) for f, e in mono.factors)
    found = Mono((), mono.bound, moved_guards(mono.guards, values))
    for factor, exponent in factors:
        found = multiplied(found, Mono(((factor, exponent),)))
    return found


def _moved_poly(poly: Poly, values: Mapping[str, Dim]) -> Poly:
    return Poly.total((_moved_mono(mono, values), c) for mono, c in poly.monos.items())


def _mono_text(mono: Mono) -> str:
    factors = sorted(f"{f.key}^{e}" if e != 1 else f.key for f, e in mono.factors)
    guards = sorted(f"({guard})" for guard in mono.guards)
    return f"S{','.join(sorted(mono.bound))} " * bool(mono.bound) + "*".join(factors + guards)


def _element_key(element: Element) -> str:
    if not element.bound:
        return " ".join(sorted(f"({g})" for g in element.guards)) + element.of.key
    as_mono = Mono(((Function("at", (Element((), frozenset(), element.of),)), Fraction(1)),), element.bound)
    return replace(as_mono, guards=element.guards).key


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
        rest = moved(place - symbol(old).times(factor), names | values)
        values[old] = (symbol(name) - rest).times(factor)
    found = moved_inside(mono, values)
    return replace(found, bound=tuple(new))
