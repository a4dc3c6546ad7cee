"""A rewrite of one capture, done to another capture of the same program: another precision or batch."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from peakfold.bridge.runtime.retype import retyped
from peakfold.errors import PlanError
from peakfold.graph.rewrite.maker import first_free
from peakfold.ir.graph import Arg, Graph, Node, Symbol, Value
from peakfold.ir.types import TensorType


@dataclass(frozen=True)
class Carrier:
    """Does to a graph what was done to one of the same program.

    Attributes:
        given: what was rewritten.
        result: what it became.
    """

    given: Graph
    result: Graph

    def __call__(self, graph: Graph) -> Graph:
        """Return a graph after the rewrite.

        Raises:
            PlanError: it cannot be done to this graph: nodes are missing, or shapes do not fit.
        """
        if graph.digest == self.given.digest:
            return self.result
        carried = _carried(self.given, self.result, graph)
        if carried is None:
            raise PlanError(
                stage="rewrite",
                what="what was done to one capture of the program cannot be done to another",
                expected="the same operators under the same names",
                hint="rewrite it anew for this batch, or pass rounding=False",
            )
        return carried


def _carried(given: Graph, result: Graph, other: Graph) -> Graph | None:
    there = {node.name: node.id for node in other.nodes} | {one.name: one.id for one in other.inputs}
    names = {node.id: node.name for node in given.nodes} | {one.id: one.name for one in given.inputs}
    ids = {ident: there[name] for ident, name in names.items() if name in there}
    kept, free = _kept(given, result, ids), first_free(other)
    for node in result.nodes:
        if node.id not in kept:
            ids[node.id], free = free, free + 1
    read = {value.node for node in result.nodes for value in node.inputs} | {v.node for v in result.results}
    if not read <= ids.keys() or any(state.input not in ids for state in result.state):
        return None
    dtypes = _dtypes(given, other, ids)
    nodes = [
        other.node[ids[node.id]] if node.id in kept else _moved(node, ids, dtypes) for node in result.nodes
    ]
    new = frozenset(node.id for node in nodes if node.id not in other.node)
    outputs = tuple(replace(out, value=_value(out.value, ids)) for out in result.outputs)
    state = tuple(replace(s, input=ids[s.input], output=_value(s.output, ids)) for s in result.state)
    there_now = {node.id for node in nodes} | other.input.keys()
    if any(value.node not in there_now for node in nodes for value in node.inputs):
        return None
    found = retyped(Graph(other.inputs, tuple(nodes), outputs, state), new, any_results=True)
    return found if found is not None and _gives_the_same(other, found) else None


def _kept(given: Graph, result: Graph, ids: Mapping[int, int]) -> frozenset[int]:
    """Return the ids of the nodes that are as they were, and read what is as it was."""
    kept = set(given.input)
    for node in result.nodes:
        if (
            node.id in ids
            and given.node.get(node.id) == node
            and kept.issuperset(v.node for v in node.inputs)
        ):
            kept.add(node.id)
    return frozenset(kept)


def _gives_the_same(graph: Graph, found: Graph) -> bool:
    pairs = [(a.value, b.value) for a, b in zip(graph.outputs, found.outputs, strict=True)]
    pairs += [(a.output, b.output) for a, b in zip(graph.state, found.state, strict=True)]
    return all(graph.type(a) == found.type(b) for a, b in pairs)


def _dtypes(given: Graph, other: Graph, ids: Mapping[int, int]) -> Mapping[str, str]:
    """Return which dtype of one graph is which of the other, by its inputs."""
    pairs = ((one.type, other.input[ids[one.id]].type) for one in given.inputs if one.id in ids)
    return {a.dtype: b.dtype for a, b in pairs if isinstance(a, TensorType) and isinstance(b, TensorType)}


def _value(value: Value, ids: Mapping[int, int]) -> Value:
    return Value(ids[value.node], value.index)


def _moved(node: Node, ids: Mapping[int, int], dtypes: Mapping[str, str]) -> Node:
    def there(arg: Arg) -> Arg:
        if isinstance(arg, Value):
            return _value(arg, ids)
        if isinstance(arg, Symbol) and arg.kind == "dtype":
            return replace(arg, name=dtypes.get(arg.name, arg.name))
        return tuple(map(there, arg)) if isinstance(arg, tuple) else arg

    args = tuple(map(there, node.args))
    kwargs = tuple((name, there(arg)) for name, arg in node.kwargs)
    aliases = tuple(None if alias is None else _value(alias, ids) for alias in node.aliases)
    return replace(node, id=ids[node.id], args=args, kwargs=kwargs, aliases=aliases)
