"""Terms in index notation: the element of a term at a symbolic place, as a polynomial in normal form.

The method is a full proof for all shapes of a case: both sides have one normal form. Linear operators
become sums over places. Functions that are not linear become factors whose arguments are in normal form,
after data movement is moved out of them: ``exp(a + b)`` is ``exp(a) exp(b)``, a quotient is a product with
an inverse, ``relu`` is a maximum with 0, and maxima of maxima are one maximum.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import product as tuples
from typing import Final

from peakfold.graph.rule import Apply, Term, Var
from peakfold.graph.substitution.dims import Dim, symbol
from peakfold.graph.substitution.functions import (
    alone,
    exponential,
    inverse,
    logarithm,
    maximum,
    rectified,
    tangent,
)
from peakfold.graph.substitution.places import Places
from peakfold.graph.substitution.polynomials import (
    Element,
    Guards,
    Known,
    Poly,
    Read,
    of_factor,
    opaque,
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
    return of.places.times(_sum(of, term, index), inverse(size))


def _conv(of: Normalizer, term: Apply, index: Index) -> Poly:
    x, w = (of.typing.shape(arg) for arg in term.args)
    names, (channel, *places) = of.bound(1 + len(x) - 2)
    stride, dilation = term.attr("stride", 1), term.attr("dilation", 1)
    first = channel if x[1] == w[1] else channel + opaque("group", (index[1], w[0], x[1], w[1]))
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
    read = opaque("entry " + name, (place,))
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


def _over(of: Normalizer, term: Apply, index: Index) -> Poly:
    axis = term.attr("axis")
    names, (k,) = of.bound(1)
    size = of.typing.shape(term.args[0])[axis]
    guards = frozenset({k, size - 1 - k})
    elements = _elements(of, term.args[0], _at(index, axis, k), names, guards)
    found = maximum(elements)
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
    found = maximum(_elements(of, term.args[0], place, names, guards))
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
    "relu": lambda of, term, index, a: rectified(of.places, a),
    "maximum": lambda of, term, index, a, b: maximum([alone(a), alone(b)]),
    "exp": lambda of, term, index, a: exponential(of.places, a),
    "log": lambda of, term, index, a: logarithm(a),
    "tanh": lambda of, term, index, a: tangent(of.places, a),
    "reciprocal": lambda of, term, index, a: inverse(a),
    "div": lambda of, term, index, a, b: of.places.times(a, inverse(b)),
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
