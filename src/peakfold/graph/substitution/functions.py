"""Functions of polynomials that are not linear, in normal form: exponentials, inverses, maxima."""

from dataclasses import replace
from fractions import Fraction
from math import gcd

from peakfold.graph.substitution.places import Places
from peakfold.graph.substitution.polynomials import (
    Element,
    Function,
    Known,
    Mono,
    Poly,
    multiplied,
    number,
    of_factor,
)


def alone(poly: Poly) -> Element:
    """Return a polynomial as an element of a maximum, or as the operand of a function."""
    return Element((), frozenset(), poly)


def exponential(places: Places, poly: Poly) -> Poly:
    """Return exp of a polynomial: a product over its monomials."""
    total = number(1)
    for mono, factor in poly.monos.items():
        base = Function("exp", (Element((), frozenset(), Poly({mono: Fraction(1)})),))
        total = places.times(total, Poly({Mono(((base, factor),)): Fraction(1)}))
    return total


def inverse(poly: Poly) -> Poly:
    """Return 1 over a polynomial: factor by factor where it is a monomial, else what all share first."""
    single = poly.single()
    if single is not None and not single[0].bound and not single[0].guards:
        mono, factor = single
        return Poly({Mono(tuple((f, -e) for f, e in mono.factors)): 1 / factor})
    if not poly.monos:
        return of_factor(Function("inv", (alone(poly),)))
    shared, rest, content = _shared(poly, positive_only=False)
    base = Function("inv", (alone(rest.times(1 / content)),))
    outer = Mono(tuple((f, -e) for f, e in shared.factors))
    return Poly({multiplied(outer, Mono(((base, Fraction(1)),))): 1 / content})


def _shared(poly: Poly, positive_only: bool) -> tuple[Mono, Poly, Fraction]:
    """Return the factors that all monomials share, the rest, and the factor of its first monomial."""
    monos = list(poly.monos)
    common = {f.key: (f, e) for f, e in monos[0].factors if _is_free(f.key, monos[0].bound)}
    for mono in monos[1:]:
        powers = {f.key: e for f, e in mono.factors if _is_free(f.key, mono.bound)}
        common = {key: (f, min(e, powers[key])) for key, (f, e) in common.items() if key in powers}
    kept = [(f, e) for f, e in common.values() if not positive_only or _is_positive(f)]
    shared = Mono(tuple(sorted(kept, key=lambda pair: pair[0].key)))
    divisor = Mono(tuple((f, -e) for f, e in shared.factors))
    rest = Poly({multiplied(mono, divisor): c for mono, c in poly.monos.items()})
    first = min(rest.keyed)
    return shared, rest, rest.keyed[first]


def _is_free(key: str, bound: tuple[str, ...]) -> bool:
    return not any(name in key for name in bound)


def _is_positive(factor: object) -> bool:
    if isinstance(factor, Known):
        return factor.positive
    return isinstance(factor, Function) and factor.name == "exp"


def _is_nonnegative(poly: Poly) -> bool:
    return all(c > 0 and all(_nonnegative(f, e) for f, e in m.factors) for m, c in poly.monos.items())


def _nonnegative(factor: object, exponent: Fraction) -> bool:
    if _is_positive(factor) or exponent % 2 == 0:
        return True
    if not isinstance(factor, Function):
        return False
    if factor.name == "inv":
        return _is_nonnegative(factor.elements[0].of)
    return factor.name == "max" and any(not e.bound and not e.of.monos for e in factor.elements)


def maximum(elements: list[Element]) -> Poly:
    """Return the maximum of elements: flat, without what all share, without what another exceeds."""
    flat = _flat(elements)
    unique = list({Function("max", (e,)).key: e for e in flat}.values())
    kept = [e for e in unique if not any(_exceeds(other, e) for other in unique if other is not e)]
    if len(kept) == 1 and not kept[0].bound:
        return kept[0].of
    if len(kept) == 2 and not any(e.bound or e.guards for e in kept):
        for zero, other in (kept, reversed(kept)):
            if not zero.of.monos:
                return _rectified(other.of)
    common = _common(kept)
    rest = [replace(e, of=e.of + common.times(Fraction(-1))) for e in kept]
    return common + _scaled(rest)


