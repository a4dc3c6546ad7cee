"""Templates: rewrites of many nodes at once that rules with a fixed number of operands cannot say.

Each is a function from a graph to the moves that it sees, most valuable place first, in program order.
"""

from collections.abc import Callable, Iterator, Mapping

from peakfold.graph.rewrite.memory import fused_losses
from peakfold.graph.rewrite.move import Move
from peakfold.graph.rewrite.templates.norms import folded_norms
from peakfold.graph.rewrite.templates.products import merged_convolutions, merged_products
from peakfold.ir.graph import Graph

Template = Callable[[Graph], Iterator[Move]]

TEMPLATES: Mapping[str, Template] = {
    "folded_norms": folded_norms,
    "merged_products": merged_products,
    "merged_convolutions": merged_convolutions,
    "fused_losses": fused_losses,
}
"""By name, in the order in which they are tried."""
