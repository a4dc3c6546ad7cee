"""Control flow that is none: branches whose predicate is constant, loops that never begin."""

from collections.abc import Iterator, Mapping
from dataclasses import replace

from peakfold.graph.rewrite.change import Change, Refusal, Rewritten, apply
from peakfold.graph.rewrite.constants import constant
from peakfold.ir.control import COND, operands
from peakfold.ir.graph import Graph, Node, Op, Value, substitute
from peakfold.ir.names import unique

CLONE = Op("aten.clone.default")


def folded(graph: Graph) -> Rewritten:
    """Return a graph without branches whose side is known, and without loops that never begin.

    One that may draw random numbers stays, since positions in the stream are those of the program, and so
    does one that does more than compute.
    """
    done = Rewritten(graph)
    while True:
        change = next(_changes(done.graph), None)
        if change is None:
            return done
        found = apply(done.graph, change)
        assert not isinstance(found, Refusal), found
        done = Rewritten(found.graph, done.ids.then(found.ids))


def _changes(graph: Graph) -> Iterator[Change]:
    for node in graph.nodes:
        if not node.bodies:
            continue
        if node.op.pure:
            yield from _chosen(graph, node)
        new = _pruned(replace(node, bodies=tuple(_simple(body) for body in node.bodies)))
        if new != node:
            yield Change(nodes=(new,))


def _simple(body: Graph) -> Graph:
    found = apply(folded(body).graph, Change())
    assert not isinstance(found, Refusal), found
    return found.graph


def _chosen(graph: Graph, node: Node) -> Iterator[Change]:
    """Yield what a node stands for, where it is known which of its graphs run."""
    if node.op.name == COND:
        predicate = node.inputs[0]
        chosen = constant(graph, predicate)
        if chosen is not None:
            yield _inlined(graph, node, node.bodies[not chosen])
        return
    test = node.bodies[0]
    if constant(test, test.outputs[0].value) == 0:
        yield _copied(graph, node)


def _inlined(graph: Graph, node: Node, body: Graph) -> Change:
    """Return a change that puts the nodes of a graph in the place of the one that runs it."""
    values: dict[Value, Value] = {
        Value(given.id): value for given, value in zip(body.inputs, operands(node), strict=True)
    }
    free, names = _free(graph), _names(graph)
    new = []
    for inner in body.nodes:
        values |= {value: Value(free, value.index) for value in inner.outputs}
        name = unique(inner.name, names)
        new.append(_read(replace(inner, id=free, name=name), values))
        free += 1
    made = [values[out.value] for out in body.outputs]
    return Change(tuple(new), dict(zip(node.outputs, made, strict=True)))


def _read(node: Node, values: Mapping[Value, Value]) -> Node:
    return replace(
        node,
        args=tuple(substitute(arg, values) for arg in node.args),
        kwargs=tuple((name, substitute(arg, values)) for name, arg in node.kwargs),
        aliases=tuple(None if alias is None else values.get(alias, alias) for alias in node.aliases),
    )


def _copied(graph: Graph, node: Node) -> Change:
    """Return a change that copies what a loop carries at first in the place of the loop."""
    free, names = _free(graph), _names(graph)
    new = []
    for index, (value, kind) in enumerate(zip(operands(node), node.types, strict=False)):
        name = unique(f"{node.name}.{index}", names)
        new.append(Node(free + index, name, CLONE, (value,), (), (kind,), (None,), origin=node.origin))
    return Change(tuple(new), dict(zip(node.outputs, (Value(one.id) for one in new), strict=True)))


def _pruned(node: Node) -> Node:
    """Return a node without the operands that none of its graphs reads; what a loop carries stays."""
    head = 1 if node.op.name == COND else 0
    carried = 0 if node.op.name == COND else len(node.types)
    given = operands(node)
    kept = [place for place in range(len(given)) if place < carried or _is_read(node, place)]
    if len(kept) == len(given):
        return node
    bodies = tuple(replace(body, inputs=tuple(body.inputs[place] for place in kept)) for body in node.bodies)
    return replace(node, args=(*node.args[:head], *(given[place] for place in kept)), bodies=bodies)


def _is_read(node: Node, place: int) -> bool:
    return any(Value(body.inputs[place].id) in body.users for body in node.bodies)


def _free(graph: Graph) -> int:
    return 1 + max((*graph.input, *graph.node), default=-1)


def _names(graph: Graph) -> set[str]:
    return {given.name for given in graph.inputs} | {node.name for node in graph.nodes}
