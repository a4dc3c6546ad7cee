"""Forms of an operator that give the same bits and that some machines run faster, or in fewer bytes.

Whether they are faster is measured where the program is to run, so that nothing is taken on trust here.
"""

from dataclasses import dataclass, replace
from typing import ClassVar, Literal

from peakfold.graph.rewrite.change import Change, Refusal, Rewritten, apply
from peakfold.graph.rewrite.maker import first_free
from peakfold.graph.rewrite.passes.losses import GRADIENT, in_rows
from peakfold.ir.graph import Graph, Node, Op, Symbol, Value
from peakfold.ir.types import TensorType

Kind = Literal["fills", "pools", "losses"]
KINDS: tuple[Kind, ...] = ("fills", "pools", "losses")
SMALLER: frozenset[Kind] = frozenset(("losses",))
"""Kinds that are for fewer bytes, whether or not they are faster."""

POOL, FILL = "aten.max_pool2d_with_indices.default", "aten.masked_fill.Scalar"
_EXACT = frozenset(("float32", "float64"))
"""Narrower types are rounded, or compared, in another type by some kernels."""


@dataclass(frozen=True)
class QuickerForms:
    """Other operators for the same bits.

    ``fills``: ``masked_fill(x, mask, number)`` becomes ``where(mask, number, x)``, which makes no copy first.
    ``pools``: a maximum over windows of a row-major image is taken with channels last; kernels then compare
    all channels of a place at once. The image is copied for it, and so is what comes out.
    ``losses``: the gradient of a loss of labels is written over the log-probabilities, some rows at a time.

    Attributes:
        kinds: which are made.
    """

    name: ClassVar[str] = "quicker"
    kinds: frozenset[Kind] = frozenset(KINDS)

    def __call__(self, graph: Graph) -> Rewritten:
        """Return the graph with these forms."""
        done = Rewritten(graph)
        for node in graph.nodes:
            change = _change(done.graph, node, self.kinds)
            found = None if change is None else apply(done.graph, change)
            if found is not None and not isinstance(found, Refusal):
                done = Rewritten(found.graph, done.ids.then(found.ids))
        return done


def _change(graph: Graph, node: Node, kinds: frozenset[Kind]) -> Change | None:
    if node.op.name == FILL and "fills" in kinds:
        return _chosen(graph, graph.node[node.id])
    if node.op.name == POOL and "pools" in kinds:
        return _pooled(graph, graph.node[node.id])
    if node.op.name == GRADIENT and "losses" in kinds:
        return in_rows(graph, graph.node[node.id])
    return None


def _chosen(graph: Graph, node: Node) -> Change | None:
    x, mask, number = node.args
    made = node.types[0]
    if not isinstance(x, Value) or not isinstance(mask, Value) or not isinstance(number, int | float):
        return None
    kinds = graph.tensor_type(x), graph.tensor_type(mask)
    if made != kinds[0] or made.dtype not in _EXACT or not all(kind.is_contiguous for kind in kinds):
        return None
    free = first_free(graph)
    options = (("dtype", Symbol("dtype", made.dtype)), ("device", Symbol("device", made.device)))
    scalar = TensorType((), made.dtype, made.device, ())
    filler = Node(
        free, f"{node.name}.number", Op("aten.full.default"), ((), number), options, (scalar,), (None,),
        origin=node.origin,
    )  # fmt: skip
    choice = replace(node, id=free + 1, op=Op("aten.where.self"), args=(mask, Value(free), x))
    return Change((filler, choice), {node.outputs[0]: Value(choice.id)})


def _pooled(graph: Graph, node: Node) -> Change | None:
    x = node.args[0]
    assert isinstance(x, Value)
    kind = graph.tensor_type(x)
    turned, made = _channels_last(kind), tuple(map(_channels_last, node.types))
    if turned is None or kind.dtype not in _EXACT or made[0] is None or made[1] is None:
        return None
    free = first_free(graph)
    copy = _copy(free, f"{node.name}.turned", x, turned, "channels_last", node)
    args, types = (Value(free), *node.args[1:]), (made[0], made[1])
    pool = replace(node, id=free + 1, name=f"{node.name}.pooled", args=args, types=types)
    back = tuple(
        _copy(free + 2 + i, f"{node.name}.{i}" if i else node.name, out, one, "contiguous_format", node)
        for i, (out, one) in enumerate(zip(pool.outputs, node.types, strict=True))
        if isinstance(one, TensorType)
    )
    values = {old: new.outputs[0] for old, new in zip(node.outputs, back, strict=True)}
    return Change((copy, pool, *back), values)


def _copy(ident: int, name: str, source: Value, made: TensorType, order: str, of: Node) -> Node:
    options = (("memory_format", Symbol("memory_format", order)),)
    return Node(ident, name, Op("aten.clone.default"), (source,), options, (made,), (None,), origin=of.origin)


def _channels_last(kind: object) -> TensorType | None:
    """Return the type of a row-major image with channels last; None where nothing would lie otherwise."""
    if not isinstance(kind, TensorType) or len(kind.shape) != 4 or not kind.is_contiguous:
        return None
    _, channels, height, width = kind.shape
    if channels == 1 or height * width == 1 or kind.numel == 0:
        return None
    return replace(kind, strides=(channels * height * width, 1, width * channels, channels))
