"""The graph that is planned: after passes that keep every bit, in the forms that are quickest here."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import combinations

from peakfold.cost.costs import Costs
from peakfold.graph.rewrite.liveness import peak
from peakfold.graph.rewrite.passes.losses import spared_bytes
from peakfold.graph.rewrite.passes.quicker import KINDS, SMALLER, Kind, QuickerForms
from peakfold.graph.rewrite.simplify import simplified
from peakfold.ir.graph import Graph

CostsOf = Callable[[Graph], Costs]
SPARE = 0.005
"""Part of the seconds that forms for fewer bytes may add."""
ENOUGH = 0.01
"""Part of the peak in program order that they must spare for it."""


@dataclass(frozen=True)
class Quickened:
    """Passes that are always right to run, and some kinds of quicker forms after them.

    The same kinds are made of the same program in another precision, so that plans carry over.
    """

    kinds: frozenset[Kind] = frozenset()

    @property
    def spare(self) -> float:
        """Part of the seconds that it may add, for fewer bytes."""
        return SPARE if self.kinds & SMALLER else 0.0

    def __call__(self, graph: Graph) -> Graph:
        """Return the graph after them."""
        return QuickerForms(self.kinds)(simplified(graph)).graph


def every(graph: Graph) -> Iterator[Quickened]:
    """Yield each choice of kinds that makes another graph, the one of most kinds first."""
    plain, seen = simplified(graph), set[str]()
    for count in range(len(KINDS), -1, -1):
        for kinds in combinations(KINDS, count):
            found = frozenset(kinds)
            digest = QuickerForms(found)(plain).graph.digest
            if digest not in seen:
                seen.add(digest)
                yield Quickened(found)


def quickest(graph: Graph, costs_of: CostsOf, *, least: bool = False, whole: bool = False) -> Quickened:
    """Return the kinds of forms that take less time than the operators that they replace.

    Args:
        graph: as captured.
        costs_of: what the operators of a graph cost where it is to run.
        least: bytes are short: what saves enough of them may take `SPARE` of the time more.
        whole: leave out what does some rows at a time, for what is to be split or rewritten otherwise.
    """
    plain = simplified(graph)
    taken = _seconds(plain, costs_of)
    spared = taken * (1 + SPARE) if least and spared_bytes(plain) >= ENOUGH * peak(plain) else 0.0
    kept = (
        kind
        for kind in KINDS
        if not (whole and kind in SMALLER)
        and (found := QuickerForms(frozenset((kind,)))(plain).graph).digest != plain.digest
        and ((now := _seconds(found, costs_of)) < taken or (kind in SMALLER and now <= spared))
    )
    return Quickened(frozenset(kept))


def _seconds(graph: Graph, costs_of: CostsOf) -> float:
    return sum(costs_of(graph).seconds.values())
