"""A plan in words."""

from collections.abc import Iterable, Iterator, Mapping

from peakfold.cost.costs import Costs
from peakfold.ir.graph import Graph, Value
from peakfold.ir.plan import Plan, Recompute
from peakfold.report.model import Decision

SHOWN = 4


def decisions_of(graph: Graph, plan: Plan, costs: Costs) -> tuple[Decision, ...]:
    """Return the decisions of a plan: recomputation by module, most bytes first, then the rest."""
    modules = _by_module(graph, plan.recompute)
    found = [_recompute(graph, costs, module, group) for module, group in modules.items()]
    found.sort(key=lambda decision: -decision.nbytes)
    return (*found, *_offloads(graph, plan), *_packed(graph, plan), *_order(graph, plan), *_storage(plan))


def _by_module(graph: Graph, recompute: Iterable[Recompute]) -> Mapping[str, list[Recompute]]:
    position = {node.id: index for index, node in enumerate(graph.nodes)}
    found: dict[str, list[Recompute]] = {}
    for item in sorted(recompute, key=lambda item: (position[item.node], position[item.use])):
        found.setdefault(graph.node[item.node].origin.module, []).append(item)
    return found


def _recompute(graph: Graph, costs: Costs, module: str, group: list[Recompute]) -> Decision:
    nodes = list(dict.fromkeys(item.node for item in group))
    names = [graph.node[node].name.removeprefix(module + ".") for node in nodes]
    shown = ", ".join(names[:SHOWN]) + (f" and {len(names) - SHOWN} more" if len(names) > SHOWN else "")
    return Decision(
        action="recompute",
        what=f"{module or 'model'}: {shown}",
        when="dropped after use, computed again before the next",
        nbytes=sum(_made(graph, node) for node in nodes),
        seconds=sum(costs.seconds.get(item.node, 0.0) for item in group),
    )


def _offloads(graph: Graph, plan: Plan) -> Iterator[Decision]:
    """What waits on the host, by module or kind of input, most bytes first."""
    groups: dict[str, list[Value]] = {}
    for gap in plan.offload:
        given, node = graph.input.get(gap.value.node), graph.node.get(gap.value.node)
        where = given.kind if given is not None else node.origin.module if node is not None else ""
        groups.setdefault(where, []).append(gap.value)
    sizes = {where: sum(map(graph.nbytes, values)) for where, values in groups.items()}
    for where in sorted(groups, key=lambda where: -sizes[where]):
        values = list(dict.fromkeys(groups[where]))
        names = [graph.name_of(value).removeprefix(where + ".") for value in values[:SHOWN]]
        more = f" and {len(values) - SHOWN} more" if len(values) > SHOWN else ""
        yield Decision(
            action="offload",
            what=f"{where or 'model'}: {', '.join(names)}{more}",
            when="copied to the host after use, back before the next, beside the computation",
            nbytes=sizes[where],
        )


def _packed(graph: Graph, plan: Plan) -> Iterator[Decision]:
    values = list(dict.fromkeys(gap.value for gap in plan.compress))
    if values:
        names = ", ".join(map(graph.name_of, values[:SHOWN]))
        more = f" and {len(values) - SHOWN} more" if len(values) > SHOWN else ""
        when = "packed without loss after use, unpacked before the next"
        yield Decision("compress", names + more, when, sum(map(graph.nbytes, values)))


def _made(graph: Graph, node: int) -> int:
    return sum(graph.nbytes(value) for value in graph.node[node].outputs if graph.storage(value) == value)


def _order(graph: Graph, plan: Plan) -> tuple[Decision, ...]:
    if not plan.order:
        return ()
    own = [node.id for node in graph.nodes if not node.is_view]
    moved = sum(a != b for a, b in zip(own, plan.order, strict=False))
    return (
        Decision("order", f"{moved} of {len(own)} operators", "run at another place than in the program"),
    )


def _storage(plan: Plan) -> tuple[Decision, ...]:
    early = Decision(
        "update", "each parameter", "as soon as its gradient is complete and nothing needs the old"
    )
    last = Decision("update", "all parameters", "after everything else")
    reuse = Decision("reuse", "dying operands", "results are written into them where the operator allows it")
    return (early if plan.updates == "early" else last, *((reuse,) if plan.reuse else ()))
