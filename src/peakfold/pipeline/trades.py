"""Rewrites that trade seconds for bytes: each combination is planned, and the best is kept where it pays."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from peakfold.bridge.runtime.retype import retyped
from peakfold.cost.costs import Costs
from peakfold.ir.graph import Graph
from peakfold.ir.text import print_graph
from peakfold.pipeline.moves import Moves, reached
from peakfold.pipeline.reporting import Facts
from peakfold.pipeline.request import Request
from peakfold.pipeline.run import Run
from peakfold.pipeline.search import Bounds, searched
from peakfold.plan.schedule.found import Point
from peakfold.plan.schedule.goal import Goal
from peakfold.plan.search.rewrites import (
    FAMILIES,
    INTERIM,
    STATES,
    Family,
    State,
    rewritten,
)
from peakfold.report.units import bytes_text

SHARE = 0.25
"""Of the time of the search, for choosing a graph."""
FASTER = 0.99
"""Part of the seconds of the given graph's plan that another's may take, where bytes are limited."""


def traded(run: Run, facts: Facts, seconds: float) -> Facts:
    """Return what is known of the program after those rewrites for memory that pay; of the given one else.

    Args:
        run: the optimization; its task is rewritten too.
        facts: of the program as it is.
        seconds: what it takes with nothing recomputed, simulated.
    """
    asked = run.asked
    if asked.plan is not None:
        return _planned_for(run, facts, asked.plan)
    goal = Goal(facts.budget, None if asked.latency is None else asked.latency * seconds)
    families = INTERIM if not asked.rounding else FAMILIES
    count = _count(facts.captured.graph, families, not asked.rounding) if _asks(asked, goal) else 0
    if not count:
        return facts
    most = min(STATES, 2**count)
    costs_of = _remembered(run.costs, facts)
    chosen = _Choice(run, goal, _for_one(asked, most), costs_of)
    states = rewritten(
        facts.captured.graph,
        costs_of,
        retyped,
        chosen.plans,
        goal,
        families=families,
        keep_bits=not asked.rounding,
        most=most,
    )
    given = next(state for state in states if not state.families)
    best = states[0] if _pays(states[0], given, goal) else given
    facts = replace(facts, asked=chosen.left(asked), known=best.point)
    return facts if best is given else _taken(run, facts, best, costs_of(best.graph), _note(best, given))


@dataclass
class _Choice:
    """Plans one graph after the other.

    Attributes:
        run: the optimization.
        goal: the limits.
        asked: the search of each.
        costs_of: gives the costs of graphs.
        interrupted: the user wants no more of it.
    """

    run: Run
    goal: Goal
    asked: Request
    costs_of: Callable[[Graph], Costs]
    interrupted: bool = False

    def plans(self, graph: Graph, costs: Costs) -> Sequence[Point]:
        """Return plans of a graph, the best first."""
        asked = _ended(self.asked) if self.interrupted else self.asked
        bounds = Bounds(self.goal.memory, self.goal.latency)
        with self.run.stages("search", "with other rewrites"):
            found, pressed = searched(graph, costs, bounds, asked, self.run.stages, self.costs_of)
        self.interrupted = self.interrupted or pressed
        return (found.point, *found.front)

    def left(self, asked: Request) -> Request:
        """Return what is left of the search that was asked for."""
        if self.interrupted:
            return _ended(asked)
        return (
            asked
            if asked.iterations is not None
            else replace(asked, time_budget=(1 - SHARE) * asked.time_budget)
        )


def _ended(asked: Request) -> Request:
    """Return what is left of a search that the user ended."""
    return replace(asked, time_budget=0.0, iterations=0)


def _for_one(asked: Request, most: int) -> Request:
    """Return the search of each of so many graphs."""
    alone = replace(asked, resume=None, save_search=None)
    if asked.iterations is not None:
        return alone
    return replace(alone, time_budget=SHARE * asked.time_budget / most)


def _asks(asked: Request, goal: Goal) -> bool:
    """Whether bytes matter at all: nothing is traded for what is free."""
    return asked.rewrite and (goal.memory is not None or goal.latency is not None)


def _count(graph: Graph, families: Mapping[str, Family], keep_bits: bool) -> int:
    """Return how many families have a move in a graph."""
    return sum(any(one.keeps_bits or not keep_bits for one in family(graph)) for family in families.values())


def _remembered(costs_of: Callable[[Graph], Costs], facts: Facts) -> Callable[[Graph], Costs]:
    known = {facts.captured.graph.digest: facts.costs}

    def of(graph: Graph) -> Costs:
        if graph.digest not in known:
            known[graph.digest] = costs_of(graph)
        return known[graph.digest]

    return of


def _pays(best: State, given: State, goal: Goal) -> bool:
    """Whether a rewritten graph is better than the given one by what can be told apart."""
    if best is given or best.point is None or given.point is None:
        return best is not given
    if goal.by_bytes:
        return True
    return best.point.seconds <= FASTER * given.point.seconds


def _note(best: State, given: State) -> str:
    done = ", ".join(f"{name} at {count} place{'s' * (count > 1)}" for name, count in best.families)
    if best.point is None:
        return f"rewritten for memory: {done}; no first plan keeps the limits, with it the peak is the lowest"
    found = f"{bytes_text(best.point.peak_bytes)} in {best.point.seconds:.4g} s"
    if given.point is None:
        return f"rewritten for memory: {done}; a first plan has {found}, without it none keeps the limits"
    without = f"{bytes_text(given.point.peak_bytes)} in {given.point.seconds:.4g} s"
    return f"rewritten for memory: {done}; a first plan has {found}, without it {without}"


def _taken(run: Run, facts: Facts, state: State, costs: Costs, note: str) -> Facts:
    """Go on with a state's graph."""
    names = tuple(name for name, _ in state.families)
    rounds = run.task.rounds or not state.keeps_bits
    run.task = replace(run.task, rewriter=Moves(names, run.task.rewriter), rounds=rounds)
    run.note(note)
    run.stages.dump("traded.txt", print_graph(state.graph))
    own = sum(facts.costs.seconds.get(node.id, 0.0) for node in facts.captured.graph.nodes)
    captured = replace(facts.captured, graph=state.graph)
    return replace(facts, captured=captured, costs=costs, own_seconds=own)


def _planned_for(run: Run, facts: Facts, plan: str) -> Facts:
    """Return the rewritten program that a plan is for; the given one where it is for none of them."""
    if not run.asked.rewrite or facts.captured.graph.digest in plan:
        return facts
    state = next((one for one in reached(facts.captured.graph) if one.graph.digest in plan), None)
    if state is None:
        return facts
    done = ", ".join(name for name, _ in state.families)
    return _taken(run, facts, state, run.costs(state.graph), f"rewritten for memory, as the plan is: {done}")
