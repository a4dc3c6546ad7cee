"""Given regions and limits: plans of all bodies and of the outer graph together.

To the outer graph a region is one node, whose seconds and workspace are those of the point that is chosen on
the front of its body. A price, seconds a byte, chooses on all fronts at once; the outer graph is planned with
these choices; then each region takes the fastest point that fits what the outer plan leaves free while it
runs. Prices between those that choose the fastest and the smallest points everywhere are tried.

Where values may wait on the host, those of the outer graph do: a loop is a step beside which copies run. What
lives inside a part stays on the device.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from peakfold.cost.costs import Costs
from peakfold.errors import InfeasibleError
from peakfold.ir.graph import Graph
from peakfold.ir.plan import Compute, Plan, Region
from peakfold.plan.fission.alone import planned_alone
from peakfold.plan.fission.axes import Axes
from peakfold.plan.fission.choices import FINE, Choice, combined, few, pareto, picks_of, priced, together
from peakfold.plan.fission.derive import bare, derive
from peakfold.plan.fission.derived import Body, Derived
from peakfold.plan.fission.effort import Effort
from peakfold.plan.fission.likeness import Likeness, carried_over, likeness
from peakfold.plan.fission.prepare import prepare
from peakfold.plan.fission.program import CostsOf, Nest, outer_plan, planned
from peakfold.plan.schedule import planner
from peakfold.plan.schedule.arrays import tabulate
from peakfold.plan.schedule.bound import peak_bound
from peakfold.plan.schedule.found import Point, front_of, require_peak
from peakfold.plan.schedule.goal import Goal
from peakfold.plan.schedule.lower import lower_tables
from peakfold.plan.schedule.offload_search import Host
from peakfold.plan.schedule.simulate import simulate_tables
from peakfold.plan.schedule.timeline import Timeline

POINTS = 16
"""Points that are asked for on the front of a body."""
BETWEEN = 48
"""Points that are taken from between them."""
SPREAD = 8
"""Budgets of a whole front."""
ROUGH = 2000
"""Sets that are looked at for a bound that says how low budgets go."""
KEPT = 4
"""Sets of regions of which the graphs are kept."""
SHARE = 0.5
"""Of the time, for the fronts of bodies."""


@dataclass(frozen=True)
class Solved:
    """A plan with regions, and what it comes to.

    Attributes:
        plan: for the graph that was given.
        peak_bytes: predicted most bytes at once.
        seconds: predicted time of one step.
        states: number of plans that were decoded.
        front: plans met on the way that no other beats in both.
    """

    plan: Plan
    peak_bytes: int
    seconds: float
    states: int
    front: tuple[Point, ...]


@dataclass(frozen=True, slots=True)
class Spread:
    """The front of some regions.

    Attributes:
        points: as the search decoded them.
        fresh: those of them that nothing known beats.
    """

    points: tuple[Point, ...]
    fresh: tuple[Point, ...]


@dataclass
class Solver:
    """Solves regions of one graph after another set of regions; what it knows of bodies is kept.

    Attributes:
        graph: the program as captured.
        costs_of: gives the costs of a graph.
        effort: how long is searched.
        axes: of the graphs seen.
        host: what of the outer graph may wait outside the device; None for nothing.
    """

    graph: Graph
    costs_of: CostsOf
    effort: Effort = field(default_factory=Effort)
    axes: Axes = field(default_factory=Axes)
    host: Host | None = None

    def __post_init__(self) -> None:
        self.prepared = prepare(self.graph)
        self.states = 0
        self._known: dict[tuple[Region, ...], Derived] = {}
        self._fronts: dict[tuple[str, tuple[Region, ...]], tuple[Choice, ...]] = {}
        self._alike: dict[tuple[object, ...], tuple[Likeness, tuple[Choice, ...]]] = {}
        self._likeness: dict[str, Likeness] = {}

    def solve(
        self, regions: Sequence[Region], *, memory: int | None = None, latency: float | None = None
    ) -> Solved:
        """Return the best plan with these regions: their own plans, where they have any, are replaced.

        Args:
            regions: of the prepared graph; nested ones in the plan of the region around them.
            memory: most bytes at once; time is then least.
            latency: most seconds of a step; the peak is then least. Without either, time is.

        Raises:
            PlanError: a region is none.
            InfeasibleError: no plan within the limits was found.
        """
        derived, fronts = self._derived(regions)
        goal = Goal(memory, latency)
        best: _Tried | None = None
        points: list[Point] = []
        failed: InfeasibleError | None = None
        picks = list(picks_of(fronts))
        for picked in picks:
            if best is not None and self.effort.deadline.is_over:
                break
            try:
                tried = self._outer(derived, fronts, picked, goal, len(picks))
            except InfeasibleError as error:
                if failed is None or error.lowest_peak_bytes < failed.lowest_peak_bytes:
                    failed = error
                continue
            points += tried.front
            best = tried if best is None or _score(goal, tried) < _score(goal, best) else best
        if best is None:
            assert failed is not None
            raise failed
        point = Point(best.peak, best.seconds, self._whole(best.plan, best.picked))
        return Solved(point.plan, best.peak, best.seconds, self.states, front_of([*points, point]))

    def spread(self, regions: Sequence[Region], known: Sequence[Point] = ()) -> Spread:
        """Return plans with these regions from the fastest to the smallest; see `solve`.

        Args:
            regions: of the prepared graph.
            known: points that need no other that is as good.

        Raises:
            PlanError: a region is none.
        """
        derived, fronts = self._derived(regions)
        picks = list(picks_of(fronts))
        met: list[Point] = []
        own, ways = self._outer_costs(derived), list(picks_of(fronts, FINE))
        bound = peak_bound(tabulate(derived.graph, priced(derived.graph, own, picks[-1])), ROUGH)
        seen: set[Plan] = set()
        for picked in picks:
            if met and self.effort.deadline.is_over:
                break
            costs = priced(derived.graph, own, picked)
            found = planner.optimize_front(
                derived.graph,
                costs,
                count=SPREAD,
                deadline=self.effort.deadline,
                time_budget=self.effort.time_budget * (1 - SHARE) / len(picks),
                iterations=self.effort.iterations,
                seed=self.effort.seed,
                check=False,
                bound=bound,
            )
            self.states += found.states
            for one in found.points:
                if one is None or one.plan in seen:
                    continue
                seen.add(one.plan)
                timeline = _timeline(derived.graph, one.plan, costs)
                require_peak(one.peak_bytes, timeline.peak)
                for way, peak, seconds in combined(timeline, picked, ways):
                    met.append(Point(peak, seconds, self._whole(one.plan, way)))
        points = front_of(met)
        better = set(front_of((*known, *points)))
        return Spread(points, tuple(one for one in points if one in better))

    def _derived(self, regions: Sequence[Region]) -> tuple[Derived, dict[int, tuple[Choice, ...]]]:
        derived = self._graphs(tuple(bare(region) for region in regions))
        kinds = {self._kind_of(body) for body in derived.bodies.values()}
        share = self.effort.time_budget * SHARE / max(len(kinds), 1)
        return derived, {ident: self.front(body, share) for ident, body in derived.bodies.items()}

    def _graphs(self, regions: tuple[Region, ...]) -> Derived:
        """Return the outer graph and the bodies of regions without decisions; the last ones are kept."""
        if not regions:
            return Derived(self.graph, {})
        if regions not in self._known:
            if len(self._known) >= KEPT:
                self._known.pop(next(iter(self._known)))
            self._known[regions] = derive(self.prepared, regions, self.axes)
        return self._known[regions]

    def _whole(self, outer: Plan, picked: Mapping[int, Choice]) -> Plan:
        """Return the plan of the graph as captured: that of the outer graph, and those of the bodies."""
        regions = tuple(choice.region for choice in picked.values())
        return replace(outer, graph=self.graph.digest, regions=regions)

    def nest(self, plan: Plan) -> Nest:
        """Return what a plan for the graph comes to, step by step."""
        found = derive(self.prepared, plan.regions, self.axes) if plan.regions else Derived(self.graph, {})
        return planned(found, outer_plan(plan, found), self.costs_of)

    def forget(self) -> None:
        """Search the fronts of bodies anew when they are asked for again."""
        self._fronts.clear()
        self._alike.clear()

    # --- bodies ---

    def front(self, body: Body, seconds: float) -> tuple[Choice, ...]:
        """Return the ways to run a body, from the fastest to the smallest: less workspace takes more time."""
        regions = body.region.plan.regions if body.region.plan is not None else ()
        key = (body.part.digest, (replace(body.region, plan=None), *regions))
        if key not in self._fronts:
            self._fronts[key] = self._new_front(body, seconds)
        return self._fronts[key]

    def _new_front(self, body: Body, seconds: float) -> tuple[Choice, ...]:
        """Search the front of a body, or carry that of one that is alike over."""
        kind = self._kind_of(body)
        known = self._alike.get(kind)
        if known is None:
            found = tuple(pareto(self._choices(body, seconds)))
            if not body.derived.bodies:
                self._alike[kind] = (self._likeness_of(body), found)
            return found
        return carried_over(known[1], known[0], self._likeness_of(body), body)

    def _kind_of(self, body: Body) -> tuple[object, ...]:
        """What bodies that are alike have in common; with loops inside, each is one of its own."""
        if body.derived.bodies:
            return (body.loop.id, body.part.digest)
        return (body.length, body.size, *self._likeness_of(body).key)

    def _likeness_of(self, body: Body) -> Likeness:
        digest = body.part.digest
        if digest not in self._likeness:
            self._likeness[digest] = likeness(body.part, self.costs_of(body.part))
        return self._likeness[digest]

    def _choices(self, body: Body, seconds: float) -> Iterator[Choice]:
        """Yield points of the body's own front, for each of a few choices inside it."""
        inner = {ident: few(self.front(one, seconds / 2)) for ident, one in body.derived.bodies.items()}
        ways = list(together(inner))
        costs = self.costs_of(body.graph)
        bound = peak_bound(tabulate(body.graph, priced(body.graph, costs, ways[-1])), ROUGH)
        for at, way in enumerate(ways):
            if at and self.effort.deadline.is_over:
                return
            yield from self._points(body, priced(body.graph, costs, way), way, seconds / len(ways), bound)

    def _points(
        self, body: Body, costs: Costs, way: Mapping[int, Choice], seconds: float, bound: int
    ) -> Iterator[Choice]:
        tables = tabulate(body.graph, costs)
        plain = simulate_tables(tables, lower_tables(tables, Plan(body.graph.digest)), costs.link)
        least = max(bound - tables.resident, 1)
        spread = np.geomspace(max(plain.peak - tables.resident, 1), least, POINTS)
        found = planner.optimize_front(
            body.graph,
            costs,
            budgets=[tables.resident + int(nbytes) for nbytes in spread],
            deadline=self.effort.deadline,
            time_budget=seconds,
            iterations=self.effort.iterations,
            seed=self.effort.seed,
            check=False,
            bound=bound,
            between=BETWEEN,
        )
        self.states += found.states
        for point in (*found.points, *found.between):
            if point is not None:
                plan = replace(
                    point.plan,
                    graph=body.part.digest,
                    regions=tuple(choice.region for choice in way.values()),
                )
                own = None if plan == Plan(body.part.digest) else plan
                yield Choice(
                    point.peak_bytes - tables.resident,
                    body.parts * point.seconds,
                    replace(body.region, plan=own),
                )

    # --- outside ---

    def _outer(
        self,
        derived: Derived,
        fronts: Mapping[int, tuple[Choice, ...]],
        picked: Mapping[int, Choice],
        goal: Goal,
        among: int,
    ) -> "_Tried":
        """Plan the outer graph with a choice for each body; then let each body take what is left free."""
        costs = priced(derived.graph, self._outer_costs(derived), picked)
        effort = replace(self.effort, time_budget=self.effort.time_budget * (1 - SHARE) / among)
        found = planned_alone(derived.graph, costs, goal, effort, self.host)
        self.states += found.states
        tables = tabulate(derived.graph, costs)
        timeline = simulate_tables(tables, lower_tables(tables, found.plan), costs.link)
        free = dict.fromkeys(picked, goal.memory if goal.memory is not None else found.peak_bytes)
        for row, step in enumerate(timeline.steps):
            if isinstance(step, Compute) and step.run.node in picked:
                others = timeline.during[row] - timeline.workspace[row]
                limit = goal.memory if goal.memory is not None else found.peak_bytes
                free[step.run.node] = min(free[step.run.node], limit - others)
        taken = {
            ident: next((c for c in fronts[ident] if c.workspace <= free[ident]), choice)
            for ident, choice in picked.items()
        }
        if self.host is None:
            taken = _finest(goal, timeline, picked, [taken, *picks_of(fronts, FINE)])
        costs = priced(derived.graph, self._outer_costs(derived), taken)
        timeline = _timeline(derived.graph, found.plan, costs)
        met = tuple(replace(one, plan=self._whole(one.plan, picked)) for one in found.front)
        return _Tried(found.plan, taken, timeline.peak, timeline.seconds, met)

    def _outer_costs(self, derived: Derived) -> Costs:
        return self.costs_of(derived.graph)


