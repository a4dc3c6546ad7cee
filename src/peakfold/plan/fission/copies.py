"""The same region in every layer: a program without a backward has its peak once in each of them."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from peakfold.ir.graph import Graph, Node
from peakfold.ir.plan import Anchor, Run
from peakfold.ir.types import Type
from peakfold.plan.fission.dims import Component
from peakfold.plan.fission.pairs import Piece, splits
from peakfold.plan.fission.reading import Reading

Word = tuple[str, tuple[Type, ...]]


@dataclass(frozen=True)
class Layers:
    """A program in which regions are looked for that are alike.

    A copy of a region is a stretch of the program that runs the same operators on the same types in the same
    order as the stretch from the region's first step to its last. No two copies overlap.

    Attributes:
        reading: of the program.
    """

    reading: Reading

    @property
    def graph(self) -> Graph:
        """The program."""
        return self.reading.graph

    @cached_property
    def place(self) -> Mapping[int, int]:
        """Where each node stands."""
        return {node.id: at for at, node in enumerate(self.graph.nodes)}

    @cached_property
    def words(self) -> Sequence[Word]:
        """What each node runs on what."""
        return [_word(node) for node in self.graph.nodes]

    def copies(self, component: Component, piece: Piece) -> Iterator[Piece]:
        """Yield a region's copies elsewhere in the program that can be split.

        Args:
            component: the axis that the region is split along; copies are split along it too.
            piece: the region; each node runs once in it.
        """
        anchor = self.place.get(piece.anchor.value.node)
        if anchor is None:
            return
        for by in self._shifts(piece):
            made = self._moved(piece, by, anchor)
            if _is_on(component, made.anchor) and splits(self.reading, component, made):
                yield made

    def places(self, piece: Piece) -> int:
        """Return how many copies of a region a program has, whether they can be split or not."""
        return sum(1 for _ in self._shifts(piece))

    def _shifts(self, piece: Piece) -> Iterator[int]:
        """Yield how far, in nodes, each copy is from the region."""
        if any(run.k for run in piece.runs):
            return
        words = self.words
        inside = sorted(self.place[run.node] for run in piece.runs)
        first, length = inside[0], inside[-1] - inside[0] + 1
        pattern, taken = words[first : first + length], [first]
        for begin in range(len(words) - length + 1):
            if words[begin : begin + length] == pattern and all(abs(begin - at) >= length for at in taken):
                taken.append(begin)
                yield begin - first

    def _moved(self, piece: Piece, by: int, anchor: int) -> Piece:
        nodes = self.graph.nodes
        runs = tuple(sorted(Run(nodes[self.place[run.node] + by].id, 0) for run in piece.runs))
        value = nodes[anchor + by].outputs[piece.anchor.value.index]
        return Piece(runs, Anchor(value, piece.anchor.dim, piece.anchor.outer))


def _word(node: Node) -> Word:
    return node.op.name, node.types


def _is_on(component: Component, anchor: Anchor) -> bool:
    return any(
        (value, factor.dim, factor.outer) == (anchor.value, anchor.dim, anchor.outer)
        for value, factor in component.members
    )
