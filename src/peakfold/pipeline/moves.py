"""Rewrites for memory by the names of their families, so that they can be done again to another capture."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from peakfold.bridge.runtime.retype import retyped
from peakfold.graph.rewrite.passes.once import foldings
from peakfold.graph.wl import hashed
from peakfold.ir.graph import Graph
from peakfold.plan.search.rewrites import FAMILIES, State, moved, neighbours


@dataclass(frozen=True)
class Moves:
    """Does to a captured graph what families of moves do.

    Attributes:
        families: names, in their order.
        before: what is done to it first; None for nothing.
    """

    families: tuple[str, ...]
    before: Callable[[Graph], Graph] | None = None

    def __call__(self, graph: Graph) -> Graph:
        """Return the graph after the moves; a family that offers none leaves it as it is."""
        state = State(hashed(graph if self.before is None else self.before(graph)))
        for name in self.families:
            state = moved(state, name, FAMILIES[name], retyped, keep_bits=False) or state
        return state.graph


def reached(graph: Graph) -> Iterator[State]:
    """Yield all states that families lead to, in any order, those of fewer families first."""
    waiting = [State(hashed(graph))]
    for state in waiting:
        for after in neighbours(state, FAMILIES, retyped, keep_bits=False):
            yield after
            waiting.append(after)


def is_of(plan: str, graph: Graph) -> bool:
    """Whether the text of a plan is for a graph, its constants computed in every run or once."""
    return graph.digest in plan or any(one.digest in plan for one in foldings(graph))


def is_for(plan: str, graph: Graph) -> bool:
    """Whether the text of a plan is for a graph, or for what rewrites for memory or time make of it."""
    return is_of(plan, graph) or any(state.graph.digest in plan for state in reached(graph))
