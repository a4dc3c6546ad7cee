"""A rewrite that can be done: what templates and moves for memory offer, before anything is changed."""

from collections.abc import Callable
from dataclasses import dataclass

from peakfold.graph.rewrite.change import Change, Refusal, Rewritten, apply
from peakfold.ir.graph import Graph

Retype = Callable[[Graph, frozenset[int]], Graph | None]
"""Gives a graph the types that its operators give once some nodes, by id, are new; None where one does not
take its operands, or where what the program returns would change."""


@dataclass(frozen=True)
class Move:
    """A rewrite, not done yet.

    Attributes:
        rule: its name.
        graph: what it rewrites.
        change: what it does.
        keeps_bits: whether results keep every bit.
    """

    rule: str
    graph: Graph
    change: Change
    keeps_bits: bool = True

    @property
    def at(self) -> frozenset[tuple[str, int]]:
        """What it is about: its name with the ids of the nodes that it replaces or changes."""
        touched = [value.node for value in self.change.values] + [node.id for node in self.change.nodes]
        return frozenset((self.rule, ident) for ident in touched)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the nodes whose values it makes anew or changes."""
        return tuple(
            sorted({self.graph.node[ident].name for _, ident in self.at if ident in self.graph.node})
        )

    def apply(self) -> Rewritten | Refusal:
        """Return the graph after it."""
        return apply(self.graph, self.change)
