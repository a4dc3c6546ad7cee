"""Both programs in float64, which judges whether they are equal.

A model's own code may cast down in a float64 program too: some take their attention in float32. What is
summed there in another order differs by float32's rounding, beside which a lost part is not seen. So both are
run with these casts to float64.
"""

from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass, replace

from peakfold.bridge.capture import Captured
from peakfold.bridge.capture.intercept import in_python
from peakfold.bridge.runtime.rounding import RUNS, Rounded, Spread
from peakfold.bridge.runtime.target import Target, copied, doubled
from peakfold.bridge.runtime.verify import Observed, observe
from peakfold.errors import PeakfoldError
from peakfold.ir.control import nested
from peakfold.ir.graph import Graph, Node, Symbol
from peakfold.pipeline.program import Program, emit_plan
from peakfold.pipeline.task import Task
from peakfold.pipeline.transfer import transfer

NARROW = frozenset(("float32", "float16", "bfloat16"))


@dataclass(frozen=True)
class Exact:
    """A task in float64.

    Attributes:
        task: whose casts are to float64 where `Task.widened` says so.
        program: the same plan for it.
        original: what eager leaves.
    """

    task: Task
    program: Program
    original: Observed


@dataclass(frozen=True)
class Way:
    """A way to run a task in float64.

    Attributes:
        task: whose casts are to float64 where `Task.widened` says so.
        program: the plan that is compared, for it.
    """

    task: Task
    program: Program


class Precise:
    """A task in float64: captured, and run by eager, once for all programs that are compared with it.

    Attributes:
        task: what is optimized.
        steps: how many steps eager is run.
    """

    def __init__(self, task: Task, steps: int) -> None:
        self.task = task
        self.steps = steps
        self._captured: dict[bool, Captured | None] = {}
        self._eager: dict[bool, Observed | None] = {}
        self._spreads: dict[bool, Spread] = {}

    def of(self, program: Program) -> Exact | None:
        """Return the task and its program in float64; None where the model cannot be run in it.

        Args:
            program: captured from the task.
        """
        for one in self.ways(program):
            original = self._original(one.task)
            if original is not None:
                return Exact(one.task, one.program, original)
        return None

    def ways(self, program: Program) -> Iterator[Way]:
        """Yield the program in float64: with its casts widened where it has any, and as it is."""
        plain = self._double(self.task, program)
        if plain is None or casts_down(plain.program.captured.graph):
            wide = self._double(replace(self.task, widened=True), program)
            yield from () if wide is None else (wide,)
        yield from () if plain is None else (plain,)

    def spread(self, double: Exact) -> Spread:
        """Return how far rounding alone moves what eager leaves.

        Args:
            double: the task in float64.
        """
        task = double.task
        if task.widened not in self._spreads:
            moved = [rounded(task, self.steps, seed) for seed in range(RUNS)]
            self._spreads[task.widened] = Spread.of(double.original, moved)
        return self._spreads[task.widened]

    def _double(self, task: Task, program: Program) -> Way | None:
        """Return the same plan for the program in float64; None where it cannot be had."""
        if task.widened not in self._captured:
            self._captured[task.widened] = _captured(task)
        captured = self._captured[task.widened]
        if captured is None:
            return None
        try:
            plan = transfer(program.plan, program.captured.graph, captured.graph)
            return None if plan is None else Way(task, emit_plan(captured, plan, program.costs))
        except PeakfoldError:
            return None

    def _original(self, task: Task) -> Observed | None:
        """Return what eager leaves in float64; None for a model that asks for another precision itself."""
        if task.widened not in self._eager:
            self._eager[task.widened] = _eager(task, self.steps)
        return self._eager[task.widened]


def casts_down(graph: Graph) -> bool:
    """Whether a program in float64 turns a tensor into a narrower floating type.

    Example:
        >>> casts_down(Graph((), (), ()))
        False
    """
    return any(_narrows(node) for one in nested(graph) for node in one.nodes)


def _narrows(node: Node) -> bool:
    given = (*node.args, *(value for _, value in node.kwargs))
    asked = any(isinstance(one, Symbol) and one.kind == "dtype" and one.name in NARROW for one in given)
    return asked and bool(node.inputs)


def _captured(task: Task) -> Captured | None:
    try:
        return of_target(task, doubled(copied(target_of(task)))).capture()
    except PeakfoldError:
        return None


def _eager(task: Task, steps: int) -> Observed | None:
    target, wide = target_of(task), task.widened
    try:
        with in_python() if wide else nullcontext():
            return observe(target, None, steps=steps, precision="float64", widened=wide, device=task.device)
    except RuntimeError:
        return None


def rounded(task: Task, steps: int, seed: int) -> Observed:
    """Return what eager leaves in float64 where each operator rounds otherwise, at random."""
    with in_python(), Rounded(seed):
        return observe(
            target_of(task),
            None,
            steps=steps,
            precision="float64",
            widened=task.widened,
            device=task.device,
        )


def of_target(task: Task, target: Target) -> Task:
    """Return a task on the objects of a target."""
    return replace(
        task,
        model=target.model,
        loss_fn=target.loss_fn,
        optimizer=target.optimizer,
        batch=target.batch,
        scaler=target.scaler,
    )


def target_of(task: Task) -> Target:
    """Return what a task trains, as it is run for a comparison."""
    parts = (task.model, task.loss_fn, task.optimizer, task.batch, task.scaler, task.clip_grad_norm)
    return Target(*parts, task.keyed)