@dataclass(frozen=True, slots=True)
class _Tried:
    plan: Plan
    picked: Mapping[int, Choice]
    peak: int
    seconds: float
    front: tuple[Point, ...]


def _finest(
    goal: Goal, timeline: Timeline, picked: Mapping[int, Choice], ways: Sequence[dict[int, Choice]]
) -> dict[int, Choice]:
    """Return what is best within the limits of what a plan of the outer graph allows; else the first."""
    least, best = None, ways[0]
    for way, peak, seconds in combined(timeline, picked, ways):
        if seconds > goal.seconds or (goal.memory is not None and peak > goal.memory):
            continue
        rank = (float(peak), seconds) if goal.by_bytes else (seconds, float(peak))
        if least is None or rank < least:
            least, best = rank, way
    return best


def _timeline(graph: Graph, plan: Plan, costs: Costs) -> Timeline:
    tables = tabulate(graph, costs)
    return simulate_tables(tables, lower_tables(tables, plan), costs.link)


def _score(goal: Goal, tried: _Tried) -> tuple[float, float]:
    """What is minimized, and what decides among equals."""
    return (float(tried.peak), tried.seconds) if goal.by_bytes else (tried.seconds, float(tried.peak))


def solve(
    graph: Graph,
    regions: Sequence[Region],
    costs_of: CostsOf,
    *,
    memory: int | None = None,
    latency: float | None = None,
    effort: Effort | None = None,
) -> Solved:
    """Return the best plan of a graph with these regions; see `Solver.solve`.

    Args:
        graph: the program as captured.
        regions: of `prepare` of it.
        costs_of: gives the costs of a graph.
        memory: most bytes at once.
        latency: most seconds of a step.
        effort: how long is searched.

    Raises:
        PlanError: a region is none.
        InfeasibleError: no plan within the limits was found.
    """
    return Solver(graph, costs_of, effort or Effort()).solve(regions, memory=memory, latency=latency)
