"""Rewrites as moves of a search: a state is a rewritten graph, and each is planned as a whole.

MAGIS (ASPLOS 2024) has, besides fission, aggregation (operators that share an operand become one) and interim
transformations, which neither save nor cost anything until something else is planned around them: parts of a
storage are copied so that the whole can go, indices are kept in fewer bits, a gradient is made without the
tensor in between. Here each is a family; a move does what a family offers, everywhere in the graph. Graphs
are told apart by their canonical hash, kept up to date from move to move, and the plan of a state is carried
to the next by the map of ids before anything is searched there.
"""

import heapq
from collections.abc import Callable, Iterator, Mapping
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
from peakfold.plan.schedule.found import Point
from peakfold.plan.schedule.goal import Goal
from peakfold.plan.schedule.lower import lower
from peakfold.plan.schedule.simulate import simulate

Family = Callable[[Graph], Iterator[Move]]
CostsOf = Callable[[Graph], Costs]

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
        carried: the plan of the state before, on this graph; None where it cannot be.
        point: the plan that was searched; None where none keeps the limits.
        lowest: the lowest peak that was met.
    """

    hashed: Hashed
    ids: Ids = SAME
    since: Ids = SAME
    families: tuple[tuple[str, int], ...] = ()
    carried: Point | None = None
    point: Point | None = None
    lowest: int = 0

    @property
    def graph(self) -> Graph:
        """The graph."""
        return self.hashed.graph


@dataclass(frozen=True)
class Effort:
    """What each state may take.

    Attributes:
        iterations: proposals of the search of one graph.
        seconds: most wall seconds of it.
        states: most graphs that are planned.
        seed: of all searches.
    """

    iterations: int = 200
    seconds: float = 10.0
    states: int = STATES
    seed: int = 0


def rewritten(
    graph: Graph,
    costs_of: CostsOf,
    retype: Retype,
    *,
    memory: int | None = None,
    latency: float | None = None,
    families: Mapping[str, Family] = FAMILIES,
    keep_bits: bool = True,
    effort: Effort | None = None,
) -> tuple[State, ...]:
    """Return the states that were planned, the best first; the given graph wins ties.

    Args:
        graph: the program.
        costs_of: gives the costs of a rewritten graph.
        retype: gives the types after a move.
        memory: most bytes at once; seconds are then least.
        latency: most seconds; without ``memory`` the peak is then least.
        families: moves, by name.
        keep_bits: leave out what rounds anew.
        effort: of the search.
    """
    goal, effort = Goal(memory, latency), effort or Effort()
    start = _planned(State(hashed(graph)), costs_of, goal, effort)
    states, seen = [start], {start.hashed.value}
    queue = [(_rank(start, goal), 0, start)]
    while queue and len(states) < effort.states:
        _, _, state = heapq.heappop(queue)
        for name, family in families.items():
            if name in dict(state.families) or len(states) >= effort.states:
                continue
            after = moved(state, name, family, retype, keep_bits)
            if after is None or after.hashed.value in seen:
                continue
            seen.add(after.hashed.value)
            after = replace(after, carried=_carried(state, after, costs_of))
            after = _planned(after, costs_of, goal, effort)
            states.append(after)
            heapq.heappush(queue, (_rank(after, goal), len(states), after))
    return tuple(sorted(states, key=lambda one: _rank(one, goal)))


def moved(state: State, name: str, family: Family, retype: Retype, keep_bits: bool) -> State | None:
    """Return a state after a family's moves everywhere, None where it has none that can be made.

    What a move has made is not moved again.
    """
    now, since, count = state.hashed, SAME, 0
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
    families = (*state.families, (name, count))
    return State(now, state.ids.then(since), since, families) if count else None


def remapped(plan: Plan, ids: Ids, graph: Graph) -> Plan:
    """Return a plan for a rewritten graph: decisions about what is gone are left out.

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
        return None if found is None or found.node not in graph.node else found.node

    kept = [
        Recompute(node, use, item.hold, None if item.since is None else there(item.since))
        for item in plan.recompute
        if (node := there(item.node)) is not None and (use := there(item.use)) is not None
    ]
    return replace(plan, graph=graph.digest, recompute=tuple(sorted(set(kept), key=_place)), order=())


def _place(item: Recompute) -> tuple[int, int]:
    return item.node, item.use


def _carried(before: State, after: State, costs_of: CostsOf) -> Point | None:
    """Return the plan of the state before on the next one, simulated; None where it is not legal there."""
    if before.point is None:
        return None
    plan = remapped(before.point.plan, after.since, after.graph)
    reads = {(value.node, reader) for value, ids in after.graph.users.items() for reader in ids}
    legal = tuple(item for item in plan.recompute if (item.node, item.use) in reads)
    plan = replace(plan, recompute=legal)
    timeline = simulate(after.graph, costs_of(after.graph), lower(after.graph, plan))
    return Point(timeline.peak, timeline.seconds, plan)


def _planned(state: State, costs_of: CostsOf, goal: Goal, effort: Effort) -> State:
    costs = costs_of(state.graph)
    try:
        found = planner.optimize(
            state.graph,
            costs,
            memory=goal.memory,
            latency=goal.latency,
            time_budget=effort.seconds,
            iterations=effort.iterations,
            seed=effort.seed,
        )
    except InfeasibleError as error:
        return replace(state, lowest=error.lowest_peak_bytes)
    point = Point(found.peak_bytes, found.seconds, found.plan)
    lowest = min(one.peak_bytes for one in (*found.front, point))
    return replace(state, point=_better(state.carried, point, goal), lowest=lowest)


def _better(carried: Point | None, found: Point, goal: Goal) -> Point:
    """Return the better plan of a graph: one that was carried counts where it keeps the limits."""
    if carried is None or carried.seconds > goal.seconds:
        return found
    if goal.memory is not None and carried.peak_bytes > goal.memory:
        return found
    return min(found, carried, key=lambda one: _key(one, goal))


def _key(point: Point, goal: Goal) -> tuple[float, float]:
    return (point.peak_bytes, point.seconds) if goal.by_bytes else (point.seconds, point.peak_bytes)


def _rank(state: State, goal: Goal) -> tuple[float, float, int]:
    """Return how good a state is, less is better: those that keep the limits first, the given graph first."""
    if state.point is None:
        return (float("inf"), float(state.lowest), len(state.families))
    return (*_key(state.point, goal), len(state.families))
