"""The same plan for another capture of the same program: another precision, batch or machine."""

from collections.abc import Callable, Iterator
from dataclasses import replace

from peakfold.ir.graph import Graph, Value
from peakfold.ir.plan import OffloadGap, Plan, Recompute


def transfer(plan: Plan, graph: Graph, other: Graph) -> Plan | None:
    """Return a plan of one graph for another in which the nodes have the same names.

    Decisions that name what the other graph lacks are left out; None when that is more than one in
    ten, since the plan would no longer have the same structure.

    Example:
        >>> from peakfold.ir.graph import Input, Node, Op, Output, Value
        >>> from peakfold.ir.types import tensor
        >>> def program(n):
        ...     x = Input(0, "x", "batch", tensor(n))
        ...     node = Node(1, "y", Op("aten.exp.default"), (Value(0),), (), (tensor(n),), (None,))
        ...     return Graph((x,), (node,), (Output("y", Value(1)),))
        >>> small, large = program(2), program(8)
        >>> transfer(Plan(small.digest), small, large).graph == large.digest
        True
    """
    ids = {node.name: node.id for node in other.nodes}
    inputs = {given.name: given.id for given in other.inputs}

    def there(node: int) -> int | None:
        given = graph.input.get(node)
        return ids.get(graph.node[node].name) if given is None else inputs.get(given.name)

    moved = [
        Recompute(node, use, item.hold, None if item.since is None else there(item.since))
        for item in plan.recompute
        if (node := there(item.node)) is not None and (use := there(item.use)) is not None
    ]
    away = list(_offloads(plan, there))
    if len(moved) < 0.9 * len(plan.recompute) or len(away) < 0.9 * len(plan.offload):
        return None
    order = tuple(node for item in plan.order if (node := there(item)) is not None)
    steps = sum(not node.is_view for node in other.nodes)
    return replace(
        plan,
        graph=other.digest,
        recompute=tuple(sorted(moved)),
        order=order if len(order) == steps else (),
        offload=tuple(sorted(away)),
    )


def _offloads(plan: Plan, there: Callable[[int], int | None]) -> Iterator[OffloadGap]:
    for item in plan.offload:
        maker = there(item.value.node)
        places = [
            node for at in (item.after, item.gone, item.fetch, item.use) if (node := there(at)) is not None
        ]
        if maker is not None and len(places) == 4:
            yield OffloadGap(Value(maker, item.value.index), *places)
