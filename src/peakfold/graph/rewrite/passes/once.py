"""Constant subgraphs: what reads no input is computed once, when the program is made, and kept."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from peakfold.graph.rewrite.change import Ids, Rewritten, without_dead
from peakfold.graph.rewrite.liveness import peak
from peakfold.ir.graph import Graph, Input, Node
from peakfold.ir.types import TensorType

_FILLING = frozenset(
    ("zeros", "zeros_like", "new_zeros", "ones", "ones_like", "new_ones", "full", "full_like", "new_full",
     "scalar_tensor")
)  # fmt: skip
_UNKNOWN = frozenset(
    ("empty", "empty_like", "empty_strided", "empty_permuted", "new_empty", "new_empty_strided")
)
"""Operators whose numbers are whatever was in memory."""


@dataclass(frozen=True)
class ComputedOnce:
    """What reads no input becomes an input itself, of the kind constant, under the id and name of its node.

    Only deterministic operators are computed once, and nothing that the program gives out. Keeps every bit.
    What is kept lives all the time: where that would raise the peak, what it is made of is tried, and else
    it is computed in every run as before. A tensor that one number fills is not kept, but for single numbers.

    Attributes:
        may_raise_peak: also where what is kept raises the peak.

    Example:
        >>> from peakfold.ir.graph import Op, Output, Value
        >>> from peakfold.ir.types import tensor
        >>> x = Input(0, "x", "batch", tensor(2))
        >>> def node(id, op, *args):
        ...     return Node(id, op, Op(f"aten.{op}.default"), args, (), (tensor(2),), (None,))
        >>> nodes = node(1, "arange", 2), node(2, "exp", Value(1)), node(3, "add", Value(0), Value(2))
        >>> done = ComputedOnce()(Graph((x,), nodes, (Output("y", Value(3)),)))
        >>> [given.name for given in done.graph.inputs], [node.name for node in done.graph.nodes]
        (['x', 'exp'], ['add'])
    """

    name: ClassVar[str] = "once"
    may_raise_peak: bool = False

    def __call__(self, graph: Graph) -> Rewritten:
        """Return the graph in which constants are given."""
        waiting, allowed = list(constants(graph)), peak(graph)
        done = kept(graph, waiting)
        if not self.may_raise_peak and peak(done.graph) > allowed:
            done = _one_by_one(graph, waiting, allowed)
        return done


def constants(graph: Graph) -> Iterator[int]:
    """Yield the nodes that read no input and are read by what does: the largest constant subgraphs."""
    fixed = _fixed(graph)
    for node in graph.nodes:
        if node.id in fixed and _may_be_kept(node) and _is_read_outside(graph, node, fixed):
            yield node.id


def kept(graph: Graph, idents: list[int]) -> Rewritten:
    """Return a graph in which nodes are inputs under their own ids and names, without what made them."""
    if not idents:
        return Rewritten(graph)
    chosen = frozenset(idents)
    new = tuple(
        Input(node.id, node.name, "constant", node.types[0]) for node in graph.nodes if node.id in chosen
    )
    nodes = without_dead([node for node in graph.nodes if node.id not in chosen], graph.results)
    there = chosen | {node.id for node in nodes}
    gone = frozenset(node.id for node in graph.nodes if node.id not in there)
    return Rewritten(Graph((*graph.inputs, *new), tuple(nodes), graph.outputs, graph.state), Ids(gone=gone))


def foldings(graph: Graph) -> Iterator[Graph]:
    """Yield what may become of a graph: without a higher peak, and with."""
    for raises in (False, True):
        yield ComputedOnce(raises)(graph).graph


def named(graph: Graph, names: tuple[str, ...]) -> Graph:
    """Return a graph in which the nodes of these names are given, as far as they are there and constant."""
    fixed = _fixed(graph)
    found = [node for node in graph.nodes if node.name in names and node.id in fixed]
    return kept(graph, [node.id for node in found if _may_be_kept(node)]).graph


def _one_by_one(graph: Graph, waiting: list[int], allowed: int) -> Rewritten:
    """Keep what raises no peak; of what does, try what it is made of."""
    done, tried = Rewritten(graph), set[int]()
    while waiting:
        ident = waiting.pop()
        if ident in tried or ident not in done.graph.node:
            continue
        tried.add(ident)
        after = kept(done.graph, [ident])
        if peak(after.graph) <= allowed:
            done = Rewritten(after.graph, done.ids.then(after.ids))
            continue
        waiting += _made_of(graph, graph.node[ident])
    return done


def _made_of(graph: Graph, node: Node) -> Iterator[int]:
    """Yield the nodes whose storages a node reads."""
    for value in node.inputs:
        source = graph.node[graph.storage(value).node]
        if _may_be_kept(source):
            yield source.id


def _fixed(graph: Graph) -> frozenset[int]:
    """Return the nodes that compute the same in every run, but those whose storage the program gives out."""
    found: set[int] = set()
    given_out = {graph.storage(value).node for value in graph.results}
    for node in graph.nodes:
        if node.id in given_out:
            continue
        computes = node.op.pure and not node.op.random and not node.bodies and not node.is_host
        if computes and node.op.packet not in _UNKNOWN and found.issuperset(v.node for v in node.inputs):
            found.add(node.id)
    return frozenset(found)


def _may_be_kept(node: Node) -> bool:
    """Whether a node owns its one output, and is worth keeping."""
    kind = node.types[0] if len(node.types) == 1 else None
    if not isinstance(kind, TensorType) or node.is_view:
        return False
    return node.op.packet not in _FILLING or kind.numel == 1


def _is_read_outside(graph: Graph, node: Node, fixed: frozenset[int]) -> bool:
    """Whether a node that is not fixed reads a node's storage."""
    waiting = [node.outputs[0]]
    for value in waiting:
        for ident in graph.users.get(value, ()):
            reader = graph.node[ident]
            if ident not in fixed:
                return True
            if reader.is_view:
                waiting += reader.outputs
    return False
