"""Random legal inputs of a rule: shapes first, then values."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Final

import numpy as np

from peakfold.graph.rule import Apply, Condition, Rule, Term, subterms, variables
from peakfold.graph.rule import constants as constants_of
from peakfold.graph.substitution.dims import Dim, IllegalShape, Shape, Solver, symbol
from peakfold.graph.substitution.field import Arithmetic, Number
from peakfold.graph.substitution.operators import DIVIDING, MATRIX, OPERATORS, SPATIAL, operators_of
from peakfold.graph.substitution.shapes import Choose, Typing, index_variables

UNSTRETCHED: Final = Condition("unstretched", ())

_LARGEST, _MOST_ELEMENTS = 4, 512
_DENOMINATOR = 2**20


@dataclass(frozen=True)
class Sample:
    """Concrete shapes of a rule's variables.

    Attributes:
        shapes: by variable.
        bounds: for each index variable the number of places that it may name.
    """

    shapes: Mapping[str, tuple[int, ...]]
    bounds: Mapping[str, int]

    def __str__(self) -> str:
        return " ".join(f"{name}={list(shape)}".replace(" ", "") for name, shape in self.shapes.items())


@dataclass(frozen=True)
class _Way:
    """Symbolic shapes after one sequence of choices.

    Attributes:
        least: the least value of each symbol that is left.
        shapes: by variable.
    """

    least: Mapping[str, int]
    shapes: Mapping[str, Shape]


def ranks(rule: Rule) -> tuple[int, ...]:
    """Return the ranks at which a rule is tested: those that its operators and conditions leave open."""
    used = operators_of(rule.lhs + rule.rhs)
    named = [arg for c in rule.conditions if c.name != "rank" for arg in c.args if isinstance(arg, int)]
    spatial = (3, 4, 5) if max(named, default=0) == 3 else (3, 4)
    open_ranks = spatial if used & SPATIAL else (2, 3) if used & MATRIX else (2, 3, 4)
    fixed = [c.args[1] for c in rule.conditions if c.name == "rank"]
    return tuple(rank for rank in open_ranks if all(rank == r for r in fixed))


def symbols_of(rule: Rule, rank: int) -> dict[str, Shape]:
    """Return a symbolic shape for each variable."""
    vectors = index_variables(rule.lhs + rule.rhs)
    return {
        name: tuple(symbol(f"{name}{axis}") for axis in range(1 if name in vectors else rank))
        for name in variables(rule.lhs + rule.rhs)
    }


def require(condition: Condition, typing: Typing) -> None:
    """Put what a condition says about shapes into what is known of them.

    Raises:
        IllegalShape: it cannot hold.
    """
    shapes = [typing.found(typing.inputs[str(arg)]) for arg in condition.args if arg in typing.inputs]
    if condition.name == "same_shape":
        if len(shapes[0]) != len(shapes[1]):
            raise IllegalShape("ranks")
        for a, b in zip(*shapes, strict=True):
            typing.solver.equate(a, b)
    elif condition.name in {"same_dim", "one", "ungrouped"}:
        axes = [1, 1] if condition.name == "ungrouped" else [a for a in condition.args if isinstance(a, int)]
        dims = [_size(shape, axis) for shape, axis in zip(shapes, axes, strict=True)]
        typing.solver.equate(dims[0], dims[1] if len(dims) > 1 else Dim(1))


def _size(shape: Shape, axis: int) -> Dim:
    if not 0 <= axis < len(shape):
        raise IllegalShape(f"axis {axis} of rank {len(shape)}")
    return shape[axis]


def typed(
    rule: Rule, terms: tuple[Term, ...], rank: int, choose: Choose, groupings: tuple[str, ...] | None = None
) -> Typing:
    """Return symbolic shapes for which terms of a rule are legal and its condition holds.

    Raises:
        IllegalShape: with these choices there are none.
    """
    typing = Typing(symbols_of(rule, rank), choose, Solver())
    if groupings is not None:
        typing.groupings = groupings
    typing.stretch = UNSTRETCHED not in rule.conditions
    for condition in rule.conditions:
        require(condition, typing)
    for term in terms:
        typing.shape(term)
    for condition in rule.conditions:
        require(condition, typing)
    return typing


def matched(rule: Rule) -> tuple[Term, ...]:
    """Return the terms whose shapes are given: the left side, and the right if it reads more."""
    return rule.lhs if set(variables(rule.rhs)) <= set(variables(rule.lhs)) else rule.lhs + rule.rhs


class Sampler:
    """Draws legal shapes and values of a rule, the same ones for the same seed.

    Args:
        rule: whose variables to draw.
        seed: of all draws.
        terms: what must be legal.
    """

    def __init__(self, rule: Rule, seed: int, terms: tuple[Term, ...]) -> None:
        self.rule = rule
        self._terms = terms
        self._draws = 0
        self._random = np.random.default_rng(seed)
        self._positive = {str(c.args[0]) for c in rule.conditions if c.name == "positive"}
        self._nonzero = {str(c.args[0]) for c in rule.conditions if c.name == "nonzero"}
        used = operators_of(rule.lhs + rule.rhs)
        self._divides = bool(used & DIVIDING)
        self._ordered = any(OPERATORS[op].ordered for op in used)
        self._ways: dict[tuple[int, tuple[str, ...]], tuple[str, ...] | _Way | None] = {}
        self._known: dict[tuple[tuple[int, ...], ...], Sample | None] = {}

    @property
    def both_sides(self) -> bool:
        """Whether the right side is legal too on what is drawn."""
        return set(self.rule.rhs) <= set(self._terms)

    @property
    def points(self) -> int:
        """How many values a random element is drawn from, evenly."""
        return 4 * _DENOMINATOR if self._ordered or self._nonzero else 2**61

    def _choose(self, options: tuple[str, ...]) -> str:
        return options[int(self._random.integers(len(options)))]

    def _mostly_first(self, options: tuple[str, ...]) -> str:
        return options[0] if self._random.random() < 0.8 else self._choose(options)

    def shapes(self, rank: int, tries: int = 200) -> Sample | None:
        """Return legal shapes, or None where none are found.

        Every second draw stretches and groups freely, the others seldom.
        """
        self._draws += 1
        for attempt in range(tries):
            choose = self._choose if (self._draws + attempt // 8) % 2 else self._mostly_first
            found = self._attempt(rank, choose)
            if found is not None:
                return found
        return None

    def _attempt(self, rank: int, choose: Choose) -> Sample | None:
        way = self._way(rank, choose)
        if way is None:
            return None
        most = _LARGEST if rank < 4 else 2
        values = {name: Dim(int(self._random.integers(least, most + 1))) for name, least in way.least.items()}
        shapes = {
            name: tuple(dim.replace(values).const for dim in shape) for name, shape in way.shapes.items()
        }
        key = tuple(shapes.values())
        if key not in self._known:
            self._known[key] = self._legal(shapes)
        return self._known[key]

    def _way(self, rank: int, choose: Choose) -> _Way | None:
        """Choose until the symbolic shapes are known; what choices lead to is kept."""
        path: tuple[str, ...] = ()
        while (rank, path) in self._ways:
            known = self._ways[rank, path]
            if not isinstance(known, tuple):
                return known
            path = (*path, choose(known))
        taken, at = list(path), 0

        def retake(options: tuple[str, ...]) -> str:
            nonlocal at
            if at == len(taken):
                self._ways[rank, tuple(taken)] = options
                taken.append(choose(options))
            at += 1
            return taken[at - 1]

        found = self._symbolic(rank, retake)
        self._ways[rank, tuple(taken)] = found
        return found

    def _symbolic(self, rank: int, choose: Choose) -> _Way | None:
        try:
            typing = typed(self.rule, self._terms, rank, choose)
        except IllegalShape:
            return None
        shapes = {name: typing.found(shape) for name, shape in typing.inputs.items()}
        free = sorted({name for shape in shapes.values() for dim in shape for name in dim.symbols})
        return _Way({name: typing.solver.least.get(name, 1) for name in free}, shapes)

    def _legal(self, shapes: Mapping[str, tuple[int, ...]]) -> Sample | None:
        if any(size < 1 for shape in shapes.values() for size in shape):
            return None
        if any(int(np.prod(shape)) > _MOST_ELEMENTS for shape in shapes.values()):
            return None
        typing = concrete(shapes, UNSTRETCHED not in self.rule.conditions)
        try:
            for term in self._terms:
                typing.shape(term)
        except IllegalShape:
            return None
        return Sample(shapes, {name: min(d.const for d in dims) for name, dims in typing.bounds.items()})

    def values(self, sample: Sample, math: Arithmetic) -> tuple[dict[str, Number], dict[str, Number]]:
        """Return values of the variables and of the symbolic constants."""
        inputs = {name: self._tensor(name, shape, sample, math) for name, shape in sample.shapes.items()}
        names = constants_of(self.rule.lhs + self.rule.rhs)
        return inputs, {name: self._number(name, (), math) for name in names}

    def _tensor(self, name: str, shape: tuple[int, ...], sample: Sample, math: Arithmetic) -> Number:
        if name in sample.bounds:
            return math.rational(self._random.integers(0, sample.bounds[name], shape), 1)
        return self._number(name, shape, math)

    def _number(self, name: str, shape: tuple[int, ...], math: Arithmetic) -> Number:
        reach = 2 * _DENOMINATOR
        drawn = self._random.integers(-reach, reach, shape)
        drawn = np.where(drawn == 0, 1, drawn) if name in self._nonzero else drawn
        drawn = np.abs(drawn) + 1 if name in self._positive else drawn
        if self._divides and name not in self._nonzero | self._positive and self._random.random() < 0.5:
            drawn = np.where(self._random.random(shape) < 0.3, 0, drawn)
        number = math.rational(np.asarray(drawn, np.int64), _DENOMINATOR)
        if self._ordered or name in self._nonzero:
            return number
        return self._anywhere(number, math)

    def _anywhere(self, number: Number, math: Arithmetic) -> Number:
        """Return a number with residues from the whole field where nothing compares them; zeros stay."""
        v = self._random.integers(1, math.field.p, number.shape, np.uint64)
        u = self._random.integers(1, math.field.q, number.shape, np.uint64)
        zero = number.f == 0
        return Number(
            np.where(zero, 0, v).astype(np.uint64), np.where(zero, 0, u).astype(np.uint64), number.f
        )


def concrete(shapes: Mapping[str, tuple[int, ...]], stretch: bool = True) -> Typing:
    """Return the typing over numbers."""
    return Typing({name: tuple(map(Dim, shape)) for name, shape in shapes.items()}, _never, stretch=stretch)


def _never(options: tuple[str, ...]) -> str:
    raise IllegalShape("sizes that are numbers leave nothing open")


def value_conditions(rule: Rule) -> list[Condition]:
    """Return conditions that could make the sides equal where both are legal."""
    terms = rule.lhs + rule.rhs
    tensors = [name for name in variables(terms) if name not in index_variables(terms)]
    found = [Condition("ungrouped", pair) for pair in _convolved(terms)]
    found += [Condition("positive", (name,)) for name in constants_of(terms)]
    if operators_of(terms) & DIVIDING:
        found += [Condition("nonzero", (name,)) for name in (*tensors, *constants_of(terms))]
    return [*found, UNSTRETCHED]


def shape_conditions(rule: Rule, rank: int, of_one_shape: bool = False) -> list[Condition]:
    """Return equalities of sizes that hold where both sides are legal and nothing is stretched.

    With ``of_one_shape`` also those that make the sides of one shape.

    Raises:
        IllegalShape: the sides are never legal together.
    """
    typing = typed(rule, rule.lhs + rule.rhs, rank, lambda options: options[0])
    for pair in zip(rule.lhs, rule.rhs, strict=True) if of_one_shape else ():
        left, right = map(typing.shape, pair)
        if len(left) != len(right):
            raise IllegalShape("ranks")
        for a, b in zip(left, right, strict=True):
            typing.solver.equate(a, b)
    shapes = {name: typing.found(shape) for name, shape in typing.inputs.items()}
    found = [Condition("same_shape", (a, b)) for a, b in combinations(shapes, 2) if shapes[a] == shapes[b]]
    places = [(name, axis, dim) for name, shape in shapes.items() for axis, dim in enumerate(shape)]
    found += [Condition("one", (name, axis)) for name, axis, dim in places if dim == Dim(1)]
    found += [
        Condition("same_dim", (a, i, b, j))
        for (a, i, x), (b, j, y) in combinations(places, 2)
        if x == y and x.terms and shapes[a] != shapes[b]
    ]
    return found


def _convolved(terms: tuple[Term, ...]) -> list[tuple[str, str]]:
    pairs = (
        (term.args[0], term.args[1])
        for term in subterms(terms)
        if isinstance(term, Apply) and term.op in {"conv", "conv_relu"}
    )
    found = ((str(x), str(w)) for x, w in pairs if not isinstance(x, Apply) and not isinstance(w, Apply))
    return list(dict.fromkeys(found))


def with_conditions(rule: Rule, *conditions: Condition) -> Rule:
    """Return a rule with further conditions."""
    return replace(rule, conditions=(*rule.conditions, *conditions))
