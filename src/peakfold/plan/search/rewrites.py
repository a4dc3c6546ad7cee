"""Rewrites as moves of a search: a state is a rewritten graph, and each is planned as a whole.

MAGIS (ASPLOS 2024) has, besides fission, aggregation (operators that share an operand become one) and interim
transformations, which neither save nor cost anything until something else is planned around them: parts of a
storage are copied so that the whole can go, indices are kept in fewer bits, a gradient is made without the
tensor in between. Here each is a family; a move does what a family offers, everywhere in the graph. Graphs
are told apart by their canonical hash, kept up to date from move to move, and the plan of a state is carried
to the next by the map of ids before anything is searched there.
"""

import heapq
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from peakfold.cost.costs import Costs
from peakfold.errors import InfeasibleError
from peakfold.graph.rewrite.change import Ids, Refusal
from peakfold.graph.rewrite.memory import copied_parts, fused_losses, narrow_indices
from peakfold.graph.rewrite.move import Move, Retype
from peakfold.graph.rewrite.templates.products import merged_convolutions, merged_products
from peakfold.graph.wl import Hashed, hashed, hashed_after
from peakfold.ir.graph import Graph, Value
from peakfold.ir.plan import Plan, Recompute
from peakfold.plan.schedule import planner
from peakfold.plan.schedule.arrays import tabulate
from peakfold.plan.schedule.found import Point
from peakfold.plan.schedule.frame import fault_of, frame
from peakfold.plan.schedule.goal import Goal
from peakfold.plan.schedule.lower import lower
from peakfold.plan.schedule.simulate import simulate

Family = Callable[[Graph], Iterator[Move]]
CostsOf = Callable[[Graph], Costs]
Search = Callable[[Graph, Costs], Sequence[Point]]
"""Gives plans of a graph, the best within the limits first; raises InfeasibleError where none keeps them."""

INTERIM: Mapping[str, Family] = {
    "copied_parts": copied_parts,
    "narrow_indices": narrow_indices,
    "fused_losses": fused_losses,
}
AGGREGATION: Mapping[str, Family] = {
    "merged_products": merged_products,
    "merged_convolutions": merged_convolutions,
}
FAMILIES: Mapping[str, Family] = {**INTERIM, **AGGREGATION}
STATES = 12
CARRIED = 8
"""Plans of a state that are tried on the next."""
SAME = Ids()
"""Every Value is where it was."""


@dataclass(frozen=True)
class State:
    """A rewritten graph, and the best plan that is known for it.

    Attributes:
        hashed: the graph with its hash.
        ids: where the Values of the given graph are.
        since: where the Values of the state before are.
        families: what was done, in order, with the number of places.
        keeps_bits: whether all of it keeps every bit.
        carried: the best of the plans of the state before, on this graph; None where there were none.
        point: the plan that was searched; None where none keeps the limits.
        front: other plans of it.
        lowest: the lowest peak that was met.
    """

    hashed: Hashed
    ids: Ids = SAME
    since: Ids = SAME
    families: tuple[tuple[str, int], ...] = ()
    keeps_bits: bool = True
    carried: Point | None = None
    point: Point | None = None
    front: tuple[Point, ...] = ()
    lowest: int = 0

    @property
    def graph(self) -> Graph:
        """The graph."""
        return self.hashed.graph


def by_planner(goal: Goal, *, iterations: int, seconds: float, seed: int = 0) -> Search:
    """Return the search that splits and offloads nothing.

    Args:
        goal: the limits.
        iterations: proposals of the search of one graph.
        seconds: most wall seconds of it.
        seed: of all searches.
    """

    def search(graph: Graph, costs: Costs) -> Sequence[Point]:
        found = planner.optimize(
            graph,
            costs,
            memory=goal.memory,
            latency=goal.latency,
            time_budget=seconds,
            iterations=iterations,
            seed=seed,
        )
        return (found.point, *found.front)

    return search


def rewritten(
    graph: Graph,
    costs_of: CostsOf,
    retype: Retype,
    search: Search,
    goal: Goal,
    *,
    families: Mapping[str, Family] = FAMILIES,
    keep_bits: bool = True,
    most: int = STATES,
) -> tuple[State, ...]:
    """Return the states that were planned, the best first; the given graph wins ties.

    Args:
        graph: the program.
        costs_of: gives the costs of a rewritten graph.
        retype: gives the types after a move.
        search: plans a graph.
        goal: what it is to keep to; a plan that is carried is held to it too.
        families: moves, by name.
        keep_bits: leave out what rounds anew.
        most: graphs that are planned.
    """
    start = _planned(State(hashed(graph)), costs_of, search, goal)
    states, seen = [start], {start.hashed.value}
    queue = [(_rank(start, goal), 0, start)]
    while queue and len(states) < most:
        _, _, state = heapq.heappop(queue)
        for after in neighbours(state, families, retype, keep_bits):
            if after.hashed.value in seen or len(states) >= most:
                continue
            seen.add(after.hashed.value)
            after = replace(after, carried=_carried(state, after, costs_of, goal))
            after = _planned(after, costs_of, search, goal)
            states.append(after)
            heapq.heappush(queue, (_rank(after, goal), len(states), after))
    return tuple(sorted(states, key=lambda one: _rank(one, goal)))


