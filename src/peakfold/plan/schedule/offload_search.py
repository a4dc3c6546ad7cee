"""The planner where values may wait on the host: recomputation and offloading, in turn.

First the search without offloads runs; every plan on its front, too large as most are, is brought into
the budget by offloading, and by packing where values allow it. Then, in rounds, each of the two decides
with the other's decisions known: what the best plan so far can hide on the queues counts as no bytes, a
search finds what else to compute again, and each plan on its front is brought into the budget with the
true bytes. Whatever is found is simulated exactly, and only that counts.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from peakfold.cost.costs import Costs
from peakfold.ir.graph import Graph
from peakfold.ir.plan import Plan
from peakfold.plan.memory.host import host_layout
from peakfold.plan.schedule.bound import offload_bound
from peakfold.plan.schedule.encode import plan_of
from peakfold.plan.schedule.explore import Candidate, Explorer
from peakfold.plan.schedule.found import Found, Point, Progress, StopReason, front_of
from peakfold.plan.schedule.frame import frame
from peakfold.plan.schedule.goal import Goal
from peakfold.plan.schedule.infeasible import infeasible
from peakfold.plan.schedule.lower import lower_tables
from peakfold.plan.schedule.offloading import Offloader
from peakfold.plan.schedule.packed import can_pack, with_packed
from peakfold.plan.schedule.search import Search
from peakfold.plan.schedule.simulate import simulate_tables
from peakfold.plan.schedule.transfers import Movable

FIRST = 0.4
"""Part of the time, or of the iterations, that the search without offloads has."""
ROUNDS = 6
"""Rounds for which the rest is enough."""
MARGINS = (0.97, 1.0, 0.93, 0.9, 0.85, 0.8)
"""Targets of a round's annealings, as parts of the budget: bytes beside a copy are not seen there."""
WORSE = 4
"""Plans in a row that do no better, after which a front is left."""
STEPS_DOWN = 7
"""Halvings that look for the lowest peak within a time."""


@dataclass(frozen=True, slots=True)
class Host:
    """What may wait outside the device.

    Attributes:
        memory: most bytes there; None for no limit.
        lends: whether the caller's own tensors may wait there, too.
    """

    memory: int | None = None
    lends: bool = True


@dataclass
class _Effort:
    """How much of a search's time and iterations is used."""

    began: float
    seconds: float
    iterations: int | None
    proposals: int = 0

    def stop(self, share: float = 1.0) -> StopReason | None:
        if self.iterations is not None:
            return "iterations" if self.proposals >= share * self.iterations else None
        return "time" if time.monotonic() - self.began >= share * self.seconds else None


def optimize(
    graph: Graph,
    costs: Costs,
    *,
    memory: int | None = None,
    latency: float | None = None,
    host_memory: int | None = None,
    lends: bool = True,
    time_budget: float = 60.0,
    iterations: int | None = None,
    seed: int = 0,
    progress: Callable[[Progress], None] | None = None,
) -> Found:
    """Find the plan that keeps the limits, offloads included; the arguments are those of `planner.optimize`.

    Args:
        graph: the program.
        costs: seconds and hidden bytes of each node, and how fast copies are.
        memory: most bytes at once on the device.
        latency: most seconds of a step.
        host_memory: most bytes on the host; None for no limit.
        lends: whether the caller's own tensors may wait there, too.
        time_budget: seconds after which the search stops.
        iterations: number of proposals after which it stops; the time then does not count.
        seed: of the random stream.
        progress: called after each part of the search.

    Raises:
        InfeasibleError: no plan within the limits was found.
    """
    budgets = () if memory is None else (memory,)
    share = None if iterations is None else int(FIRST * iterations)
    search = Search(graph, costs, seed, budgets, FIRST * time_budget, share, progress)
    search.bound = _bound(search) if lends else search.bound
    reason = search.run(Goal(memory, latency))
    goal = Goal(memory, latency)
    joint = _Joint(search, costs, goal, host_memory, lends)
    joint.effort = _Effort(search.started, time_budget, iterations, search.proposals)
    helps = memory is not None or (latency is not None and joint.best is not None)  # copies save no seconds
    if reason not in ("nothing to do", "interrupted") and helps:
        try:
            reason = joint.run(reason)
        except KeyboardInterrupt:
            reason = "interrupted"
    best = joint.best or _kept(search, goal)
    if best is None:
        error = infeasible(search, goal, reason)
        lowest = joint.lowest()
        error.lowest_peak_bytes = min(error.lowest_peak_bytes, lowest or error.lowest_peak_bytes)
        raise error
    return Found(
        plan=best.plan,
        peak_bytes=best.peak_bytes,
        seconds=best.seconds,
        lower_bound_bytes=search.bound,
        stop_reason=reason,
        states=joint.states,
        front=front_of([*search.thinned(search.explorer.front()), *joint.points]),
        elapsed=search.elapsed,
    )


