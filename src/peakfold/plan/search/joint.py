"""The joint search: states of the fission tree, each planned as a whole, the most promising first.

MAGIS's M-Optimizer (section 6, algorithm 3) takes the best state by a lexicographic order, which stops where
bytes can only be had for much time. Here a state is worth its seconds plus a price for the bytes above the
budget. Moves are tried lazily, by what they should save, one at a time from the best states in turn, so that
no state's neighbours are all looked at before the next state is.
"""

import heapq
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import count

import numpy as np

from peakfold.cost.costs import Costs
from peakfold.errors import InfeasibleError, PlanError
from peakfold.ir.graph import Graph
from peakfold.plan.fission.candidates import Candidate
from peakfold.plan.fission.nested import regions_of
from peakfold.plan.fission.program import CostsOf
from peakfold.plan.fission.solve import Effort, Solver, Spread
from peakfold.plan.fission.tree import Parts, choices
from peakfold.plan.schedule import planner
from peakfold.plan.schedule.found import Found, Progress, StopReason
from peakfold.plan.schedule.goal import Goal
from peakfold.plan.search.roots import FAR, WIDEST, tree_of
from peakfold.plan.search.states import Archive, State

FIRST = 0.2
"""Of the time, for the plan that splits nothing."""
EACH = 6.0
"""Most seconds for one state."""
STATES = 24
"""States that share the time."""
WIDE = (4, 2, 8, 16, 6, 3)
"""Parts that the regions that reach furthest are tried with first."""
ALIKE = 0.9
"""Share of runs of either candidate that both have, from which on they are alike."""
OVER = 4.0
"""Eager steps that a budget's worth of bytes above the budget costs."""
ALONE = 16
"""Budgets for which the graph is planned with nothing split, where a whole front is searched."""
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
        iterations: proposals of each search of one graph; then ``STATES`` states are looked at.
        seed: of the random stream.
        progress: called after each state.
        times: seconds at which bytes are to be least, where a whole front is searched; the goal is then
            only what progress tells of.
    """

    graph: Graph
    costs_of: CostsOf
    goal: Goal
    time_budget: float
    iterations: int | None = None
    seed: int = 0
    progress: Callable[[Progress], None] | None = None
    times: tuple[float, ...] = ()
    archive: Archive = field(default_factory=Archive)
    refused: list[InfeasibleError] = field(default_factory=list)
    states: int = 0

    def run(self) -> Found:
        """Search until time or states are spent, or it is interrupted.

        Raises:
            InfeasibleError: nothing within the limits was found, split or not.
        """
        self.began = time.monotonic()
        first = self._unsplit()
        reason = self._searched()
        best = self.archive.best(self.goal)
        if best is None:
            raise min(self.refused, key=lambda error: error.lowest_peak_bytes)
        return Found(
            plan=best.plan,
            peak_bytes=best.peak_bytes,
            seconds=best.seconds,
            lower_bound_bytes=first if not best.plan.regions else _held(self.graph),
            stop_reason=reason,
            states=self.states,
            front=self.archive.front,
            elapsed=time.monotonic() - self.began,
        )

    def run_front(self) -> Archive:
        """Search until time or states are spent, or it is interrupted; return the best at every time."""
        self.began = time.monotonic()
        found = planner.optimize_front(
            self.graph,
            self.costs_of(self.graph),
            count=ALONE,
            time_budget=FIRST * self.time_budget,
            iterations=self.iterations,
            seed=self.seed,
        )
        self.states += found.states
        self.archive.add(*(point for point in found.points if point is not None))
        self._searched()
        return self.archive

    def _searched(self) -> StopReason:
        reason: StopReason = "time" if self.iterations is None else "iterations"
        try:
            reason = self._split() or reason
            self._polish()
        except KeyboardInterrupt:
            reason = "interrupted"
        return reason

    def _polish(self) -> None:
        """Plan the regions that are best at each time once more, for that time alone."""
        for at, seconds in enumerate(self.times):
            goal = Goal(None, seconds)
            best = self.archive.best(goal)
            left = (self.began + self.time_budget - time.monotonic()) / (len(self.times) - at)
            if best is None or (self.iterations is None and left <= 0):
                continue
            self.solver.effort = replace(self.solver.effort, time_budget=max(left, 0.0))
            self.archive.add(*self.solver.solve(best.plan.regions, latency=seconds).front)
            self._tell(STATES)

    def _unsplit(self) -> int:
        """Plan without regions; return the bound that is proved for such plans."""
        costs = self.costs_of(self.graph)
        try:
            found = planner.optimize(
                self.graph,
                costs,
                memory=self.goal.memory,
                latency=self.goal.latency,
                time_budget=FIRST * self.time_budget,
                iterations=self.iterations,
                seed=self.seed,
            )
        except InfeasibleError as error:
            self.refused.append(error)
            self.states += 1
            return error.lower_bound_bytes
        self.states += found.states
        self.archive.add(*found.front, found.point)
        return found.lower_bound_bytes

    def _split(self) -> StopReason | None:
        each = min(EACH, (1 - FIRST) * self.time_budget / STATES)
        explored = self.time_budget * (1 - POLISH if self.times else 1)
        self.solver = Solver(self.graph, self.costs_of, Effort(each, self.iterations, self.seed))
        self.tree = tree_of(self.solver.prepared, self.costs_of(self.solver.prepared))
        self.eager = sum(self.costs_of(self.graph).seconds.values())
        start = State(self.tree.disabled, 0)
        pushed = count()
        queue = [(self._hope(start, one), one.code, next(pushed), one) for one in self._neighbours(start)]
        queue += [(-np.inf, 0, next(pushed), one) for one in self._wide(start)]
        heapq.heapify(queue)
        seen = {start.code}
        for turn in range(STATES if self.iterations is not None else STATES * 40):
            if not queue:
                return "converged"
            if self.iterations is None and time.monotonic() - self.began >= explored:
                return "time"
            *_, state = heapq.heappop(queue)
            if state.code in seen:
                continue
            seen.add(state.code)
            value = self._visit(state)
            self._tell(turn)
            if value is None:
                continue
            for after in self._neighbours(state):
                if after.code not in seen:
                    heapq.heappush(queue, (self._hope(state, after, value), after.code, next(pushed), after))
        return None

    def _wide(self, start: State) -> Iterator[State]:
        """Yield the states that split all that can be along one axis: they reach furthest."""
        for index, candidate in enumerate(self.tree.candidates):
            if candidate.source not in FAR and index >= WIDEST:
                continue
            if any(_alike(candidate, other) for other in self.tree.candidates[:index]):
                continue
            possible = choices(candidate.length)
            for parts in (n for n in WIDE if n in possible):
                yield start.to((*start.parts[:index], parts, *start.parts[index + 1 :]))

    def _neighbours(self, state: State) -> Iterator[State]:
        for move in self.tree.moves(state.parts):
            yield state.to(move.parts)

    def _hope(self, before: State, after: State, value: float = 0.0) -> float:
        """What a state may be worth, less is better: what the one before is, less the bytes to be saved."""
        gain = self._saved(after.parts) - self._saved(before.parts)
        return value - gain / max(self._most, 1) * self.eager

    def _saved(self, parts: Parts) -> float:
        """Bytes that regions save by formula (2), which counts two parts."""
        return sum(
            2 * (1 - 1 / n) * c.gain for c, n in zip(self.tree.candidates, parts, strict=True) if n > 1
        )

    @cached_property
    def _most(self) -> int:
        """The most that one candidate saves."""
        return max((c.gain for c in self.tree.candidates), default=1)

    def _visit(self, state: State) -> float | None:
        """Plan a state; return its worth, None where its regions cannot be split."""
        try:
            regions = regions_of(self.solver.prepared, self.tree, state.parts, self.solver.axes)
            if self.times:
                return self._worth(self.solver.spread(regions, self.archive.front))
            found = self.solver.solve(regions, memory=self.goal.memory, latency=self.goal.latency)
        except PlanError:
            return None
        except InfeasibleError as error:
            self.refused.append(error)
            over = error.lowest_peak_bytes - (self.goal.memory or 0)
            return OVER * self.eager * (1 + max(over, 0) / max(self.goal.memory or 1, 1))
        finally:
            self.states += 1
        self.archive.add(*found.front)
        if self.goal.by_bytes:
            return found.peak_bytes / max(_held(self.graph), 1) * self.eager
        return found.seconds

    def _worth(self, found: Spread) -> float:
        """Keep what is new of a state's front; return what the front comes to over all times, in bytes."""
        self.archive.add(*found.fresh)
        points = found.points
        within = [[one.peak_bytes for one in points if one.seconds <= seconds] for seconds in self.times]
        most = max(one.peak_bytes for one in self.archive.front)
        mean = sum(min(peaks, default=most) for peaks in within) / len(within)
        return mean / max(_held(self.graph), 1) * self.eager

    @property
    def looked_at(self) -> int:
        """States and plans of them that were looked at."""
        return self.states + self.solver.states

    def _tell(self, turn: int) -> None:
        if self.progress is None:
            return
        best = self.archive.best(self.goal)
        elapsed = time.monotonic() - self.began
        share = turn / STATES if self.iterations is not None else elapsed / max(self.time_budget, 1e-9)
        peak, seconds = (None, None) if best is None else (best.peak_bytes, best.seconds)
        self.progress(Progress(self.looked_at, elapsed, min(share, 1.0), peak, seconds))


def _alike(one: Candidate, other: Candidate) -> bool:
    """Whether two candidates split the same into as many: a second try would tell nothing."""
    runs, others = set(one.runs), set(other.runs)
    return one.length == other.length and len(runs & others) >= ALIKE * len(runs | others)


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

    Raises:
        InfeasibleError: no plan within the limits was found.
    """

    def known(one: Graph) -> Costs:
        return costs if one.digest == graph.digest else costs_of(one)

    return Joint(graph, known, Goal(memory, latency), time_budget, iterations, seed, progress).run()


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
    """

    def known(one: Graph) -> Costs:
        return costs if one.digest == graph.digest else costs_of(one)

    goal = Goal(None, times[-1])
    search = Joint(graph, known, goal, time_budget, iterations, seed, progress, tuple(times))
    archive = search.run_front()
    return archive, search.looked_at
