"""Terms in index notation: the element of a term at a symbolic place, as a polynomial in normal form.

The method is a full proof for all shapes of a case: both sides have one normal form. Linear operators
become sums over places. Functions that are not linear become factors whose arguments are in normal form,
after data movement is moved out of them: ``exp(a + b)`` is ``exp(a) exp(b)``, a quotient is a product with
an inverse, ``relu`` is a maximum with 0, and maxima of maxima are one maximum.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction
from itertools import product as tuples
from math import gcd
from typing import Final

from peakfold.graph.rule import Apply, Term, Var
from peakfold.graph.substitution.dims import Dim, symbol
from peakfold.graph.substitution.polynomials import (
    Element,
    Function,
    Guards,
    Known,
    Mono,
    Places,
    Poly,
    Read,
    multiplied,
    number,
    of_factor,
    size_poly,
)
from peakfold.graph.substitution.shapes import Typing, parts_axis

Index = tuple[Dim, ...]
Case = tuple[Guards, Poly]


@dataclass
class Normalizer:
    """Finds the normal form of terms for one way of being legal.

    Attributes:
        typing: shapes of the terms.
        places: names of places.
        positive: names of symbolic constants that are known to be positive.
    """

    typing: Typing
    places: Places
    positive: frozenset[str] = frozenset()
    _memo: dict[tuple[Term, Index], Poly] = field(default_factory=dict)

    def value(self, term: Term, index: Index) -> Poly:
        """Return the element of a term at a place; 0 outside of the term."""
        key = (term, index)
        if key not in self._memo:
            self._memo[key] = self.places.simple(self._value(term, index))
        return self._memo[key]

    def _value(self, term: Term, index: Index) -> Poly:
        shape = self.typing.shape(term)
        if isinstance(term, Var):
            return of_factor(Read(term.name, index, shape))
        if term.op in _CASES:
            total = Poly()
            for guards, poly in self.cases(term, index):
                total += poly.guarded(guards | self.inside(term, index))
            return total
        return _VALUES[term.op](self, term, index)

    def cases(self, term: Term, index: Index) -> list[Case]:
        """Return the element of a term at a place inside of it, by cases that exclude each other."""
        if isinstance(term, Var) or (term.op not in _MOVES and term.op not in _CASES):
            return [(frozenset(), self.value(term, index))]
        if term.op in _MOVES:
            return [
                (guards | inner, poly)
                for guards, arg, place in _MOVES[term.op](self, term, index)
                for inner, poly in (self.cases(arg, place) if arg is not None else [(frozenset(), Poly())])
                if not self._contradict(guards | inner)
            ]
        found = []
        operands = [self.operand_cases(arg, term, index) for arg in term.args]
        for chosen in tuples(*operands):
            guards: Guards = frozenset().union(*(g for g, _ in chosen))
            if not self._contradict(guards):
                facts = guards | self.inside(term, index)
                polys = [self.places.simple(poly, facts) for _, poly in chosen]
                found.append((guards, _CASES[term.op](self, term, index, *polys)))
        return found

    def _contradict(self, guards: Guards) -> bool:
        return any(self.places.is_never(guard, guards) for guard in guards)

    def operand_cases(self, arg: Term, term: Term, index: Index) -> list[Case]:
        """Return the cases of an operand that is stretched to the shape of a term."""
        return self.cases(arg, self.narrowed(arg, term, index))

    def narrowed(self, arg: Term, term: Term, index: Index) -> Index:
        """Return the place in an operand that is stretched to the shape of a term."""
        narrow = self.typing.shape(arg)
        return tuple(Dim(0) if size == Dim(1) else place for size, place in zip(narrow, index, strict=True))

    def stretched(self, arg: Term, term: Term, index: Index) -> Poly:
        """Return the element of an operand that is stretched to the shape of a term."""
        wide, narrow = self.typing.shape(term), self.typing.shape(arg)
        guards: set[Dim] = set()
        for a, b, place in zip(wide, narrow, index, strict=True):
            if b == Dim(1) and a != b:
                guards |= {place, a - 1 - place}
            elif b == Dim(1):
                guards |= {place, place.times(-1)}
        return self.value(arg, self.narrowed(arg, term, index)).guarded(frozenset(guards))

    def inside(self, term: Term, index: Index) -> Guards:
        """Return the guards of a place inside of a term."""
        shape = self.typing.shape(term)
        return frozenset(index) | {size - 1 - place for size, place in zip(shape, index, strict=True)}

    def bound(self, count: int) -> tuple[tuple[str, ...], Index]:
        """Return new bound places."""
        names = tuple(self.places.fresh() for _ in range(count))
        return names, tuple(map(symbol, names))


def _linear(*signs: int) -> Callable[[Normalizer, Apply, Index], Poly]:
    def value(of: Normalizer, term: Apply, index: Index) -> Poly:
        total = Poly()
        for arg, sign in zip(term.args, signs, strict=True):
            total += of.stretched(arg, term, index).times(Fraction(sign))
        return total

    return value


def _mul(of: Normalizer, term: Apply, index: Index) -> Poly:
    left, right = (of.stretched(arg, term, index) for arg in term.args)
    return of.places.times(left, right)


def _scale(of: Normalizer, term: Apply, index: Index) -> Poly:
    by = dict(term.attrs)["by"]
    inner = of.value(term.args[0], index)
    if isinstance(by, int):
        return inner.times(Fraction(by))
    return of.places.times(of_factor(Known(by, by in of.positive)), inner)


def _matmul(of: Normalizer, term: Apply, index: Index) -> Poly:
    names, (k,) = of.bound(1)
    left = of.value(term.args[0], (*index[:-1], k))
    right = of.value(term.args[1], (*index[:-2], k, index[-1]))
    return of.places.times(left, right).summed(*names)


def _at(index: Index, axis: int, place: Dim) -> Index:
    return (*index[:axis], place, *index[axis + 1 :])


def _sum(of: Normalizer, term: Apply, index: Index) -> Poly:
    axis = term.attr("axis")
    names, (k,) = of.bound(1)
    total = of.value(term.args[0], _at(index, axis, k)).summed(*names)
    return total.guarded(frozenset({index[axis], index[axis].times(-1)}))


def _mean(of: Normalizer, term: Apply, index: Index) -> Poly:
    size = size_poly(of.typing.shape(term.args[0])[term.attr("axis")])
    return of.places.times(_sum(of, term, index), inverse(of, size))


def _conv(of: Normalizer, term: Apply, index: Index) -> Poly:
    x, w = (of.typing.shape(arg) for arg in term.args)
    names, (channel, *places) = of.bound(1 + len(x) - 2)
    stride, dilation = term.attr("stride", 1), term.attr("dilation", 1)
    first = channel if x[1] == w[1] else channel + of.places.opaque("group", (index[1], w[0], x[1], w[1]))
    spatial = tuple(
        at.times(stride) + place.times(dilation) - half(size).times(dilation)
        for at, place, size in zip(index[2:], places, w[2:], strict=True)
    )
    product = of.places.times(
        of.value(term.args[0], (index[0], first, *spatial)),
        of.value(term.args[1], (index[1], channel, *places)),
    )
    return product.summed(*names).guarded(of.inside(term, index))


def half(size: Dim) -> Dim:
    """Return (size - 1) / 2 of an odd size."""
    rest = size - 1
    return Dim(rest.const // 2, tuple((name, factor // 2) for name, factor in rest.terms))


def _window(of: Normalizer, term: Apply, index: Index) -> tuple[tuple[str, ...], Index, Guards]:
    kernel, stride = term.attr("kernel"), term.attr("stride", 1)
    names, places = of.bound(len(index) - 2)
    spatial = tuple(
        at.times(stride) + place - (kernel - 1) // 2 for at, place in zip(index[2:], places, strict=True)
    )
    guards = frozenset(places) | {place.times(-1) + (kernel - 1) for place in places}
    return names, (*index[:2], *spatial), guards


def _avgpool(of: Normalizer, term: Apply, index: Index) -> Poly:
    names, place, guards = _window(of, term, index)
    inner = of.value(term.args[0], place).guarded(guards | of.inside(term, index))
    return inner.summed(*names).times(Fraction(1, term.attr("kernel") ** len(names)))


def _softmax(of: Normalizer, term: Apply, index: Index) -> Poly:
    axis = term.attr("axis")
    powers = Apply("exp", term.args)
    total = Apply("sum", (powers,), (("axis", axis),))
    return of.value(Apply("div", (powers, total)), index)


def _gather_place(of: Normalizer, term: Apply, index: Index) -> tuple[Index, Guards]:
    axis, name = term.attr("axis"), str(term.args[1])
    place = index[axis]
    read = of.places.opaque("entry " + name, (place,))
    size = of.typing.shape(term)[axis]
    return _at(index, axis, read), frozenset({place, size - 1 - place})


Moves = list[tuple[Guards, Term | None, Index]]


def _move_concat(of: Normalizer, term: Apply, index: Index) -> Moves:
    axis = term.attr("axis")
    border, place = of.typing.shape(term.args[0])[axis], index[axis]
    return [
        (frozenset({border - 1 - place}), term.args[0], index),
        (frozenset({place - border}), term.args[1], _at(index, axis, place - border)),
    ]


def _move_transpose(of: Normalizer, term: Apply, index: Index) -> Moves:
    return [(frozenset(), term.args[0], (*index[:-2], index[-1], index[-2]))]


def _move_split(of: Normalizer, term: Apply, index: Index) -> Moves:
    axis = term.attr("axis")
    border = of.typing.shape(term.args[1])[parts_axis(term)]
    place = index[axis] + border if term.output else index[axis]
    return [(frozenset(), term.args[0], _at(index, axis, place))]


def _move_slice(of: Normalizer, term: Apply, index: Index) -> Moves:
    axis = term.attr("axis")
    return [(frozenset(), term.args[0], _at(index, axis, index[axis] + term.attr("low")))]


def _move_pad(of: Normalizer, term: Apply, index: Index) -> Moves:
    axis = term.attr("axis")
    size, place = of.typing.shape(term.args[0])[axis], index[axis] - term.attr("low")
    found: Moves = [(frozenset({place, size - 1 - place}), term.args[0], _at(index, axis, place))]
    if term.attr("low"):
        found.append((frozenset({place.times(-1) - 1}), None, index))
    if term.attr("high"):
        found.append((frozenset({place - size}), None, index))
    return found


def _move_expand(of: Normalizer, term: Apply, index: Index) -> Moves:
    return [(frozenset(), term.args[0], of.narrowed(term.args[0], term, index))]


def _move_gather(of: Normalizer, term: Apply, index: Index) -> Moves:
    return [(frozenset(), term.args[0], _gather_place(of, term, index)[0])]


def _concat(of: Normalizer, term: Apply, index: Index) -> Poly:
    axis = term.attr("axis")
    border = of.typing.shape(term.args[0])[axis]
    return of.value(term.args[0], index) + of.value(term.args[1], _at(index, axis, index[axis] - border))


def _cut(of: Normalizer, term: Apply, index: Index) -> Poly:
    ((_, arg, place),) = _MOVES[term.op](of, term, index)
    assert arg is not None
    axis = term.attr("axis")
    size = of.typing.shape(term)[axis]
    return of.value(arg, place).guarded(frozenset({index[axis], size - 1 - index[axis]}))


def _padded(of: Normalizer, term: Apply, index: Index) -> Poly:
    _, arg, place = _move_pad(of, term, index)[0]
    assert arg is not None
    return of.value(arg, place)


def _gather(of: Normalizer, term: Apply, index: Index) -> Poly:
    place, guards = _gather_place(of, term, index)
    return of.value(term.args[0], place).guarded(guards)


def exponential(of: Normalizer, poly: Poly) -> Poly:
    """Return exp of a polynomial: a product over its monomials."""
    total = number(1)
    for mono, factor in poly.monos.items():
        base = Function("exp", (Element((), frozenset(), Poly({mono: Fraction(1)})),))
        total = of.places.times(total, Poly({Mono(((base, factor),)): Fraction(1)}))
    return total


def inverse(of: Normalizer, poly: Poly) -> Poly:
    """Return 1 over a polynomial: factor by factor where it is a monomial, else what all share first."""
    single = poly.single()
    if single is not None and not single[0].bound and not single[0].guards:
        mono, factor = single
        return Poly({Mono(tuple((f, -e) for f, e in mono.factors)): 1 / factor})
    if not poly.monos:
        return of_factor(Function("inv", (Element((), frozenset(), poly),)))
    shared, rest, content = _shared(poly, positive_only=False)
    base = Function("inv", (Element((), frozenset(), rest.times(1 / content)),))
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


def maximum(of: Normalizer, elements: list[Element]) -> Poly:
    """Return the maximum of elements: flat, without what all share, without what another exceeds."""
    flat = _flat(of, elements)
    unique = list({Function("max", (e,)).key: e for e in flat}.values())
    kept = [e for e in unique if not any(_exceeds(other, e) for other in unique if other is not e)]
    if len(kept) == 1 and not kept[0].bound:
        return kept[0].of
    if len(kept) == 2 and not any(e.bound or e.guards for e in kept):
        for zero, other in (kept, reversed(kept)):
            if not zero.of.monos:
                return _rectified(of, other.of)
    common = _common(kept)
    rest = [replace(e, of=e.of + common.times(Fraction(-1))) for e in kept]
    return common + _scaled(of, rest)


def _rectified(of: Normalizer, poly: Poly) -> Poly:
    """Return max(0, a), as a + max(0, -a) if a starts with a negative factor."""
    negative = poly.keyed[min(poly.keyed)] < 0
    inner = poly.times(Fraction(-1)) if negative else poly
    outer = poly if negative else Poly()
    return outer + _scaled(of, [Element((), frozenset(), Poly()), Element((), frozenset(), inner)])


def _flat(of: Normalizer, elements: list[Element]) -> list[Element]:
    found = []
    for element in elements:
        used = {name for name in element.bound if _reads_place(element.of, name)}
        if element.bound and not used:
            element = Element((), frozenset(), element.of)
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
                found += _flat(of, joined)
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


def _scaled(of: Normalizer, elements: list[Element]) -> Poly:
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


def apart(of: Normalizer, poly: Poly) -> list[Poly]:
    """Return the parts of a polynomial of which at most one is not 0 at any place."""
    parts: list[list[tuple[Mono, Fraction]]] = []
    for mono, factor in poly.monos.items():
        near = [part for part in parts if any(not _exclude(of, mono, other) for other, _ in part)]
        parts = [part for part in parts if not any(part is other for other in near)]
        parts.append([pair for part in near for pair in part] + [(mono, factor)])
    return [Poly(dict(part)) for part in parts]


def _exclude(of: Normalizer, a: Mono, b: Mono) -> bool:
    return any(of.places.is_never(guard, b.support) for guard in a.support)


def _case_relu(of: Normalizer, term: Apply, index: Index, poly: Poly) -> Poly:
    total = Poly()
    for part in apart(of, poly):
        total += maximum(of, [Element((), frozenset(), Poly()), Element((), frozenset(), part)])
    return total


def _case_maximum(of: Normalizer, term: Apply, index: Index, a: Poly, b: Poly) -> Poly:
    return maximum(of, [Element((), frozenset(), a), Element((), frozenset(), b)])


def _case_log(of: Normalizer, term: Apply, index: Index, poly: Poly) -> Poly:
    single = poly.single()
    if single and single[1] == 1 and not single[0].bound and not single[0].guards:
        factors = single[0].factors
        if factors and all(isinstance(f, Function) and f.name == "exp" for f, _ in factors):
            total = Poly()
            for f, e in factors:
                assert isinstance(f, Function)
                total += f.elements[0].of.times(e)
            return total
    return of_factor(Function("log", (Element((), frozenset(), poly),)))


def _case_tanh(of: Normalizer, term: Apply, index: Index, poly: Poly) -> Poly:
    total = Poly()
    for part in apart(of, poly):
        total += of_factor(Function("tanh", (Element((), frozenset(), part),)))
    return total


def _over(of: Normalizer, term: Apply, index: Index) -> Poly:
    axis = term.attr("axis")
    names, (k,) = of.bound(1)
    size = of.typing.shape(term.args[0])[axis]
    guards = frozenset({k, size - 1 - k})
    elements = _elements(of, term.args[0], _at(index, axis, k), names, guards)
    found = maximum(of, elements)
    return found.guarded(of.inside(term, index))


def _elements(
    of: Normalizer, arg: Term, place: Index, names: tuple[str, ...], guards: Guards
) -> list[Element]:
    facts = guards | of.inside(arg, place)
    found = []
    for inner, poly in of.cases(arg, place):
        if not of._contradict(guards | inner):
            kept = _needed(of, guards | inner)
            found.append(Element(names, kept, of.places.simple(poly, facts | inner)))
    return found


def _needed(of: Normalizer, guards: Guards) -> Guards:
    kept = set(guards)
    for guard in sorted(guards, key=str):
        if of.places.is_implied(guard, kept - {guard}):
            kept.discard(guard)
    return frozenset(kept)


def _maxpool(of: Normalizer, term: Apply, index: Index) -> Poly:
    names, place, guards = _window(of, term, index)
    guards |= of.inside(term.args[0], place) - of.inside(term, index)
    guards = frozenset(g for g in guards if set(g.symbols) & set(names))
    found = maximum(of, _elements(of, term.args[0], place, names, guards))
    return found.guarded(of.inside(term, index))


def _conv_relu(of: Normalizer, term: Apply, index: Index) -> Poly:
    return of.value(Apply("relu", (Apply("conv", term.args, term.attrs),)), index)


_MOVES: Final[Mapping[str, Callable[[Normalizer, Apply, Index], Moves]]] = {
    "concat": _move_concat,
    "transpose": _move_transpose,
    "split": _move_split,
    "slice": _move_slice,
    "pad": _move_pad,
    "expand": _move_expand,
    "gather": _move_gather,
}
_CASES: Final[Mapping[str, Callable[..., Poly]]] = {
    "relu": _case_relu,
    "maximum": _case_maximum,
    "exp": lambda of, term, index, a: exponential(of, a),
    "log": _case_log,
    "tanh": _case_tanh,
    "reciprocal": lambda of, term, index, a: inverse(of, a),
    "div": lambda of, term, index, a, b: of.places.times(a, inverse(of, b)),
}
_VALUES: Final[Mapping[str, Callable[[Normalizer, Apply, Index], Poly]]] = {
    "add": _linear(1, 1),
    "sub": _linear(1, -1),
    "neg": _linear(-1),
    "mul": _mul,
    "scale": _scale,
    "matmul": _matmul,
    "sum": _sum,
    "mean": _mean,
    "max": _over,
    "softmax": _softmax,
    "conv": _conv,
    "conv_relu": _conv_relu,
    "avgpool": _avgpool,
    "maxpool": _maxpool,
    "concat": _concat,
    "split": _cut,
    "slice": _cut,
    "pad": _padded,
    "gather": _gather,
    "transpose": lambda of, term, index: of.value(term.args[0], (*index[:-2], index[-1], index[-2])),
    "expand": lambda of, term, index: of.stretched(term.args[0], term, index),
}


def same_everywhere(lhs: Term, rhs: Term, typing: Typing, positive: frozenset[str]) -> bool:
    """Return whether two terms of one shape have the same normal form at every place."""
    left, right = typing.shape(lhs), typing.shape(rhs)
    left, right = typing.found(left), typing.found(right)
    if left != right:
        return False
    places = Places(typing.solver)
    index = tuple(Dim(0) if size == Dim(1) else _output(places, axis) for axis, size in enumerate(left))
    places.facts = frozenset(
        guard
        for place, size in zip(index, left, strict=True)
        if place.terms
        for guard in (place, size - 1 - place)
    )
    normalizer = Normalizer(typing, places, positive)
    first, second = normalizer.value(lhs, index), normalizer.value(rhs, index)
    return first.key == second.key


def _output(places: Places, axis: int) -> Dim:
    places.solver.least[f"i{axis}"] = 0
    return symbol(f"i{axis}")
