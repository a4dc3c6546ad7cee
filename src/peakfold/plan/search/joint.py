"""The joint search: states of the fission tree, sketched, and the most promising planned.

MAGIS's M-Optimizer (section 6, algorithm 3) takes the best state by a lexicographic order, which stops where
bytes can only be had for much time. Here a state is worth its seconds plus a price for the bytes above the
budget. A state is sketched first, in a fraction of a millisecond (`sketch`); what is planned is what the
sketches, corrected by what planned states came to, promise most of (`scout`).
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from math import inf

from peakfold.cost.costs import Costs
from peakfold.errors import InfeasibleError
from peakfold.ir.graph import Graph
from peakfold.plan.fission.alone import planned_alone
from peakfold.plan.fission.effort import Effort
from peakfold.plan.fission.program import CostsOf
from peakfold.plan.fission.solve import Solver
from peakfold.plan.schedule import planner
from peakfold.plan.schedule.arrays import tabulate
from peakfold.plan.schedule.deadline import Deadline, Now
from peakfold.plan.schedule.found import Found, Progress, StopReason
from peakfold.plan.schedule.frame import frame
from peakfold.plan.schedule.goal import Goal
from peakfold.plan.schedule.infeasible import bytes_text
from peakfold.plan.schedule.offload_search import Host
from peakfold.plan.search.clock import Clock, Watch
from peakfold.plan.search.footprint import Ground
from peakfold.plan.search.polish import again
from peakfold.plan.search.quickest import leading
from peakfold.plan.search.roots import Roots, tree_of
from peakfold.plan.search.saved import Saved, Unsplit, Visit
from peakfold.plan.search.scout import Scout
from peakfold.plan.search.sketch import Sketch
from peakfold.plan.search.starts import wide
from peakfold.plan.search.states import Archive, State
from peakfold.plan.search.values import values_of
from peakfold.plan.search.visits import Visitor, visitor

FIRST = 0.2
"""Of the time, for the plan that splits nothing."""
FRONT_FIRST = 0.1
"""The same, where a whole front is searched."""
EACH = 6.0
"""Most seconds for one state."""
STATES = 24
"""States that share the time: so many are planned where iterations are counted."""
BATCH = 2
"""States that are planned before their values are learned from, side by side where there are two cores."""
SKETCHED = 600
"""States that are sketched before each batch."""
ALONE = 16
"""Budgets for which the graph is planned with nothing split, where a whole front is searched."""
CANDIDATES = 0.3
"""Of the time that is left when they are looked for, for candidates."""
POLISH = 0.4
"""Of the time, for planning what is best at each time once more, and that time alone."""


@dataclass
class Joint:
    """One joint search.

    Attributes:
        graph: the program as captured.
        costs_of: gives the costs of a graph.
        goal: what is asked.
        time_budget: seconds.
        iterations: proposals of each search of one graph; then ``most`` states are planned.
        seed: of the random stream.
        progress: called after each state.
        times: seconds at which bytes are to be least, where a whole front is searched; the goal is then
            only what progress tells of.
        most: states that are planned where iterations are counted.
        roots: where the tree comes from.
        workers: processes that plan states; the result does not depend on it where iterations are counted.
        saved: an earlier search of the same to go on with.
        save: given all that is known, at the end and every few states.
        host: what may wait outside the device; None for nothing. A whole front is searched without.
        now: the clock that seconds are of. Where iterations are counted, it decides nothing.
        measured: costs come from running operators: the clock stands still meanwhile, and states that may be
            faster than the step as a whole are looked at first.
    """

    graph: Graph
    costs_of: CostsOf
    goal: Goal
    time_budget: float
    iterations: int | None = None
    seed: int = 0
    progress: Callable[[Progress], None] | None = None
    times: tuple[float, ...] = ()
    most: int = STATES
    roots: Roots = field(default_factory=Roots)
    workers: int = 1
    saved: Saved | None = None
    save: Callable[[Saved], None] | None = None
    host: Host | None = None
    now: Now = time.monotonic
    measured: bool = False
    archive: Archive = field(default_factory=Archive)
    refused: list[InfeasibleError] = field(default_factory=list)
    clock: Clock = field(default_factory=Clock)
    visits: list[Visit] = field(default_factory=list)
    states: int = 0
    excused: float = 0.0
    is_interrupted: bool = False

    def _begin(self) -> None:
        """Begin; no clock decides where iterations are counted."""
        if self.measured:
            watch = Watch(self.now)
            self.now, self.costs_of = watch, watch.beside(self.costs_of)
        self.began = self.now()
        self.seconds = self.time_budget if self.iterations is None else inf
        self.deadline = Deadline(self.began + self.seconds, self.now)

    def run(self) -> Found:
        """Search until time or states are spent, or it is interrupted.

        Raises:
            InfeasibleError: nothing within the limits was found, split or not.
        """
        self._begin()
        with self.clock.at("unsplit"):
            if self.saved is not None:
                self.archive.add(*self.saved.front)
            known = None if self.saved is None else self.saved.within(self.goal)
            self.unsplit = self._unsplit() if known is None else self._known(known)
        reason = self._searched()
        self._save()
        best = self.archive.best(self.goal)
        if best is None:
            raise self._refusal()
        return Found(
            plan=best.plan,
            peak_bytes=best.peak_bytes,
            seconds=best.seconds,
            lower_bound_bytes=self.unsplit.bound if not best.plan.regions else _held(self.graph),
            stop_reason=reason,
            states=self.looked_at,
            front=self.archive.front,
            elapsed=self.now() - self.began,
        )

    def _refusal(self) -> InfeasibleError:
        """Say what came closest; what is proved of programs without parts is not said of all."""
        closest = min(self.refused, key=lambda error: error.lowest_peak_bytes)
        found, alone = closest.got.partition("; bound ")[0], bytes_text(self.unsplit.bound)
        what = "no program within the budget was found, in parts or not"
        error = replace(closest, what=what, got=f"{found}; without parts at least {alone}")
        error.lowest_peak_bytes, error.lower_bound_bytes = closest.lowest_peak_bytes, _held(self.graph)
        return error

    def run_front(self) -> Archive:
        """Search until time or states are spent, or it is interrupted; return the best at every time."""
        self._begin()
        with self.clock.at("unsplit"):
            found = planner.optimize_front(
                self.graph,
                self.costs_of(self.graph),
                count=ALONE,
                time_budget=FRONT_FIRST * self.seconds,
                deadline=Deadline(inf, self.now),
                iterations=self.iterations,
                seed=self.seed,
                progress=self._first(FRONT_FIRST),
                check=False,
            )
        self.states += found.states
        self.archive.add(*(point for point in found.points if point is not None))
        self._searched()
        return self.archive

    def _searched(self) -> StopReason:
        reason: StopReason = "time" if self.iterations is None else "iterations"
        if self.is_interrupted:
            return "interrupted"
        try:
            reason = self._split() or reason
        except KeyboardInterrupt:
            reason = "interrupted"
        return reason

    def _polish(self, visit: Visitor) -> None:
        """Plan the regions that are best at each time once more, for that time alone, some side by side."""
        for first in range(0, len(self.times), BATCH):
            if self.deadline.is_over:
                return
            with self.clock.at("plan"):
                made = visit(again(self.times[first:], BATCH, self.archive, self.deadline, self.workers), ())
            for one in made:
                self.states += one.states
                self.archive.add(*one.front)
            self._tell(self.most)

    def _unsplit(self) -> Unsplit:
        """Plan without regions; the bound is proved for such plans."""
        costs = self.costs_of(self.graph)
        effort = Effort(FIRST * self.seconds, self.iterations, self.seed, Deadline(inf, self.now))
        try:
            found = planned_alone(
                self.graph, costs, self.goal, effort, self.host, check=True, progress=self._first(FIRST)
            )
        except InfeasibleError as error:
            self.refused.append(error)
            self.states += 1
            return Unsplit(error.lower_bound_bytes, 1, error)
        self.states += found.states
        self.archive.add(*found.front, found.point)
        return Unsplit(found.lower_bound_bytes, found.states)

    def _known(self, saved: Saved) -> Unsplit:
        """Take over what an earlier search found; its states are not planned again."""
        self.states += saved.unsplit.states
        if saved.unsplit.error is not None:
            self.refused.append(saved.unsplit.error)
        return saved.unsplit

    def _split(self) -> StopReason | None:
        each = (1 - FIRST) * self.seconds / STATES
        each = min(EACH, each) if self.iterations is None else inf
        effort = Effort(each, self.iterations, self.seed, self.deadline)
        self.solver = solver = Solver(self.graph, self.costs_of, effort, host=self.host)
        costs = self.costs_of(solver.prepared)
        with self.clock.at("candidates"):
            until = self.deadline.part(CANDIDATES)
            roots = replace(self.roots, layers=self.measured)
            self.tree = tree_of(solver.prepared, costs, roots, solver.axes, until)
        tables = tabulate(solver.prepared, costs)
        with self.clock.at("footprints"):
            ground = Ground.of(frame(tables), costs.link.copy)
            sketch = Sketch(ground, self.tree, self.goal, solver.axes, tables.resident, solver.costs_of)
            for index in range(len(self.tree.candidates)):
                sketch.footprints(index)
        with self.clock.at("compile"):
            self.top = sketch.plain
        self.excused = self.clock.seconds["compile"]
        self.deadline = replace(self.deadline, at=self.deadline.at + self.excused)
        solver.effort = replace(effort, deadline=self.deadline)
        self.eager = sum(self.costs_of(self.graph).seconds.values())
        start = State(self.tree.disabled, 0)
        leads: list[State] = []
        if self.measured:
            with self.clock.at("measure"):
                leads, self.times = leading(sketch, start, self.times, self.deadline)
        self.scout = Scout(sketch, self.goal, self.eager, self.top, self.times, self.clock, self.deadline)
        self.scout.seen.add(start.code)
        self.scout.add(leads)
        self.scout.add(wide(self.tree, start))
        self.scout.expand(start)
        with visitor(solver, self.tree, self.goal, self.workers, bool(self.times)) as visit:
            reason = self._turns(visit, leads)
            self._polish(visit)
            return reason

    def _turns(self, visit: Visitor, leads: Sequence[State]) -> StopReason | None:
        same = None if self.saved is None else self.saved.within(self.goal)
        known = {} if same is None else {one.parts: one for one in same.visits}
        polish = POLISH * self.seconds if self.times and self.iterations is None else 0.0
        turns = -(-self.most // BATCH) if self.iterations is not None else STATES * 40
        for turn in range(turns):
            if self.deadline.left <= polish:
                return "time"
            self.scout.look(SKETCHED)
            batch = self.scout.take(BATCH, self._so_far, leads)
            if not batch:
                return "converged"
            with self.clock.at("plan"):
                fresh = visit(
                    [state.parts for state in batch if state.parts not in known], self.archive.front
                )
            made = {one.parts: one for one in fresh}
            for state in batch:
                self._take(state, known.get(state.parts) or made[state.parts])
            self._tell(turn * BATCH + BATCH)
        return None

    def _take(self, state: State, came: Visit) -> None:
        """Note what a state came to, and learn from it."""
        self.visits.append(came)
        self.states += came.states
        if came.error is not None:
            self.refused.append(came.error)
        self.archive.add(*came.front)
        values = values_of(came, self.goal, self.times, self.eager, self.top)
        self.scout.learn(state, values)
        if values is not None:
            self.scout.expand(state)

    @property
    def _so_far(self) -> tuple[float, ...]:
        """What the best plans are worth, at each time where a whole front is searched."""
        best = (self.archive.best(Goal(None, seconds)) for seconds in self.times)
        return tuple(self.eager if one is None else one.peak_bytes / self.top * self.eager for one in best)

    def _save(self) -> None:
        if self.save is not None:
            self.save(Saved(self.goal, self.unsplit, tuple(self.visits), self.archive.front))

    @property
    def _elapsed(self) -> float:
        """Seconds of search: what compiling took on a new machine does not count."""
        return self.now() - self.began - self.excused

    @property
    def looked_at(self) -> int:
        """States that were sketched, and plans that were decoded."""
        return self.states + self.clock.counts.get("sketch", 0)

    def _first(self, share: float) -> Callable[[Progress], None] | None:
        """Tell of the plan that splits nothing, whose search has a share of the time.

        A KeyboardInterrupt ends all; what is saved is planned to its end before, to go on as without a break.
        """
        tell = self.progress
        if tell is None:
            return None

        def told(state: Progress) -> None:
            try:
                tell(replace(state, share=share * state.share))
            except KeyboardInterrupt:
                self.is_interrupted = True
                if self.save is None:
                    raise

        return told

    def _tell(self, planned: int) -> None:
        if self.progress is None:
            return
        best = self.archive.best(self.goal)
        elapsed = self._elapsed
        share = planned / self.most if self.iterations is not None else elapsed / max(self.time_budget, 1e-9)
        peak, seconds = (None, None) if best is None else (best.peak_bytes, best.seconds)
        self.progress(Progress(self.looked_at, elapsed, min(share, 1.0), peak, seconds))


def _knowing(graph: Graph, costs: Costs, costs_of: CostsOf) -> CostsOf:
    return lambda one: costs if one.digest == graph.digest else costs_of(one)


def _held(graph: Graph) -> int:
    """Bytes that the caller holds during the whole step: no plan needs fewer."""
    return sum(graph.nbytes(value) for value in graph.storages() if value.node in graph.input)


def optimize(
    graph: Graph,
    costs: Costs,
    costs_of: CostsOf,
    *,
    memory: int | None = None,
    latency: float | None = None,
    time_budget: float = 60.0,
    iterations: int | None = None,
    seed: int = 0,
    progress: Callable[[Progress], None] | None = None,
    workers: int = 1,
    saved: Saved | None = None,
    save: Callable[[Saved], None] | None = None,
    host: Host | None = None,
    measured: bool = False,
) -> Found:
    """Find the best plan within the limits, with regions in parts where that pays.

    Args:
        graph: the program as captured.
        costs: of its nodes.
        costs_of: gives the costs of the graphs that regions make.
        memory: most bytes at once; time is then least.
        latency: most seconds of a step; without ``memory`` the peak is then least.
        time_budget: seconds after which the search stops.
        iterations: proposals of each search of one graph; the result then depends on the seed only.
        seed: of the random stream.
        progress: called after each state.
        workers: processes that plan states side by side.
        saved: an earlier search of the same to go on with.
        save: given all that is known when the search ends.
        host: what may wait outside the device; None for nothing.
        measured: see `Joint`.

    Raises:
        InfeasibleError: no plan within the limits was found.
    """
    return Joint(
        graph,
        _knowing(graph, costs, costs_of),
        Goal(memory, latency),
        time_budget,
        iterations,
        seed,
        progress,
        workers=workers,
        saved=saved,
        save=save,
        host=host,
        measured=measured,
    ).run()


def optimize_front(
    graph: Graph,
    costs: Costs,
    costs_of: CostsOf,
    *,
    times: Sequence[float],
    time_budget: float = 60.0,
    iterations: int | None = None,
    seed: int = 0,
    progress: Callable[[Progress], None] | None = None,
    workers: int = 1,
    measured: bool = False,
) -> tuple[Archive, int]:
    """Find the plans of least bytes at every time, in one search; return them, and how many were looked at.

    Args:
        graph: the program as captured.
        costs: of its nodes.
        costs_of: gives the costs of the graphs that regions make.
        times: seconds at which bytes matter most, in rising order.
        time_budget: seconds after which the search stops.
        iterations: proposals of each search of one graph; the result then depends on the seed only.
        seed: of the random stream.
        progress: called after each state; a KeyboardInterrupt from it ends the search.
        workers: processes that plan states side by side.
        measured: see `Joint`.
    """
    goal = Goal(None, times[-1])
    known, limits = _knowing(graph, costs, costs_of), (time_budget, iterations, seed)
    search = Joint(graph, known, goal, *limits, progress, tuple(times), workers=workers, measured=measured)
    archive = search.run_front()
    return archive, search.looked_at
