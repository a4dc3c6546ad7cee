"""A plan in words."""

from collections.abc import Iterable
from itertools import groupby

from peakfold.cost.costs import Costs
from peakfold.ir.graph import Graph
from peakfold.ir.plan import Plan, Recompute
from peakfold.report.model import Decision

SHOWN = 4


def decisions_of(graph: Graph, plan: Plan, costs: Costs) -> tuple[Decision, ...]:
    """Return the decisions of a plan: recomputation by module, those of most bytes first, then the rest."""
    found = [_recompute(graph, costs, module, group) for module, group in _by_module(graph, plan.recompute)]
    found.sort(key=lambda decision: (-decision.nbytes, decision.what))
    return (*found, *_order(graph, plan), *_storage(plan))


def _by_module(graph: Graph, recompute: Iterable[Recompute]) -> list[tuple[str, list[Recompute]]]:
    def module(item: Recompute) -> str:
        return graph.node[item.node].origin.module

    position = {node.id: index for index, node in enumerate(graph.nodes)}
    ordered = sorted(recompute, key=lambda item: (module(item), position[item.node], position[item.use]))
    return [(name, list(group)) for name, group in groupby(ordered, key=module)]


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
