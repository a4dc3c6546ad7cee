"""Dead code: nodes whose results nothing reads, and sides of branches that never run."""

from dataclasses import dataclass
from typing import ClassVar

from peakfold.graph.rewrite.change import Change, Refusal, Rewritten, apply
from peakfold.graph.rewrite.passes.branches import folded
from peakfold.ir.graph import Graph


@dataclass(frozen=True)
class DeadCode:
    """Drops what is not read, and what is not run. Draws stay: without them, later ones would differ.

    A branch whose predicate is constant becomes the side that runs; inside of branches and loops it does the
    same. Keeps every bit.
    """

    name: ClassVar[str] = "dead"

    def __call__(self, graph: Graph) -> Rewritten:
        """Return the graph without dead nodes."""
        known = folded(graph)
        result = apply(known.graph, Change())
        assert not isinstance(result, Refusal), result
        return Rewritten(result.graph, known.ids.then(result.ids))