def neighbours(
    state: State, families: Mapping[str, Family], retype: Retype, keep_bits: bool
) -> Iterator[State]:
    """Yield the states that one family more leads to."""
    for name, family in families.items():
        if name in dict(state.families):
            continue
        after = moved(state, name, family, retype, keep_bits)
        if after is not None:
            yield after


def moved(state: State, name: str, family: Family, retype: Retype, keep_bits: bool) -> State | None:
    """Return a state after a family's moves everywhere, None where it has none that can be made.

    What a move has made is not moved again.
    """
    now, since, count, same = state.hashed, SAME, 0, state.keeps_bits
    tried: set[tuple[str, int]] = set()
    while True:
        offered = (one for one in family(now.graph) if one.keeps_bits or not keep_bits)
        there = state.graph.node
        first = (one for one in offered if tried.isdisjoint(one.at))
        move = next((one for one in first if all(ident in there for _, ident in one.at)), None)
        if move is None:
            break
        tried |= move.at
        done = move.apply()
        if isinstance(done, Refusal):
            continue
        before = now.graph.node
        changed = frozenset(node.id for node in done.graph.nodes if before.get(node.id) is not node)
        typed = retype(done.graph, changed)
        if typed is None:
            continue
        now, since, count = hashed_after(now, typed), since.then(done.ids), count + 1
        same = same and move.keeps_bits
    families = (*state.families, (name, count))
    return State(now, state.ids.then(since), since, families, same) if count else None


def remapped(plan: Plan, ids: Ids, graph: Graph) -> Plan:
    """Return a plan for a rewritten graph: of its decisions those to recompute what is still there.

    What has become part of something else is computed again as a whole.

    Example:
        >>> from peakfold.ir.graph import Input, Node, Op, Output
        >>> from peakfold.ir.types import tensor
        >>> x = Input(0, "x", "batch", tensor(2))
        >>> y = Node(7, "y", Op("aten.exp.default"), (Value(0),), (), (tensor(2),), (None,))
        >>> after = Graph((x,), (y,), (Output("y", Value(7)),))
        >>> plan = Plan("", recompute=(Recompute(1, 2), Recompute(3, 4)))
        >>> ids = Ids({Value(1): Value(7), Value(2): Value(7)}, frozenset((1, 2, 3)))
        >>> remapped(plan, ids, after).recompute
        (Recompute(node=7, use=7, hold=True, since=None),)
    """

    def there(ident: int) -> int | None:
        found = ids.of(Value(ident))
        return None if found is None else graph.storage(found).node

    kept = {
        (node, use): Recompute(node, use, item.hold, None if item.since is None else there(item.since))
        for item in plan.recompute
        if (node := there(item.node)) is not None and (use := there(item.use)) is not None
    }
    return Plan(graph.digest, tuple(kept[place] for place in sorted(kept)), plan.updates, plan.reuse)


def _carried(before: State, after: State, costs_of: CostsOf, goal: Goal) -> Point | None:
    """Return the best of the plans of the state before on the next one, without what cannot be there.

    Those that came nearest to the limits are tried: a graph that takes fewer bytes may do with less time.
    """
    near = sorted(before.front, key=lambda one: _distance(one, goal))[:CARRIED]
    if not near:
        return None
    costs = costs_of(after.graph)
    here = frame(tabulate(after.graph, costs))
    found = []
    for point in near:
        plan = remapped(point.plan, after.since, after.graph)
        plan = replace(plan, recompute=tuple(one for one in plan.recompute if fault_of(here, one) is None))
        timeline = simulate(after.graph, costs, lower(after.graph, plan))
        found.append(Point(timeline.peak, timeline.seconds, plan))
    return min(found, key=lambda one: (not _keeps(one, goal), *goal.order(one.peak_bytes, one.seconds)))


def _distance(point: Point, goal: Goal) -> float:
    if goal.memory is not None:
        return abs(point.peak_bytes - goal.memory)
    return abs(point.seconds - goal.seconds) if goal.by_bytes else point.seconds


def _keeps(point: Point | None, goal: Goal) -> bool:
    return point is not None and goal.keeps(point.peak_bytes, point.seconds)


def _planned(state: State, costs_of: CostsOf, search: Search, goal: Goal) -> State:
    carried = state.carried if _keeps(state.carried, goal) else None
    try:
        front = tuple(search(state.graph, costs_of(state.graph)))
    except InfeasibleError as error:
        known = () if carried is None else (carried,)
        return replace(state, point=carried, front=known, lowest=error.lowest_peak_bytes)
    best = front[0]
    if carried is not None:
        best = min(best, carried, key=lambda one: goal.order(one.peak_bytes, one.seconds))
    return replace(state, point=best, front=(best, *front), lowest=best.peak_bytes)


def _rank(state: State, goal: Goal) -> tuple[float, float, int]:
    """Return how good a state is, less is better: those that keep the limits first, the given graph first."""
    if state.point is None:
        return (float("inf"), float(state.lowest), len(state.families))
    return (*goal.order(state.point.peak_bytes, state.point.seconds), len(state.families))
