"""Which nodes may be computed again: facts of a graph, whatever the plan."""

from collections.abc import Iterator

from peakfold.ir.graph import Graph, Node


def why_not_again(graph: Graph) -> dict[int, str]:
    """Return the nodes that no plan may compute again, by id, each with the reason.

    Random operators may: the second run draws the numbers of the first.

    Example:
        >>> from peakfold.ir.graph import Input, Op, Output, Value
        >>> from peakfold.ir.types import tensor
        >>> x = Input(0, "x", "batch", tensor(2))
        >>> y = Node(1, "y", Op("aten.exp.default"), (Value(0),), (), (tensor(2),), (None,))
        >>> why_not_again(Graph((x,), (y,), (Output("y", Value(1)),)))
        {1: 'the program returns it'}
    """
    late = late_nodes(graph)
    found = _kept_by_others(graph, late)
    for node in graph.nodes:
        reason = _own_reason(node, late)
        if reason:
            found[node.id] = reason
    return found


def late_nodes(graph: Graph) -> frozenset[int]:
    """Return the ids of update steps: nodes of the update phase that such nodes alone read.

    Views count as what reads them; they are never in the result.
    """
    readers = step_readers(graph)
    late: set[int] = set()
    for node in reversed(graph.nodes):
        if node.origin.phase == "update" and not node.is_view and late.issuperset(readers[node.id]):
            late.add(node.id)
    return frozenset(late)


def step_readers(graph: Graph) -> dict[int, list[int]]:
    """Return, for each node, the nodes other than views that read its storages, in program order."""
    found: dict[int, list[int]] = {node.id: [] for node in graph.nodes}
    for node in graph.nodes:
        if not node.is_view:
            for maker in dict.fromkeys(makers(graph, node)):
                found[maker].append(node.id)
    return found


def _own_reason(node: Node, late: frozenset[int]) -> str:
    if node.is_view:
        return "it is a view: it takes no memory, and is rebuilt where it is read"
    if node.is_host:
        return "it is a number on the host: it takes no memory"
    if node.id in late:
        return "it updates state, once"
    if node.bodies and node.op.random:
        return "it draws random numbers inside of control flow"
    if not node.op.pure and not node.op.random:
        return f"{node.op.name} does more than compute its result"
    if any(alias is not None for alias in node.aliases):
        return "one of its outputs shares the storage of an input"
    return ""


def _kept_by_others(graph: Graph, late: frozenset[int]) -> dict[int, str]:
    """Nodes whose outputs must stay as they are: returned, or read by an update or a mixed view."""
    found: dict[int, str] = {}
    for node in graph.nodes:
        mixed = not node.is_view and any(alias is not None for alias in node.aliases)
        if node.id in late or mixed:
            why = "reads it to update state" if node.id in late else "gives out a view of it"
            found |= dict.fromkeys(makers(graph, node), f"{node.name} {why}")
    for out in graph.outputs:
        maker = graph.storage(out.value).node
        if maker in graph.node:
            found[maker] = "the program returns it"
    return found


def makers(graph: Graph, node: Node) -> Iterator[int]:
    """Yield the nodes that own the storages that a node reads."""
    for value in node.inputs:
        maker = graph.storage(value).node
        if maker in graph.node:
            yield maker
