"""Dead code: nodes whose results nothing reads."""

from dataclasses import dataclass
from typing import ClassVar

from peakfold.graph.rewrite.change import Change, Refusal, Rewritten, apply
from peakfold.ir.graph import Graph


@dataclass(frozen=True)
class DeadCode:
    """Drops what is not read. Draws stay: without them, later ones would give other numbers.

    Keeps every bit.
    """

    name: ClassVar[str] = "dead"

    def __call__(self, graph: Graph) -> Rewritten:
        """Return the graph without dead nodes."""
        result = apply(graph, Change())
        assert not isinstance(result, Refusal), result
        return result
