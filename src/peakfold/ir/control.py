"""Control flow in a Graph: nodes that run graphs of their own.

A *branch* reads a predicate and operands, and runs the first of two graphs where the predicate holds, else
the second. A *while loop* reads values that are carried from one pass to the next, and others that stay; its
first graph says whether there is another pass, its second makes the carried values of the next one. Both
graphs of either read all operands, in order, and own what they return: no output shares the storage of an
input or of another output.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Literal

from peakfold.ir.graph import Graph, Node, State, Value
from peakfold.ir.types import TensorType

COND = "peakfold.cond"
"""The operator of a branch: ``(predicate, *operands)``."""

WHILE = "peakfold.while_loop"
"""The operator of a while loop: ``(*carried, *others)``; it has one output for each carried value."""

Which = Literal["then", "else", "test", "pass"]
"""What a graph of a node is: either side of a branch; the question of a loop, or its pass."""

BODIES: dict[str, tuple[Which, Which]] = {COND: ("then", "else"), WHILE: ("test", "pass")}
"""What each graph of a node of control flow is, by operator."""


def is_control(node: Node) -> bool:
    """Whether a node runs graphs of its own."""
    return node.op.name in BODIES


def operands(node: Node) -> tuple[Value, ...]:
    """Return what the graphs of a node of control flow are given, one for each of their inputs."""
    values = node.args[1:] if node.op.name == COND else node.args
    return tuple(value for value in values if isinstance(value, Value))


def planned_bodies(node: Node) -> tuple[Graph, ...]:
    """Return the graphs of a node as they are planned and run.

    A pass of a loop leaves what it carries in the place of what it was given: its outputs are state.

    Example:
        >>> from peakfold.ir.graph import Input, Op, Output
        >>> from peakfold.ir.types import tensor
        >>> x = Input(0, "x", "batch", tensor(2))
        >>> y = Node(1, "y", Op("aten.exp.default"), (Value(0),), (), (tensor(2),), (None,))
        >>> body = Graph((x,), (y,), (Output("out.0", Value(1)),))
        >>> loop = Node(5, "loop", Op(WHILE), (Value(3),), (), (tensor(2),), (None,), bodies=(body, body))
        >>> [(len(graph.outputs), len(graph.state)) for graph in planned_bodies(loop)]
        [(1, 0), (0, 1)]
    """
    if node.op.name != WHILE:
        return node.bodies
    test, body = node.bodies
    pairs = zip(body.inputs, body.outputs, strict=False)
    state = tuple(State(given.id, out.value) for given, out in pairs)
    return test, Graph(body.inputs, body.nodes, (), state)


def nested(graph: Graph) -> Iterator[Graph]:
    """Yield a graph and every graph that its nodes run, the outer ones first."""
    stack = [graph]
    while stack:
        found = stack.pop()
        yield found
        stack.extend(body for node in reversed(found.nodes) for body in reversed(node.bodies))


def depth(graph: Graph) -> int:
    """Return how deep control flow is nested: 0 where there is none."""
    inside = (body for node in graph.nodes for body in node.bodies)
    return max((1 + depth(body) for body in inside), default=0)


def exchanged(graph: Graph, depths: frozenset[int], at: int = 0) -> Graph:
    """Return a graph in which the branches at some depths have their sides exchanged; 0 is the outermost."""

    def made(node: Node) -> Node:
        bodies = tuple(exchanged(body, depths, at + 1) for body in node.bodies)
        swaps = node.op.name == COND and at in depths
        return replace(node, bodies=bodies[::-1] if swaps else bodies)

    return replace(graph, nodes=tuple(made(node) if node.bodies else node for node in graph.nodes))


def violations(node: Node, graph: Graph) -> Iterator[str]:
    """Yield what is wrong with a node's graphs, beyond what is wrong inside them.

    Example:
        >>> from peakfold.ir.graph import Op
        >>> list(violations(Node(1, "y", Op(COND), (Value(0),), (), (), ()), Graph((), (), ())))
        ['it has 0 graphs, and peakfold.cond has 2']
    """
    wanted = BODIES.get(node.op.name, ())
    if len(node.bodies) != len(wanted):
        yield f"it has {len(node.bodies)} graphs, and {node.op.name} has {len(wanted)}"
        return
    given = [graph.type(value) for value in operands(node)] if wanted else []
    for name, body in zip(wanted, node.bodies, strict=True):
        if [one.type for one in body.inputs] != given:
            yield f"the inputs of its graph {name!r} are not of the types of its operands"
        if body.state:
            yield f"its graph {name!r} has state"
        if [body.type(out.value) for out in body.outputs] != _returned(name, node, body):
            yield f"its graph {name!r} does not return what the node gives out"
        roots = [body.storage(out.value) for out in body.outputs]
        if len(set(roots)) < len(roots) or any(root.node in body.input for root in roots):
            yield f"an output of its graph {name!r} shares its storage with an input or another output"


def _returned(name: Which, node: Node, body: Graph) -> list[object]:
    if name != "test":
        return list(node.types)
    kinds = [body.type(out.value) for out in body.outputs]
    one = len(kinds) == 1 and isinstance(kinds[0], TensorType) and kinds[0].numel == 1
    return list(kinds) if one else [None]
