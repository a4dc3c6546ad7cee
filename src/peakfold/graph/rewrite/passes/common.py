"""Common subexpressions: equal operators on equal operands are computed once."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from peakfold.graph.rewrite.change import Change, Refusal, Rewritten, apply
from peakfold.graph.rewrite.liveness import peak
from peakfold.ir.graph import Graph, Node, Value, substitute


@dataclass(frozen=True)
class CommonSubexpressions:
    """Nodes that compute the same become one, wherever they stand; draws and effects never do.

    Keeps every bit: a pure operator gives the same bits for the same operands.

    Attributes:
        may_raise_peak: also where a longer lifetime raises the peak.
    """

    name: ClassVar[str] = "common"
    may_raise_peak: bool = False

    def __call__(self, graph: Graph) -> Rewritten:
        """Return the graph without repeated nodes."""
        pairs = dict(_repeated(graph))
        merged = _merged(graph, pairs)
        if self.may_raise_peak or not pairs:
            return merged
        allowed = peak(graph)
        if peak(merged.graph) <= allowed:
            return merged
        return _one_by_one(graph, pairs, allowed)


def _repeated(graph: Graph) -> Iterator[tuple[int, int]]:
    """Yield (later, first) ids of nodes that compute the same."""
    first: dict[object, int] = {}
    values: dict[Value, Value] = {}
    for node in graph.nodes:
        if not node.op.pure or node.op.random:
            continue
        kept = first.setdefault(_key(node, values), node.id)
        if kept != node.id:
            values.update(zip(node.outputs, graph.node[kept].outputs, strict=True))
            yield node.id, kept


def _key(node: Node, values: dict[Value, Value]) -> object:
    args = tuple(_typed(substitute(arg, values)) for arg in node.args)
    kwargs = tuple((name, _typed(substitute(arg, values))) for name, arg in node.kwargs)
    inside = tuple(body.digest for body in node.bodies)
    return node.op.name, args, kwargs, node.types, node.origin.phase == "update", inside


def _typed(arg: object) -> object:
    """Return an argument so that 1, 1.0 and True differ, and -0.0 from 0.0."""
    if isinstance(arg, tuple):
        return tuple(_typed(item) for item in arg)
    return (type(arg), repr(arg)) if isinstance(arg, float) else (type(arg), arg)


def _merged(graph: Graph, pairs: dict[int, int]) -> Rewritten:
    outputs = {ident: graph.node[ident].outputs for pair in pairs.items() for ident in pair}
    values = {
        old: new
        for later, kept in pairs.items()
        for old, new in zip(outputs[later], outputs[kept], strict=True)
    }
    result = apply(graph, Change(values=values))
    assert not isinstance(result, Refusal), result
    return result


def _one_by_one(graph: Graph, pairs: dict[int, int], allowed: int) -> Rewritten:
    """Merge what raises no peak: a pair that does is left as it is, in program order."""
    done = Rewritten(graph)
    for later, kept in pairs.items():
        now = {ident: done.ids.of(Value(ident)) for ident in (later, kept)}
        if any(value is None or value.node not in done.graph.node for value in now.values()):
            continue
        a, b = (value.node for value in now.values() if value is not None)
        if a == b or not _same(done.graph, a, b):
            continue
        tried = _merged(done.graph, {a: b})
        if peak(tried.graph) <= allowed:
            done = Rewritten(tried.graph, done.ids.then(tried.ids))
    return done


def _same(graph: Graph, a: int, b: int) -> bool:
    return _key(graph.node[a], {}) == _key(graph.node[b], {})
