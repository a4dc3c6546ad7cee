"""Loops that go on from a sum that is there: what a loop inside a part adds up goes into the sum around it.

Else the sum of a nested loop would be a tensor of full size, added to that of the loop around it at the end.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from peakfold.ir.graph import Graph, Node, Op, Value, substitute
from peakfold.ir.plan import Region
from peakfold.ops.inplace import OVER
from peakfold.plan.fission.accumulate import ADD, PRODUCTS, is_sum, terms, turned
from peakfold.plan.fission.borders import ORIGIN
from peakfold.plan.fission.derived import Body, Derived

APART: Mapping[str, str] = {added: product for product, added in PRODUCTS.items()}
"""What adds a product to an accumulator, and the product alone."""


def apart(graph: Graph, regions: Sequence[Region]) -> Graph:
    """Return a part in which no product inside a region adds to a state of the part by itself.

    Args:
        graph: a part, or a program.
        regions: of it.
    """
    inside = {run.node for region in regions for run in region.runs}
    total_of = {Value(pair.input): pair.output.node for pair in graph.state}
    fresh = 1 + max((*graph.input, *graph.node), default=0)
    nodes: list[Node] = []
    new: dict[Value, Value] = {}
    for node in graph.nodes:
        is_added = node.op.name in APART and _adds(graph, node, total_of)
        if node.id not in inside or not is_added:
            nodes.append(_reading(node, new))
            continue
        so_far, *rest = node.args
        nodes.append(replace(node, op=Op(APART[node.op.name]), args=tuple(rest)))
        total, name = Value(fresh + len(new)), f"{node.name}.sum.apart"
        args = (so_far, Value(node.id))
        nodes.append(Node(total.node, name, Op(ADD), args, (), node.types, (None,), None, node.origin))
        new[Value(node.id)] = total
    if not new:
        return graph
    state = tuple(replace(pair, output=new.get(pair.output, pair.output)) for pair in graph.state)
    ends = {pair.output.node for pair in state}
    read = (replace(node, origin=ORIGIN) if node.id in ends and is_sum(node) else node for node in nodes)
    return Graph(graph.inputs, tuple(read), graph.outputs, state)


def _adds(graph: Graph, node: Node, total_of: Mapping[Value, int]) -> bool:
    """Whether a node adds to a state first: it makes the new value, or what goes into that alone."""
    so_far = node.args[0]
    total = total_of.get(so_far) if isinstance(so_far, Value) else None
    return total is not None and (node.id == total or graph.users.get(Value(node.id)) == (total,))


def started(graph: Graph, bodies: Mapping[int, Body]) -> Derived:
    """Return a derived graph whose loops begin with the states that nothing but their sums go into.

    Args:
        graph: the outer graph.
        bodies: of its loops.
    """
    by_id, loops = dict(graph.node), dict(bodies)
    new: dict[Value, Value] = {}
    gone: set[int] = set()
    for pair in graph.state:
        first = _first(graph, pair.input, pair.output.node)
        if first is None:
            continue
        chain = [first, *turned(terms(first)[1], graph.node, graph.users)]
        loop, made = by_id[chain[-1].id], _read(chain)
        body = loops.get(loop.id)
        if body is None or graph.type(made) != first.types[0] or body.initial[made.index] != "zeros":
            continue
        known = dict(loop.kwargs).get(OVER)
        over = (*(known if isinstance(known, tuple) else ()), (made.index, len(loop.args)))
        kwargs = (*(item for item in loop.kwargs if item[0] != OVER), (OVER, over))
        by_id[loop.id] = replace(loop, args=(*loop.args, Value(pair.input)), kwargs=kwargs)
        loops[loop.id] = replace(
            body,
            loop=by_id[loop.id],
            operands=(*body.operands, body.results[made.index]),
            initial=tuple("given" if k == made.index else one for k, one in enumerate(body.initial)),
        )
        new[Value(first.id)] = made
        gone |= {node.id for node in chain[:-1]}
    if not new:
        return Derived(graph, bodies)
    nodes = tuple(_reading(by_id[node.id], new) for node in graph.nodes if node.id not in gone)
    state = tuple(replace(pair, output=new.get(pair.output, pair.output)) for pair in graph.state)
    return Derived(Graph(graph.inputs, nodes, graph.outputs, state), loops)


def _reading(node: Node, new: Mapping[Value, Value]) -> Node:
    return replace(node, args=tuple(substitute(arg, new) for arg in node.args)) if new else node


def _first(graph: Graph, given: int, total: int) -> Node | None:
    """Return the sum that adds to a state first, which is all that reads it; None where there is none.

    Args:
        graph: the outer graph.
        given: id of the state.
        total: id of what makes its new value: that sum, or one of it and something else.
    """
    readers = graph.users.get(Value(given), ())
    node = graph.node[readers[0]] if len(readers) == 1 else None
    if node is None or not is_sum(node) or node.args[0] != Value(given):
        return None
    return node if _adds(graph, node, {Value(given): total}) else None


def _read(chain: Sequence[Node]) -> Value:
    """Return what of the last one of a sum and what it reads, through views, the one before it reads."""
    arg = chain[-2].args[0 if chain[-2].is_view else 1] if len(chain) > 1 else None
    return arg if isinstance(arg, Value) else Value(-1)
