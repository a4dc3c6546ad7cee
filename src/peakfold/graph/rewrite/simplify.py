"""The passes that are always right to run: they keep every bit, and raise neither peak nor time."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from peakfold.graph.rewrite.account import Account
from peakfold.graph.rewrite.change import Ids, Rewritten
from peakfold.graph.rewrite.liveness import peak
from peakfold.graph.rewrite.passes.common import CommonSubexpressions
from peakfold.graph.rewrite.passes.constants import ConstantFolding
from peakfold.graph.rewrite.passes.dead import DeadCode
from peakfold.graph.rewrite.passes.forwarded import ForwardedParts
from peakfold.graph.rewrite.passes.views import CanonicalViews
from peakfold.ir.graph import Graph


class Pass(Protocol):
    """A named rewrite of a whole graph; its fields are its options."""

    @property
    def name(self) -> str:
        """Its name."""

    def __call__(self, graph: Graph) -> Rewritten:
        """Return the graph after it."""


PASSES: tuple[Pass, ...] = (
    DeadCode(),
    ConstantFolding(),
    ForwardedParts(),
    CanonicalViews(),
    CommonSubexpressions(),
)
"""Passes that keep every bit, in their order."""

ROUNDS = 4


@dataclass(frozen=True)
class Size:
    """What a graph comes to.

    Attributes:
        nodes: all of them.
        steps: those that are no views.
        peak_bytes: most bytes alive at once in program order.
    """

    nodes: int
    steps: int
    peak_bytes: int


def size_of(graph: Graph) -> Size:
    """Return the size of a graph."""
    return Size(len(graph.nodes), sum(not node.is_view for node in graph.nodes), peak(graph))


@dataclass(frozen=True)
class Simplified:
    """A graph after passes.

    Attributes:
        graph: the result; the given graph itself where nothing was found.
        ids: where the old Values are.
        counts: (pass, size before, size after), one for each pass that changed something.
        account: what each pass cost.
    """

    graph: Graph
    ids: Ids
    counts: tuple[tuple[str, Size, Size], ...]
    account: Account


def simplify(graph: Graph, passes: Sequence[Pass] = PASSES, rounds: int = ROUNDS) -> Simplified:
    """Run passes until none finds anything, at most so many rounds.

    Example:
        >>> from peakfold.ir.graph import Input, Node, Op, Output, Value
        >>> from peakfold.ir.types import tensor
        >>> x = Input(0, "x", "batch", tensor(2, 2))
        >>> def turned(id):
        ...     return Node(id, f"t{id}", Op("aten.t.default"), (Value(id - 1),), (),
        ...                 (tensor(2, 2, strides=((1, 2), (2, 1))[id % 2 - 1]),), (Value(id - 1),))
        >>> y = Node(3, "y", Op("aten.exp.default"), (Value(2),), (), (tensor(2, 2),), (None,))
        >>> found = simplify(Graph((x,), (turned(1), turned(2), y), (Output("y", Value(3)),)))
        >>> [node.name for node in found.graph.nodes], [row[0] for row in found.counts]
        (['y'], ['views'])
    """
    account, done = Account(), Rewritten(graph)
    counts: list[tuple[str, Size, Size]] = []
    for _ in range(rounds):
        before = done.graph
        for rewrite in passes:
            with account.timed(rewrite.name):
                found = rewrite(done.graph)
            account[rewrite.name].tried += 1
            if found.graph.digest != done.graph.digest:
                account[rewrite.name].fired += 1
                counts.append((rewrite.name, size_of(done.graph), size_of(found.graph)))
                done = Rewritten(found.graph, done.ids.then(found.ids))
        if done.graph is before:
            break
    account.stop()
    return Simplified(done.graph, done.ids, tuple(counts), account)


def simplified(graph: Graph) -> Graph:
    """Return a graph after the passes that are always right to run."""
    return simplify(graph).graph