def _rectified(poly: Poly) -> Poly:
    """Return max(0, a), as a + max(0, -a) if a starts with a negative factor."""
    negative = poly.keyed[min(poly.keyed)] < 0
    inner = poly.times(Fraction(-1)) if negative else poly
    outer = poly if negative else Poly()
    return outer + _scaled([alone(Poly()), alone(inner)])


def _flat(elements: list[Element]) -> list[Element]:
    found = []
    for element in elements:
        used = {name for name in element.bound if _reads_place(element.of, name)}
        if element.bound and not used:
            element = alone(element.of)
        single = element.of.single()
        inner = (
            single and single[1] == 1 and not single[0].bound and not single[0].guards and single[0].factors
        )
        if inner and len(inner) == 1 and inner[0][1] == 1:
            factor = inner[0][0]
            if isinstance(factor, Function) and factor.name == "max":
                joined = [
                    Element(element.bound + e.bound, element.guards | e.guards, e.of) for e in factor.elements
                ]
                found += _flat(joined)
                continue
        found.append(element)
    return found


def _reads_place(poly: Poly, name: str) -> bool:
    return any(name in mono.key for mono in poly.monos)


def _exceeds(a: Element, b: Element) -> bool:
    if a.bound or b.bound or a.guards or b.guards:
        return False
    difference = a.of + b.of.times(Fraction(-1))
    return bool(difference.monos) and _is_nonnegative(difference)


def _common(elements: list[Element]) -> Poly:
    """Return the monomials that all elements have, free of their bound places."""
    total = Poly()
    for mono, factor in elements[0].of.monos.items():
        if all(e.of.keyed.get(mono.key) == factor and _is_free(mono.key, e.bound) for e in elements):
            total += Poly({mono: factor})
    return total


def _scaled(elements: list[Element]) -> Poly:
    """Return the maximum with positive factors that all elements share outside of it."""
    whole = [(m, c, e) for e in elements for m, c in e.of.monos.items()]
    if not whole:
        return Poly()
    names = tuple(name for e in elements for name in e.bound)
    together = Poly({m: c for m, c, _ in whole})
    shared, _, _ = _shared(together, positive_only=True)
    shared = replace(shared, factors=tuple(p for p in shared.factors if _is_free(p[0].key, names)))
    factors = [c for _, c, _ in whole]
    content = Fraction(gcd(*(abs(c.numerator) for c in factors)), 1)
    denominator = max(c.denominator for c in factors)
    content /= denominator
    divisor = Mono(tuple((f, -e) for f, e in shared.factors))
    inner = tuple(
        replace(e, of=Poly({multiplied(m, divisor): c / content for m, c in e.of.monos.items()}))
        for e in elements
    )
    return Poly({multiplied(shared, Mono(((Function("max", inner), Fraction(1)),))): content})


def apart(places: Places, poly: Poly) -> list[Poly]:
    """Return the parts of a polynomial of which at most one is not 0 at any place."""
    parts: list[list[tuple[Mono, Fraction]]] = []
    for mono, factor in poly.monos.items():
        near = [part for part in parts if any(not _exclude(places, mono, other) for other, _ in part)]
        parts = [part for part in parts if not any(part is other for other in near)]
        parts.append([pair for part in near for pair in part] + [(mono, factor)])
    return [Poly(dict(part)) for part in parts]


def _exclude(places: Places, a: Mono, b: Mono) -> bool:
    return any(places.is_never(guard, b.support) for guard in a.support)


def rectified(places: Places, poly: Poly) -> Poly:
    """Return the maximum of 0 and a polynomial."""
    total = Poly()
    for part in apart(places, poly):
        total += maximum([alone(Poly()), alone(part)])
    return total


def logarithm(poly: Poly) -> Poly:
    """Return log of a polynomial: a sum where it is a product of exponentials."""
    single = poly.single()
    if single and single[1] == 1 and not single[0].bound and not single[0].guards:
        factors = single[0].factors
        if factors and all(isinstance(f, Function) and f.name == "exp" for f, _ in factors):
            total = Poly()
            for f, e in factors:
                assert isinstance(f, Function)
                total += f.elements[0].of.times(e)
            return total
    return of_factor(Function("log", (alone(poly),)))


def tangent(places: Places, poly: Poly) -> Poly:
    """Return tanh of a polynomial."""
    total = Poly()
    for part in apart(places, poly):
        total += of_factor(Function("tanh", (alone(part),)))
    return total
