"""Plans states as a whole, side by side where there are several processes."""

import multiprocessing
import signal
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace

from peakfold.errors import InfeasibleError, PlanError
from peakfold.ir.plan import Plan, Region
from peakfold.plan.fission.nested import regions_of
from peakfold.plan.fission.solve import Solver
from peakfold.plan.fission.tree import Parts, Tree
from peakfold.plan.schedule.deadline import Deadline
from peakfold.plan.schedule.found import Point
from peakfold.plan.schedule.goal import Goal
from peakfold.plan.search.saved import Visit


@dataclass(frozen=True, slots=True)
class Again:
    """Regions that are to be planned once more, for one time alone.

    Attributes:
        regions: of a plan.
        seconds: the most that a step may take.
        until: when planning ends, on the clock of the search.
    """

    regions: tuple[Region, ...]
    seconds: float
    until: float


Asked = Parts | Again
Visitor = Callable[[Sequence[Asked], Sequence[Point]], list[Visit]]
"""Plans some states, less what known points beat; says what each comes to, in the same order."""


@dataclass(frozen=True)
class Task:
    """What every process knows.

    Attributes:
        solver: plans a graph with regions.
        tree: says what a state's regions are.
        goal: what is asked.
        fronts: whether the front of each state is wanted, not what is best for the goal.
    """

    solver: Solver
    tree: Tree
    goal: Goal
    fronts: bool = False


def planned_again(task: Task, asked: Again) -> Visit:
    """Return what regions come to when they are planned for one time, with nothing known of their bodies."""
    solver, usual, before = task.solver, task.solver.effort, task.solver.states
    until = Deadline(asked.until, usual.deadline.now)
    solver.forget()
    solver.effort = replace(usual, time_budget=until.left, deadline=until)
    try:
        front = solver.solve(asked.regions, latency=asked.seconds).front
    except InfeasibleError:
        front = ()
    finally:
        solver.effort = usual
    return Visit((), solver.states - before, (), front)


def visited(task: Task, parts: Parts, known: Sequence[Point] = ()) -> Visit:
    """Return what a state comes to.

    Args:
        task: what is planned.
        parts: the state.
        known: points that need no other that is as good.
    """
    solver, goal = task.solver, task.goal
    before = solver.states
    try:
        regions = regions_of(solver.prepared, task.tree, parts, solver.axes)
        if task.fronts:
            spread = solver.spread(regions, known)
            figures = tuple((one.peak_bytes, one.seconds) for one in spread.points)
            return Visit(parts, solver.states - before + 1, figures, spread.fresh)
        found = solver.solve(regions, memory=goal.memory, latency=goal.latency)
    except PlanError:
        return Visit(parts, solver.states - before + 1)
    except InfeasibleError as error:
        return Visit(parts, solver.states - before + 1, error=error)
    return Visit(parts, solver.states - before + 1, ((found.peak_bytes, found.seconds),), found.front)


_task: list[Task] = []
"""Of a process that was forked: it inherits it."""


def _begin() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _done(task: Task, asked: Asked, known: Sequence[Point]) -> Visit:
    return planned_again(task, asked) if isinstance(asked, Again) else visited(task, asked, known)


def _in_process(given: tuple[Asked, list[tuple[int, float]]]) -> Visit:
    asked, known = given
    return _done(_task[0], asked, [Point(nbytes, seconds, Plan("")) for nbytes, seconds in known])


@contextmanager
def visitor(solver: Solver, tree: Tree, goal: Goal, workers: int, fronts: bool = False) -> Iterator[Visitor]:
    """Give a way to plan states; processes, where there are several, end with it.

    Args:
        solver: plans a graph with regions.
        tree: says what a state's regions are.
        goal: what is asked.
        workers: processes; with one, everything happens in this one.
        fronts: whether the front of each state is wanted.
    """
    task = Task(solver, tree, goal, fronts)
    if workers < 2 or "fork" not in multiprocessing.get_all_start_methods():
        yield lambda states, known: [_done(task, one, known) for one in states]
        return
    _task[:] = [task]
    pool = ProcessPoolExecutor(workers, multiprocessing.get_context("fork"), _begin)
    try:
        yield lambda states, known: list(
            pool.map(_in_process, [(s, [(p.peak_bytes, p.seconds) for p in known]) for s in states])
        )
    finally:
        _task.clear()
        pool.shutdown(wait=False, cancel_futures=True)
        for process in list((pool._processes or {}).values()):
            process.terminate()