def _kept(search: Search, goal: Goal) -> Point | None:
    best = goal.best(search.explorer)
    return None if best is None else search.point(best)


def _bound(search: Search) -> int:
    """A bound for plans in which inputs may wait on the host."""
    tables = search.tables
    movable = Movable(tables.graph)
    moved = np.array([v.node in tables.graph.input and movable.why_not(v) is None for v in tables.storages])
    return min(search.bound, offload_bound(tables, moved)) if len(moved) else search.bound


class _Joint:
    """The rounds of one search.

    Attributes:
        best: the best plan that keeps the limits.
        points: every plan with offloads that was better than the ones before it.
    """

    def __init__(
        self, search: Search, costs: Costs, goal: Goal, host_memory: int | None, lends: bool
    ) -> None:
        self.search = search
        self.tables = search.tables
        self.costs = costs
        self.goal = goal
        self.host_memory = host_memory
        self.lends = lends
        self.best = _kept(search, goal)
        self.points: list[Point] = []
        self.tried = 0
        self.others = 0
        self.effort = _Effort(0.0, 0.0, 0)

    @property
    def states(self) -> int:
        """Plans that were looked at."""
        return self.search.explorer.states + self.others + self.tried

    def run(self, reason: StopReason) -> StopReason:
        """Bring the front into the budget, then go on in rounds."""
        explorer = self.search.explorer
        plans, front = self._plans(explorer, explorer.order), explorer.front()
        self._bring(plans, front)
        if can_pack(self.tables):
            self._bring(lambda found: with_packed(self.tables, plans(found), self.costs.link), front)
        for round_ in range(ROUNDS * 4):
            if stop := self.effort.stop():
                return stop
            if not self._round(round_):
                return "converged"
        return reason

    # --- goals ---

    def _target(self) -> int:
        """Bytes that the next plan should keep: the budget, or a little less than the lowest peak."""
        if self.goal.memory is not None:
            return self.goal.memory
        assert self.best is not None
        return int(0.96 * self.best.peak_bytes)

    def _better(self, point: Point) -> bool:
        if point.seconds > self.goal.seconds:
            return False
        if self.goal.memory is None:
            return self.best is None or point.peak_bytes < self.best.peak_bytes
        return point.peak_bytes <= self.goal.memory and (
            self.best is None or point.seconds < self.best.seconds
        )

    # --- one front ---

    def _plans(self, explorer: Explorer, order: tuple[int, ...]) -> Callable[[Candidate], Plan]:
        return lambda found: plan_of(explorer.frame, found.modes.tolist(), order)

    def _bring(self, plan_of_: Callable[[Candidate], Plan], front: Sequence[Candidate]) -> bool:
        """Bring the plans of a front into the budget, those first that are nearest to it."""
        target, improved, worse = self._target(), False, 0
        for found in sorted(front, key=lambda c: (abs(c.peak - target), c.peak)):
            if worse >= WORSE or self.effort.stop() == "time":
                break
            if self.best is not None and self.goal.memory is not None and found.seconds >= self.best.seconds:
                continue
            point = self._fitted(plan_of_(found), target)
            gained = point is not None and self._better(point)
            worse = 0 if gained else worse + 1
            if gained and point is not None:
                improved, self.best = True, point
                self.points.append(point)
        return improved

    def _offloader(self, plan: Plan) -> Offloader:
        return Offloader(self.tables, plan, self.costs.link, self.lends)

    def _fitted(self, plan: Plan, target: int) -> Point | None:
        """Return a plan brought into a target, simulated; None where offloads cannot."""
        offloader = self._offloader(plan)
        self.tried += 1
        if self.goal.memory is None:
            return self._lowest_within(offloader, target)
        limit = self.host_memory
        for _ in range(3):
            fitted = offloader.fit(target, limit)
            if fitted is None:
                return None
            point, host = self._point(fitted)
            if self.host_memory is None or host <= self.host_memory:
                return point
            assert limit is not None
            limit -= host - self.host_memory
        return None

    def _point(self, plan: Plan) -> tuple[Point, int]:
        schedule = lower_tables(self.tables, plan)
        timeline = simulate_tables(self.tables, schedule, self.costs.link)
        host = host_layout(self.tables.graph, schedule).nbytes
        return Point(timeline.peak, timeline.seconds, plan), host

    def _lowest_within(self, offloader: Offloader, target: int) -> Point | None:
        """Return the lowest peak that offloads reach within the time, by halving."""
        low, high, best = self.search.bound, min(target, offloader.timeline.peak), None
        goal = high
        for _ in range(STEPS_DOWN):
            fitted = offloader.fit(goal, self.host_memory)
            point, host = (None, 0) if fitted is None else self._point(fitted)
            fits = host <= (self.host_memory or host)
            if point is not None and fits and point.seconds <= self.goal.seconds:
                best, high = point, point.peak_bytes
            else:
                low = goal
            goal = (low + high) // 2
        return best

    # --- rounds ---

    def _round(self, round_: int) -> bool:
        """Search again with what the best plan hides counted as nothing; return whether there was any."""
        target = self._target()
        start = self.best.plan if self.best is not None else Plan(self.tables.graph.digest)
        offloader = self._offloader(start)
        margin = MARGINS[round_ % len(MARGINS)]
        hidden = offloader.fit(int(margin * target), self.host_memory, waiting=False)
        if hidden is None or not hidden.offload:
            return False
        nbytes = self.tables.nbytes.copy()
        nbytes[[self.tables.storage_of[gap.value] for gap in hidden.offload]] = 0
        tables = replace(self.tables, nbytes=nbytes)
        targets = [int(m * target) for m in MARGINS]
        explorer = Explorer(frame(tables, start.order), round_, tuple(targets), start.order)
        self._explore(explorer, targets)
        self.others += explorer.states
        front = [c for c in explorer.front() if 0.6 * target <= c.peak <= 1.1 * target]
        plans = self._plans(explorer, start.order)
        self._bring(lambda found: replace(plans(found), compress=start.compress), front)
        self._tell()
        return True

    def _explore(self, explorer: Explorer, targets: Sequence[int]) -> None:
        slowest = min(self.search.slowest, self.goal.seconds)
        explorer.descend(slowest)
        effort = self.effort
        begun, proposals = time.monotonic(), effort.proposals
        for i in range(10_000):
            over = time.monotonic() - begun >= effort.seconds * (1 - FIRST) / ROUNDS
            if effort.iterations is not None:
                over = effort.proposals - proposals >= effort.iterations * (1 - FIRST) / ROUNDS
            if over or effort.stop():
                return
            left = None if effort.iterations is None else effort.iterations - effort.proposals
            effort.proposals += explorer.anneal(targets[i % len(targets)], slowest, left)

    def _tell(self) -> None:
        progress = self.search.progress
        if progress is not None:
            peak, seconds = (None, None) if self.best is None else (self.best.peak_bytes, self.best.seconds)
            progress(Progress(self.states, self.search.elapsed, self._share(), peak, seconds))

    def _share(self) -> float:
        effort = self.effort
        if effort.iterations is not None:
            return effort.proposals / max(effort.iterations, 1)
        return min(1.0, (time.monotonic() - effort.began) / max(effort.seconds, 1e-9))

    def lowest(self) -> int | None:
        """The lowest peak that offloads reach from the lowest plan without them, whatever its time."""
        lowest = self.search.explorer.lowest()
        if lowest is None:
            return None
        explorer = self.search.explorer
        offloader = self._offloader(self._plans(explorer, explorer.order)(lowest))
        low, high = self.search.bound, lowest.peak
        for _ in range(STEPS_DOWN):
            middle = (low + high) // 2
            low, high = (middle, high) if offloader.fit(middle, self.host_memory) is None else (low, middle)
        return high
