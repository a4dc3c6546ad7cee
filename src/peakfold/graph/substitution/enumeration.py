"""All terms up to a size over three inputs, in classes that are equal on every world."""

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import permutations
from typing import Final

import numpy as np

from peakfold.graph.rule import Apply, Term, Var
from peakfold.graph.substitution.catalogue import Instance
from peakfold.graph.substitution.growing import (
    AT_LEFT,
    AT_RIGHT,
    CLASSES,
    LEGAL,
    ORDERS,
    PAIRS,
    POOL,
    TERMS,
    grow,
    hashed,
    looked_up,
    rehashed,
    renamed_hashes,
)
from peakfold.graph.substitution.kernel import MOST, P, Q

INPUTS: Final = ("a", "b", "c")
BASES: Final = (
    ((2, 2), (2, 2), (2, 2)),
    ((2, 3), (3, 2), (2, 3)),
    ((2, 2, 3), (2, 2, 3), (2, 2, 3)),
    ((2, 4, 3), (4, 2, 3), (2, 2, 3)),
)
"""Shapes of the three tensors of each base: square and not, and for convolutions with two groups and
unequal numbers of channels. Six worlds, one for each order of the tensors, are made of each."""

_ORDERS = tuple(permutations(range(3)))
_INDEX = (1, 0, 1)
_DENOMINATOR = 256
_OF_ALL, _OF_OPERANDS = ("own", "made"), ("offsets", "shapes", "names", "cosets")


@dataclass(frozen=True)
class Level:
    """What the terms of one size are.

    Attributes:
        size: number of operators.
        terms: that were made and hashed, up to renaming of inputs.
        legal: on some world.
        classes: that are equal to no smaller or earlier term.
        pairs: terms that are.
    """

    size: int
    terms: int
    legal: int
    classes: int
    pairs: int


@dataclass
class Arrays:
    """The classes, as arrays that grow; `growing.grow` says what each holds."""

    offsets: np.ndarray[tuple[int, int], np.dtype[np.int64]]
    shapes: np.ndarray[tuple[int, int, int], np.dtype[np.int8]]
    pool: np.ndarray[tuple[int, int], np.dtype[np.uint32]]
    reals: np.ndarray[tuple[int], np.dtype[np.float32]]
    names: np.ndarray[tuple[int, int], np.dtype[np.uint64]]
    cosets: np.ndarray[tuple[int, int], np.dtype[np.int8]]
    own: np.ndarray[tuple[int], np.dtype[np.uint64]]
    made: np.ndarray[tuple[int, int], np.dtype[np.int32]]
    keys: np.ndarray[tuple[int], np.dtype[np.uint64]]
    values: np.ndarray[tuple[int], np.dtype[np.int32]]
    pairs: np.ndarray[tuple[int, int], np.dtype[np.int32]]


def composition() -> np.ndarray[tuple[int, int], np.dtype[np.int64]]:
    """Return for two orders the order of one after the other."""
    found = [[_ORDERS.index(tuple(a[i] for i in b)) for b in _ORDERS] for a in _ORDERS]
    return np.array(found, np.int64)


