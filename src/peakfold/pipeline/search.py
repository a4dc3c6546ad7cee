"""The search stage: the plan cache, then the planner."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from peakfold.cost.costs import Costs
from peakfold.ir.graph import Graph
from peakfold.ir.plan import Plan
from peakfold.options import Options
from peakfold.pipeline import plan_cache
from peakfold.pipeline.ctrl_c import CtrlC, postponed
from peakfold.pipeline.host import is_offloading, limit
from peakfold.pipeline.plan_cache import Kept
from peakfold.pipeline.request import Request
from peakfold.pipeline.searches import Searches, side_by_side
from peakfold.pipeline.stage import Stages
from peakfold.plan.fission.program import CostsOf
from peakfold.plan.schedule import offload_search, planner
from peakfold.plan.schedule.offload_search import Host
from peakfold.plan.search import joint
from peakfold.report.units import bytes_text

INTERRUPTED = "interrupted"


@dataclass(frozen=True)
class Bounds:
    """What the search must keep to, as the simulator counts: bytes and seconds; None for free."""

    memory: int | None = None
    seconds: float | None = None


def find(
    graph: Graph,
    costs: Costs,
    bounds: Bounds,
    asked: Request,
    options: Options,
    stages: Stages,
    costs_of: CostsOf,
) -> tuple[Kept, Sequence[str]]:
    """Return the best plan within bounds, and what went wrong beside it.

    Args:
        graph: the program.
        costs: of its nodes.
        bounds: what the plan must keep to.
        asked: the request.
        options: of the environment.
        stages: told of progress.
        costs_of: gives the costs of the graphs that regions make.

    Raises:
        InfeasibleError: none was found within the budget.
    """
    folder = options.cache / "plans"
    effort = (bounds, asked.time_budget, asked.iterations, asked.seed)
    key = plan_cache.key_of(graph, costs, (*effort, *kind_of(asked, costs)))
    known, unread = plan_cache.load(folder, key, graph)
    faults = [] if unread is None else [unread]
    if known is not None and not asked.resume and not asked.save_search:
        return known, faults
    found, interrupted = searched(graph, costs, bounds, asked, stages, costs_of)
    kept = Kept(found.plan, found.lower_bound_bytes, found.stop_reason, found.states)
    if interrupted:
        kept = replace(kept, stop_reason=INTERRUPTED)
        return kept, [*faults, "the search was interrupted: this is the best plan that it had found"]
    unkept = plan_cache.store(folder, key, graph, kept)
    return kept, faults if unkept is None else [*faults, unkept]


def searched(
    graph: Graph, costs: Costs, bounds: Bounds, asked: Request, stages: Stages, costs_of: CostsOf
) -> tuple[planner.Found, bool]:
    """Search without the plan cache; return what was found, and whether the user ended it.

    The arguments are those of `find`.

    Raises:
        InfeasibleError: nothing was found within the bounds.
    """
    with postponed() as ctrl_c:
        found = _search(asked, costs_of, graph, costs)(
            graph,
            costs,
            memory=bounds.memory,
            latency=bounds.seconds,
            time_budget=asked.time_budget,
            iterations=asked.iterations,
            seed=asked.seed,
            progress=lambda state: _tell(stages, state, ctrl_c),
        )
    return found, ctrl_c.pressed or found.stop_reason == INTERRUPTED


def kind_of(asked: Request, costs: Costs) -> tuple[object, ...]:
    """Return which plans a request allows, apart from its bounds."""
    away = (costs.link, asked.host_memory, _lends(asked)) if is_offloading(asked) else ()
    return (*away, "fission") if asked.fission else away


def _search(asked: Request, costs_of: CostsOf, graph: Graph, costs: Costs) -> Callable[..., planner.Found]:
    """Return the search that a request means."""
    host = Host(limit(asked), _lends(asked)) if is_offloading(asked) else None
    if asked.fission:
        moved = () if host is None else (asked.host_memory, host.lends)
        key = plan_cache.key_of(graph, costs, (asked.seed, *moved) if moved else asked.seed)
        kept = Searches(asked.resume, asked.save_search, graph, key)
        workers = side_by_side(asked.simulated)
        measured = not asked.simulated
        search = partial(joint.optimize, costs_of=costs_of, workers=workers, host=host, measured=measured)
        return partial(search, saved=kept.load(), save=kept.store if asked.save_search else None)
    if host is not None:
        return partial(offload_search.optimize, host_memory=host.memory, lends=host.lends)
    return planner.optimize


def _lends(asked: Request) -> bool:
    """Whether the caller's own tensors may wait on the host: they take nothing of an arena."""
    return asked.memory is None or not asked.memory.arena


def _tell(stages: Stages, state: planner.Progress, ctrl_c: CtrlC) -> None:
    stages.progress("search", state.share, _note(state))
    if ctrl_c.pressed:
        raise KeyboardInterrupt


def _note(state: planner.Progress) -> str:
    if state.peak_bytes is None:
        return f"{state.states:,} plans, none within the limits yet"
    return f"{state.states:,} plans, best {bytes_text(state.peak_bytes)}"


def unsearched(plan: Plan, reason: str) -> Kept:
    """Return a plan that no search made."""
    return Kept(plan, 0, reason, 0)
