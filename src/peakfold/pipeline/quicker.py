"""The graph that is planned: after passes that keep every bit, in the forms that are quickest here."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import combinations

from peakfold.cost.costs import Costs
from peakfold.graph.rewrite.passes.quicker import KINDS, Kind, QuickerForms
from peakfold.graph.rewrite.simplify import simplified
from peakfold.ir.graph import Graph

CostsOf = Callable[[Graph], Costs]


@dataclass(frozen=True)
class Quickened:
    """Passes that are always right to run, and some kinds of quicker forms after them.

    The same kinds are made of the same program in another precision, so that plans carry over.
    """

    kinds: frozenset[Kind] = frozenset()

    def __call__(self, graph: Graph) -> Graph:
        """Return the graph after them."""
        return QuickerForms(self.kinds)(simplified(graph)).graph


def every(graph: Graph) -> Iterator[Quickened]:
    """Yield each choice of kinds that makes another graph, the one of most kinds first."""
    seen: set[str] = set()
    for count in range(len(KINDS), -1, -1):
        for kinds in combinations(KINDS, count):
            found = Quickened(frozenset(kinds))
            digest = found(graph).digest
            if digest not in seen:
                seen.add(digest)
                yield found


def quickest(graph: Graph, costs_of: CostsOf) -> Quickened:
    """Return the kinds of forms that take less time than the operators that they replace.

    Args:
        graph: as captured.
        costs_of: what the operators of a graph cost where it is to run.
    """
    plain = simplified(graph)
    taken = _seconds(plain, costs_of)
    kept = (
        kind
        for kind in KINDS
        if (found := QuickerForms(frozenset((kind,)))(plain).graph).digest != plain.digest
        and _seconds(found, costs_of) < taken
    )
    return Quickened(frozenset(kept))


def _seconds(graph: Graph, costs_of: CostsOf) -> float:
    return sum(costs_of(graph).seconds.values())