@dataclass
class Enumeration:
    """Classes of equal terms, grown size by size.

    Attributes:
        instances: the operators.
        seed: of the values.
        levels: what was found at each size.
        first: class at which each size starts.
    """

    instances: tuple[Instance, ...]
    seed: int = 0
    levels: list[Level] = field(default_factory=list)
    first: list[int] = field(default_factory=lambda: [0, 1])

    def __post_init__(self) -> None:
        worlds = len(BASES) * ORDERS
        self.arrays = Arrays(
            offsets=np.full((1024, worlds), -1, np.int64),
            shapes=np.zeros((1024, worlds, 3), np.int8),
            pool=np.zeros((1 << 16, 2), np.uint32),
            reals=np.zeros(1 << 16, np.float32),
            names=np.zeros((1024, ORDERS), np.uint64),
            cosets=np.zeros((1024, ORDERS), np.int8),
            own=np.zeros(1024, np.uint64),
            made=np.zeros((1024, 4), np.int32),
            keys=np.zeros(1 << 12, np.uint64),
            values=np.full(1 << 12, -1, np.int32),
            pairs=np.zeros((1024, 6), np.int32),
        )
        self.counters = np.zeros(7, np.int64)
        self.inverse = [_ORDERS.index(tuple(np.argsort(order))) for order in _ORDERS]
        self.composed = composition()
        self._place_inputs(np.random.default_rng(self.seed), worlds)

    def _place_inputs(self, random: np.random.Generator, worlds: int) -> None:
        salts = random.integers(1, 2**63, worlds + MOST + 1, np.uint64) | np.uint64(1)
        bases = [[self._tensor(random, shape) for shape in base] for base in BASES]
        inputs = np.ones((worlds, 3, 4), np.int8)
        hashes = np.zeros(worlds, np.uint64)
        at = 0
        for base, tensors in enumerate(bases):
            for place, order in enumerate(_ORDERS):
                world = base * ORDERS + place
                for i in range(3):
                    shape = BASES[base][order[i]]
                    inputs[world, i, 3 - len(shape) : 3] = shape
                    inputs[world, i, 3] = len(shape)
                numerators = tensors[order[0]]
                n = numerators.size
                self.arrays.offsets[0, world] = at
                self.arrays.shapes[0, world] = inputs[world, 0, :3]
                self._put(numerators, at)
                words = self.arrays.pool[at : at + n].astype(np.uint64)
                size = self.arrays.shapes[0, world].astype(np.int64)
                hashes[world] = hashed(n, size, words, salts[worlds:])
                at += n
        renamed_hashes(hashes, self.composed, salts, self.arrays.names[0])
        for under in range(ORDERS):
            same = np.flatnonzero(self.arrays.names[0] == self.arrays.names[0, under])
            self.arrays.cosets[0, under] = same[0]
        numerators = random.integers(1, 512, len(BASES))
        constant = np.stack([self._residues(numerators, P), self._residues(numerators, Q)], 1)
        self.setting = (
            self.composed, salts, constant, numerators / _DENOMINATOR, np.array(_INDEX, np.int64), inputs,
        )  # fmt: skip
        self.arrays.made[0] = (-1, 0, 0, 0)
        self.arrays.own[0] = self.arrays.names[0, 0]
        least = self.arrays.names[0].min()
        slot = looked_up(least, self.arrays.keys, self.arrays.values)
        self.arrays.keys[slot], self.arrays.values[slot] = least, 0
        self.counters[CLASSES], self.counters[POOL] = 1, at

    @staticmethod
    def _tensor(
        random: np.random.Generator, shape: tuple[int, ...]
    ) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        drawn = random.integers(1, 512, int(np.prod(shape)))
        signed: np.ndarray[tuple[int], np.dtype[np.int64]] = drawn * random.choice([-1, 1], len(drawn))
        return signed

    @staticmethod
    def _residues(
        numerators: np.ndarray[tuple[int], np.dtype[np.int64]], p: int
    ) -> np.ndarray[tuple[int], np.dtype[np.uint64]]:
        return np.array([int(n) * pow(_DENOMINATOR, -1, p) % p for n in numerators], np.uint64)

    def _put(self, numerators: np.ndarray[tuple[int], np.dtype[np.int64]], at: int) -> None:
        stop = at + numerators.size
        self.arrays.pool[at:stop, 0] = self._residues(numerators, P)
        self.arrays.pool[at:stop, 1] = self._residues(numerators, Q)
        self.arrays.reals[at:stop] = numerators / _DENOMINATOR

    def grow(self, last: bool, progress: Callable[[int], None] = lambda terms: None) -> Level:
        """Make all terms of the next size.

        Args:
            last: whether no larger terms are to come, so that values are not kept.
            progress: is called with the number of terms made so far.
        """
        size = len(self.first) - 1
        before = self.counters.copy()
        for number, instance in enumerate(self.instances):
            for left in range(0 if instance.arity == 2 else size - 1, size):
                self._block(number, instance, left, size - 1 - left, last)
                progress(int(self.counters[TERMS]))
        self.first.append(int(self.counters[CLASSES]))
        change = self.counters - before
        level = Level(size, *(int(change[column]) for column in (TERMS, LEGAL, CLASSES, PAIRS)))
        self.levels.append(level)
        return level

    @property
    def held(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Values of the classes, as `growing.grow` takes them."""
        return self.arrays.offsets, self.arrays.shapes, self.arrays.pool, self.arrays.reals

    def kind(self, number: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        """Return an operator as `growing.grow` takes it."""
        one = self.instances[number]
        flags = (one.arity, one.commutative, *one.parts)
        return np.array([number, one.code, one.first, one.second, *flags], np.int64)

    def _block(self, number: int, instance: Instance, left: int, right: int, last: bool) -> None:
        if instance.commutative and left < right:
            return
        lefts = np.array([self.first[left], self.first[left + 1]], np.int64)
        rights = np.array([self.first[right], self.first[right + 1]], np.int64)
        if instance.arity == 1:
            rights = np.array([0, 1], np.int64)
        kind = self.kind(number)
        self.counters[AT_LEFT], self.counters[AT_RIGHT] = lefts[0], rights[0]
        a = self.arrays
        while not grow(
            kind, lefts, rights, last, self.setting, self.held, a.names, a.cosets, a.own, a.made, a.keys,
            a.values, a.pairs, self.counters,
        ):  # fmt: skip
            self._make_room(last)

    def _make_room(self, last: bool) -> None:
        a, counters = self.arrays, self.counters
        if counters[CLASSES] + ORDERS >= len(a.own):
            for name in _OF_ALL if last else (*_OF_ALL, *_OF_OPERANDS):
                setattr(a, name, _doubled(getattr(a, name)))
        if counters[PAIRS] + ORDERS >= len(a.pairs):
            a.pairs = _doubled(a.pairs)
        if 2 * (counters[CLASSES] + ORDERS) >= len(a.keys):
            keys, values = np.zeros(2 * len(a.keys), np.uint64), np.full(2 * len(a.keys), -1, np.int32)
            rehashed(a.keys, a.values, keys, values)
            a.keys, a.values = keys, values
        if not last and counters[POOL] + ORDERS * a.offsets.shape[1] * MOST >= len(a.pool):
            a.pool, a.reals = _doubled(a.pool), _doubled(a.reals)

    @property
    def pairs(self) -> int:
        """How many pairs of equal terms there are."""
        return int(self.counters[PAIRS])

    def pair(self, row: int) -> tuple[Term, Term] | None:
        """Return two equal terms, None where they are equal up to a renaming that cannot be told."""
        kind, left, right, inner, c, under = map(int, self.arrays.pairs[row])
        return None if under < 0 else (self.applied(kind, left, right, inner, under), self.term(c))

    def term(self, c: int, order: int = 0) -> Term:
        """Return the first term of a class, with its inputs renamed by an order."""
        if c == 0:
            return Var(INPUTS[_ORDERS[order][0]])
        kind, left, right, inner = (int(n) for n in self.arrays.made[c])
        return self.applied(kind, left, right, inner, order)

    def applied(self, kind: int, left: int, right: int, inner: int, order: int = 0) -> Term:
        """Return an operator applied to classes, the second renamed, and then all by another order."""
        instance = self.instances[kind]
        args = [self.term(left, order)]
        if instance.arity == 2:
            args.append(self.term(right, int(self.composed[order, inner])))
        return self.complete(instance, args, order)

    def complete(self, instance: Instance, args: list[Term], order: int) -> Apply:
        """Return an operator on operands, with the index or the parts that it also reads."""
        if instance.op == "gather":
            args = [*args, Var("i")]
        if instance.op == "split":
            args = [*args, *(self.part(instance, order, place) for place in (0, 1))]
        return Apply(instance.op, tuple(args), instance.attrs, instance.output)

    def part(self, instance: Instance, order: int, place: int) -> Var:
        """Return an input that a split goes by, under an order of the inputs."""
        return Var(INPUTS[_ORDERS[order][instance.parts[place]]])


def _doubled(array: np.ndarray) -> np.ndarray:
    return np.concatenate([array, np.zeros_like(array)])
