"""Plans states as a whole, side by side where there are several processes."""

import multiprocessing
import signal
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass

from peakfold.errors import InfeasibleError, PlanError
from peakfold.ir.plan import Plan
from peakfold.plan.fission.nested import regions_of
from peakfold.plan.fission.solve import Solver
from peakfold.plan.fission.tree import Parts, Tree
from peakfold.plan.schedule.found import Point
from peakfold.plan.schedule.goal import Goal
from peakfold.plan.search.saved import Visit

Visitor = Callable[[Sequence[Parts], Sequence[Point]], list[Visit]]
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


def _in_process(asked: tuple[Parts, list[tuple[int, float]]]) -> Visit:
    parts, known = asked
    return visited(_task[0], parts, [Point(nbytes, seconds, Plan("")) for nbytes, seconds in known])


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
        yield lambda states, known: [visited(task, parts, known) for parts in states]
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
