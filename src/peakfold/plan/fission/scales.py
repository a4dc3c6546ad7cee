"""Numbers that scale the scores of attention scale what the scores are made of, which is smaller.

``c (q k)`` is ``(c q) k``, and the gradients of ``q`` and ``k`` are scaled, not that of the scores.
"""

from dataclasses import dataclass, field, replace

from peakfold.ir.graph import Arg, Graph, Node, Value
from peakfold.ir.types import TensorType, contiguous_strides
from peakfold.plan.fission.readers import readers
from peakfold.plan.fission.rebuild import Rebuild

SCALES = frozenset({"mul", "div"})
LEAST = 2
"""What is scaled instead has at most one in so many of the bytes."""


@dataclass
class Scales:
    """Which scalings of a graph are moved.

    Attributes:
        graph: the program.
        ahead: the scaling of what each product makes, which its smaller operand gets instead.
        behind: the scaling of what each product reads, which its result gets instead.
        gone: scalings that are moved.
    """

    graph: Graph
    ahead: dict[int, Node] = field(default_factory=dict)
    behind: dict[int, Node] = field(default_factory=dict)
    gone: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        for node in self.graph.nodes:
            if _is_scaling(self.graph, node) and not self._moves_ahead(node):
                self._moves_behind(node)

    def rewrite(self, build: Rebuild, node: Node) -> bool:
        """Add what stands for a product or a scaling that is concerned; False for all others."""
        if node.id in self.gone:
            build.new[Value(node.id)] = build.value(node.args[0])
        elif node.id in self.ahead:
            build.keep(replace(node, args=self._with_scaled(build, node)))
        elif node.id in self.behind:
            build.keep(node)
            scaling = self.behind[node.id]
            args = (Value(node.id), *scaling.args[1:])
            (build.new[Value(node.id)],) = build.make(node, "scaled", scaling.op, args, *node.types)
        else:
            return False
        return True

    def _moves_ahead(self, scaling: Node) -> bool:
        graph = self.graph
        product = graph.node.get(graph.storage(scaling.inputs[0]).node)
        if product is None or product.op.packet != "bmm" or product.id in self.behind:
            return False
        alone = {user.id for user in readers(graph, Value(product.id))} == {scaling.id}
        if not alone or not _is_inner(graph, product) or not _fits(graph, scaling, _smaller(graph, product)):
            return False
        self.ahead[product.id] = scaling
        self.gone.add(scaling.id)
        return True

    def _moves_behind(self, scaling: Node) -> None:
        graph, result = self.graph, Value(scaling.id)
        products = list(readers(graph, result))
        if not products or result in graph.results:
            return
        ids = {user.id for user in products}
        once = all(sum(graph.storage(v) == result for v in user.inputs) == 1 for user in products)
        free = all(user.op.packet == "bmm" for user in products) and ids.isdisjoint(
            (*self.ahead, *self.behind)
        )
        if once and free and _fits(graph, scaling, *(Value(ident) for ident in ids)):
            self.behind.update(dict.fromkeys(ids, scaling))
            self.gone.add(scaling.id)

    def _with_scaled(self, build: Rebuild, product: Node) -> tuple[Arg, ...]:
        scaling, least = self.ahead[product.id], _smaller(self.graph, product)
        value = build.value(least)
        args = (value, *scaling.args[1:])
        (scaled,) = build.make(product, "scaled", scaling.op, args, build.type(value))
        first = product.args.index(least)
        return tuple(scaled if at == first else arg for at, arg in enumerate(product.args))


def _is_scaling(graph: Graph, node: Node) -> bool:
    """Whether a node multiplies a tensor by one number, and its result lies as the tensor does."""
    if node.op.packet not in SCALES or node.kwargs or len(node.args) != 2:
        return False
    value, number = node.args
    plain = isinstance(number, int | float) and not isinstance(number, bool)
    return plain and isinstance(value, Value) and graph.type(value) == node.types[0]


def _is_inner(graph: Graph, product: Node) -> bool:
    """Whether a product's result is no result of the program, in any view."""
    return not any(graph.storage(value).node == product.id for value in graph.results)


def _smaller(graph: Graph, product: Node) -> Value:
    return min(product.inputs, key=lambda value: graph.tensor_type(value).nbytes)


def _fits(graph: Graph, scaling: Node, *instead: Value) -> bool:
    """Whether what is scaled instead is row-major, of one dtype, and much smaller."""
    kinds = [graph.tensor_type(value) for value in instead]
    whole = scaling.types[0]
    assert isinstance(whole, TensorType)
    alike = all(k.dtype == whole.dtype and k.strides == contiguous_strides(k.shape) for k in kinds)
    return alike and sum(kind.nbytes for kind in kinds) * LEAST <= whole.nbytes
