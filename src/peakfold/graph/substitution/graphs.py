"""All graphs with several outputs up to a number of operators, over three inputs, in classes that are equal.

A graph is what lies *inside*, operators that others read, and its *roots*, which none reads. What lies inside
is grown from class representatives, as terms are; roots are all operators on inputs and on what lies inside.
Graphs are told apart by how they are written, and compared by what they compute, each up to renaming of the
inputs.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from itertools import combinations, product
from typing import Final

import numpy as np

from peakfold.graph.rule import Term, Var
from peakfold.graph.substitution.combining import combined, leaders
from peakfold.graph.substitution.enumeration import INPUTS, Enumeration
from peakfold.graph.substitution.field import scramble
from peakfold.graph.substitution.growing import ORDERS, hashes_of

Named = tuple[int, int]
"""A class, and the order of the inputs under which it stands."""
Numbers = np.ndarray[tuple[int, ...], np.dtype[np.int64]]
Words = np.ndarray[tuple[int, ...], np.dtype[np.uint64]]
Sides = tuple[tuple[Term, ...], tuple[Term, ...]]

MOST_PAIRS: Final = 4_000_000


@dataclass(frozen=True)
class Inside:
    """Operators that others read.

    Attributes:
        nodes: classes.
        operators: how many there are; more than nodes where only the last is asked for.
        within: a bit for each node that another one reads.
    """

    nodes: tuple[Named, ...] = ()
    operators: int = 0
    within: int = 0


@dataclass(frozen=True)
class Root:
    """An operator on inputs and on what lies inside.

    Attributes:
        kinds: numbers of its outputs, in the list of operators.
        args: its operands.
        reads: a bit for each node inside that it reads.
    """

    kinds: tuple[int, ...]
    args: tuple[Named, ...]
    reads: int


@dataclass(frozen=True)
class Graphs:
    """What was found.

    Attributes:
        size: operators of a graph at most.
        made: sets of roots, before those that are renamings of one another were put together.
        graphs: up to renaming.
        classes: of graphs that compute the same.
        pairs: graphs that compute the same as an earlier one.
        apart: pairs that have no root in common.
        sides: both sides of pairs that are apart, as far as they were kept.
    """

    size: int
    made: int
    graphs: int
    classes: int
    pairs: int
    apart: int
    sides: tuple[Sides, ...] = field(repr=False)

    @property
    def figures(self) -> dict[str, int]:
        """What was counted."""
        return {"size": self.size, "made": self.made, "graphs": self.graphs, "classes": self.classes,
                "pairs": self.pairs, "apart": self.apart}  # fmt: skip


@dataclass
class Combiner:
    """Makes graphs with several outputs from terms.

    Attributes:
        terms: classes up to two operators fewer than a graph has; one fewer where there are splits.
        size: operators of a graph at most.
    """

    terms: Enumeration
    size: int
    _codes: dict[object, int] = field(default_factory=dict)
    _memo: dict[tuple[object, ...], int] = field(default_factory=dict)
    _raw: dict[tuple[int, tuple[Named, ...]], Words] = field(default_factory=dict)
    _roots: list[Root] = field(default_factory=list)

    def graphs(self, keep: int = 2000) -> Graphs:
        """Return the graphs, and both sides of as many pairs as are kept, at even distances."""
        spans = []
        for inside in self._insides():
            start = len(self._roots)
            self._roots += self._on(inside)
            spans.append((inside, start, len(self._roots)))
        self._compute()
        worlds, texts = self._hashes()
        found, keys, sizes = self._combined(spans, worlds, texts)
        order = np.lexsort((keys[:, 1], sizes, keys[:, 0]))
        pairs = np.zeros((MOST_PAIRS, 2), np.int64)
        graphs, classes, equal, apart = map(
            int, leaders(order, keys, found, worlds, texts, *self._renaming, pairs)
        )
        there = min(apart, MOST_PAIRS)
        kept = np.linspace(0, there - 1, min(keep, there)).astype(np.int64)
        sides = tuple(self._sides(found[pairs[row, 1]], found[pairs[row, 0]]) for row in kept)
        return Graphs(self.size, len(found), graphs, classes, equal, apart, sides)

    # --- what lies inside, and what reads it ----------------------------------------------------------

    def _insides(self) -> Iterator[Inside]:
        first = self.terms.first
        ones = range(first[1], first[2])
        yield Inside()
        if self.size >= 3:
            yield from (Inside(((c, 0),), 1) for c in ones)
        if self.size >= 4:
            yield from self._twos(ones)
        if any(instance.op == "split" for instance in self.terms.instances):
            last = range(first[self.size - 1], first[self.size])
            yield from (Inside(((c, 0),), self.size - 1) for c in last if self.size > 2)

    def _twos(self, ones: range) -> Iterator[Inside]:
        """Yield two operators on inputs, up to renaming, and two of which one reads the other."""
        seen: set[frozenset[int]] = set()
        for c, d, order in product(ones, ones, range(ORDERS)):
            names = [
                frozenset({self._text((c, by)), self._text(self._renamed((d, order), by))})
                for by in range(ORDERS)
            ]
            if len(names[0]) == 2 and names[0] not in seen:
                seen.update(names)
                yield Inside(((c, 0), (d, order)), 2)
        for c in range(self.terms.first[2], self.terms.first[3]):
            _, left, right, inner = (int(n) for n in self.terms.arrays.made[c])
            yield Inside(((left, 0) if left else (right, inner), (c, 0)), 2, within=1)

    def _on(self, inside: Inside) -> Iterator[Root]:
        """Yield the operators on inputs and on what lies inside."""
        only_last = inside.operators > len(inside.nodes)
        places = {one: 1 << number for number, one in enumerate(inside.nodes)}
        operands = [*([] if only_last else self._inputs), *inside.nodes]
        seen = {self._text(one) for one in inside.nodes}
        for kinds in self._kinds:
            if only_last and len(kinds) == 1:
                continue
            for args in product(operands, repeat=self.terms.instances[kinds[0]].arity):
                text = self._written(kinds, args)
                if text not in seen:
                    seen.add(text)
                    reads = inside.within
                    for one in args:
                        reads |= places.get(one, 0)
                    yield Root(kinds, args, reads)

    @cached_property
    def _inputs(self) -> tuple[Named, ...]:
        """The inputs, each under the first order that puts it in the first place."""
        orders = (next(o for o in range(ORDERS) if self.terms.term(0, o) == Var(name)) for name in INPUTS)
        return tuple((0, order) for order in orders)

    @cached_property
    def _kinds(self) -> tuple[tuple[int, ...], ...]:
        """Operators by the numbers of their outputs: of a split one, the other, or both."""
        every = self.terms.instances
        one = [(number,) for number in range(len(every))]
        both = [
            (i, j)
            for i, j in combinations(range(len(every)), 2)
            if every[i].op == every[j].op == "split" and every[i].parts == every[j].parts
        ]
        return (*one, *both)

    # --- how they are written ---------------------------------------------------------------------------

    def _code(self, key: object) -> int:
        return self._codes.setdefault(key, len(self._codes))

    def _renamed(self, one: Named, by: int) -> Named:
        return one[0], int(self.terms.composed[by, one[1]])

    def _text(self, one: Named) -> int:
        """Return a number for how a class is written under an order."""
        if one not in self._memo:
            self._memo[one] = self._text_of(*one)
        return self._memo[one]

    def _text_of(self, c: int, order: int) -> int:
        if c == 0:
            return self._code(("input", str(self.terms.term(0, order))))
        kind, left, right, inner = (int(n) for n in self.terms.arrays.made[c])
        args: tuple[Named, ...] = ((left, order),)
        if self.terms.instances[kind].arity == 2:
            args = (*args, (right, int(self.terms.composed[order, inner])))
        return self._written((kind,), args)

    def _written(self, kinds: tuple[int, ...], args: tuple[Named, ...]) -> int:
        """Return a number for how an operator on operands is written."""
        if (kinds, args) not in self._memo:
            outputs = tuple(self.terms.instances[kind].output for kind in kinds)
            self._memo[kinds, args] = self._code((outputs, self._node(kinds[0], args)))
        return self._memo[kinds, args]

    def _node(self, kind: int, args: tuple[Named, ...]) -> int:
        """Return a number for an operator on operands, whichever its output."""
        instance = self.terms.instances[kind]
        operands = tuple(map(self._text, args))
        if instance.commutative:
            operands = tuple(sorted(operands))
        parts: tuple[Term, ...] = ()
        if instance.op == "split":
            parts = tuple(self.terms.part(instance, args[0][1], place) for place in (0, 1))
        return self._code((instance.op, instance.attrs, operands, parts))

    # --- what they compute --------------------------------------------------------------------------------

    def _compute(self) -> None:
        """Hash what roots compute in every world, each output once."""
        composed, inverse = self.terms.composed, self.terms.inverse
        asked: dict[int, list[tuple[Named, ...]]] = {}
        for kind, args in dict.fromkeys((kind, root.args) for root in self._roots for kind in root.kinds):
            asked.setdefault(kind, []).append(args)
        for kind, several in asked.items():
            operands = np.zeros((len(several), 3), np.int64)
            for row, args in enumerate(several):
                (left, order), (right, other) = args[0], args[-1]
                operands[row] = (left, right, composed[inverse[order], other])
            hashes = np.zeros((len(several), self.terms.arrays.offsets.shape[1]), np.uint64)
            hashes_of(self.terms.kind(kind), operands, self.terms.setting, self.terms.held, hashes)
            for row, args in enumerate(several):
                by_base = hashes[row].reshape(-1, ORDERS)
                self._raw[kind, args] = by_base[:, composed[:, args[0][1]]].ravel()

    def _hashes(self) -> tuple[Words, Words]:
        """Return for each root hashes of what it computes, in every world, and of how it is written."""
        worlds = np.zeros((len(self._roots), self.terms.arrays.offsets.shape[1]), np.uint64)
        texts = np.zeros((len(self._roots), ORDERS), np.uint64)
        for row, root in enumerate(self._roots):
            outputs = [self._raw[kind, root.args] for kind in root.kinds]
            there = np.all(outputs, axis=0)
            for output in outputs:
                worlds[row] += np.where(there, scramble(output, 1), np.uint64(0))
            for order in range(ORDERS):
                texts[row, order] = self._written(
                    root.kinds, tuple(self._renamed(one, order) for one in root.args)
                )
        return worlds, scramble(texts, 2)

    @property
    def _renaming(self) -> tuple[Numbers, Words]:
        return self.terms.composed, self.terms.setting[1]

    def _combined(
        self, spans: list[tuple[Inside, int, int]], worlds: Words, texts: Words
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return sets of roots, hashes of what they compute and of how they are written, and their sizes."""
        legal = np.array([all(self._raw[k, root.args].any() for k in root.kinds) for root in self._roots])
        outputs = np.array([len(root.kinds) for root in self._roots], np.int64)
        reads = np.array([root.reads for root in self._roots], np.int64)
        nodes = np.array([self._node(root.kinds[0], root.args) for root in self._roots], np.int64)
        found, keys = np.zeros((1 << 16, 4), np.int32), np.zeros((1 << 16, 2), np.uint64)
        sizes: list[Numbers] = []
        at = 0
        for inside, start, stop in spans:
            here = start + np.flatnonzero(legal[start:stop])
            every = (1 << len(inside.nodes)) - 1
            for count in range(1, self.size - inside.operators + 1):
                while True:
                    end = combined(
                        count, here, reads, outputs, nodes, every, worlds, texts, *self._renaming,
                        found, keys, at,
                    )  # fmt: skip
                    if end <= len(found):
                        break
                    found = np.concatenate([found, np.zeros_like(found)])
                    keys = np.concatenate([keys, np.zeros_like(keys)])
                sizes.append(np.full(end - at, inside.operators + count, np.int64))
                at = end
        return found[:at], keys[:at], np.concatenate(sizes)

    # --- as terms -------------------------------------------------------------------------------------------

    def _sides(self, left: Numbers, right: Numbers) -> Sides:
        """Return both sides of a pair, outputs in the same order and inputs named alike."""
        wanted = self._outputs(right, 0)
        for order in range(ORDERS):
            given = self._outputs(left, order)
            if [value for value, _ in given] == [value for value, _ in wanted]:
                return tuple(term for _, term in given), tuple(term for _, term in wanted)
        raise AssertionError("graphs that compute the same do so under some order")

    def _outputs(self, rows: Numbers, order: int) -> list[tuple[bytes, Term]]:
        """Return what each output of a set of roots computes where all are legal, and its term, sorted."""
        roots = [self._roots[row] for row in rows if row >= 0]
        outputs = [(kind, root.args) for root in roots for kind in root.kinds]
        there = np.all([self._raw[output] for output in outputs], axis=0)
        found = []
        for kind, args in outputs:
            value = np.where(there, self._raw[kind, args], np.uint64(0)).reshape(-1, ORDERS)
            renamed = value[:, self.terms.composed[:, order]]
            found.append((renamed.tobytes(), self._term(kind, args, order)))
        return sorted(found, key=lambda pair: (pair[0], str(pair[1])))

    def _term(self, kind: int, args: tuple[Named, ...], order: int) -> Term:
        named = [self._renamed(one, order) for one in args]
        return self.terms.complete(
            self.terms.instances[kind], [self.terms.term(c, o) for c, o in named], named[0][1]
        )
