"""Pointwise operators are moved before the views that they read, so that what is behind the views is seen.

A pointwise operator on a reshaped tensor is the reshaped result of the operator on the tensor itself: the
same numbers in the same order in memory.
"""

from dataclasses import dataclass, replace
from typing import ClassVar

from peakfold.graph.rewrite.change import Change, Refusal, Rewritten, apply
from peakfold.graph.rewrite.maker import first_free
from peakfold.ir.graph import Graph, Node, Op, Value
from peakfold.ir.types import TensorType

RESHAPES = frozenset(("aten.view.default", "aten._unsafe_view.default", "aten.reshape.default"))
POINTWISE = frozenset(
    (*(f"aten.{name}.{form}" for name in ("add", "sub", "mul", "div") for form in ("Tensor", "Scalar")),
     *(f"aten.{name}.default" for name in ("neg", "exp", "log", "tanh", "relu", "sigmoid", "silu", "gelu")))
)  # fmt: skip


@dataclass(frozen=True)
class LiftedViews:
    """Pointwise operators read what views reshape, not the views, where all is contiguous.

    Keeps every bit: such an operator walks over memory, whatever the shape.
    """

    name: ClassVar[str] = "lift"

    def __call__(self, graph: Graph) -> Rewritten:
        """Return the graph with views behind pointwise operators."""
        done = Rewritten(graph)
        free, kept = first_free(graph), graph.results
        for ident in [node.id for node in graph.nodes if node.op.name in POINTWISE]:
            node = done.graph.node[ident]
            source = _reshaped(done.graph, node)
            if source is None or node.outputs[0] in kept or not _reshaped_again(done.graph, node):
                continue
            found = apply(done.graph, _moved(done.graph, node, source, free))
            free += 2
            if not isinstance(found, Refusal):
                done = Rewritten(found.graph, done.ids.then(found.ids))
        return done


def _reshaped(graph: Graph, node: Node) -> tuple[Value, ...] | None:
    """Return the tensors of one type whose reshapes a pointwise node reads; None where it is not so."""
    sources: list[Value] = []
    for value in node.inputs:
        maker = graph.node.get(value.node)
        if maker is None or maker.op.name not in RESHAPES or not maker.is_view:
            return None
        assert maker.aliases[0] is not None
        sources.append(maker.aliases[0])
    kinds = {graph.tensor_type(source) for source in sources}
    plain = len(kinds) == 1 and all(kind.is_contiguous for kind in kinds)
    made = node.types[0]
    shapes = {graph.tensor_type(value).shape for value in node.inputs}
    if not plain or not isinstance(made, TensorType) or not made.is_contiguous or shapes != {made.shape}:
        return None
    return tuple(sources) if made.dtype == next(iter(kinds)).dtype else None


def _reshaped_again(graph: Graph, node: Node) -> bool:
    """Whether only views, and pointwise operators that may move next, read the result."""
    readers = [graph.node[reader] for reader in graph.users.get(node.outputs[0], ())]
    return bool(readers) and all(r.op.name in RESHAPES or r.op.name in POINTWISE for r in readers)


def _moved(graph: Graph, node: Node, sources: tuple[Value, ...], free: int) -> Change:
    made = node.types[0]
    assert isinstance(made, TensorType)
    new = dict(zip(node.inputs, sources, strict=True))
    args = tuple(new[arg] if isinstance(arg, Value) else arg for arg in node.args)
    kind = graph.tensor_type(sources[0])
    moved = replace(node, id=free, args=args, types=(kind,))
    view = Node(
        free + 1, f"{node.name}.view", Op("aten.view.default"), (Value(free), made.shape), (), (made,),
        (Value(free),), origin=node.origin,
    )  # fmt: skip
    return Change((moved, view), {node.outputs[0]: Value(view.id)})
