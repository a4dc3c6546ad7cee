"""What operators take where they run: clocks in a few programs, from which the times of others follow.

Operators are profiled one by one, with the machine to themselves. In a program each finds other things in
the caches, other pages in the heap, and views to be made for it. So a few programs, the references, are run
with a clock behind every step; the seconds of each distinct operator in them replace those of its profile,
and the times of other programs are predicted anew. A program is never corrected by its own runs.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import log

import torch

from peakfold.bridge.capture.batches import arguments
from peakfold.bridge.runtime.clock import Clock
from peakfold.bridge.runtime.compiled import compiled
from peakfold.bridge.runtime.measure import interleaved_cpu_seconds
from peakfold.bridge.runtime.profile import machine
from peakfold.bridge.runtime.step import Step
from peakfold.cost.key import keys
from peakfold.errors import CaptureError
from peakfold.ir.plan import Compute
from peakfold.pipeline.program import Program
from peakfold.pipeline.task import Task
from peakfold.plan.fission.marks import Marked, marked
from peakfold.plan.fission.program import Nest

ROUNDS = 3
"""Runs with clocks; of each step the least counts."""
REFERENCES = 8
"""Programs beside the plain one that are run with clocks."""
NEAREST = 3
"""Kinds of one operator from which the time of a kind follows that was not seen."""
IN_PLACE = " in place"
"""What stands behind the key of an operator that writes over an operand."""


@dataclass(frozen=True, slots=True)
class Share:
    """What all runs of one kind of step take in a program.

    Attributes:
        runs: how many.
        predicted: seconds of all, by the profile.
        taken: seconds of all, by the clock; None where it has not run.
    """

    runs: int
    predicted: float
    taken: float | None = None


Subject = tuple[Task, Program]
"""What a program was captured from, and the program."""
Shares = Mapping[str, Share]
"""The shares of a program, by the cost key of an operator or the kind of another step."""


def shares(nest: Nest, seconds: Sequence[float] | None = None) -> Shares:
    """Return what each kind of step takes in a program.

    Args:
        nest: the program.
        seconds: from each mark to the next, as a clock read them; None where it has not run.
    """
    named = _Names()
    found: dict[str, list[float]] = defaultdict(lambda: [0, 0.0, 0.0])
    for index, one in enumerate(marked(nest)):
        share = found[named.kind(one)]
        share[0] += 1
        share[1] += _predicted(one)
        share[2] += 0.0 if seconds is None else seconds[index]
    return {
        kind: Share(int(runs), predicted, None if seconds is None else taken)
        for kind, (runs, predicted, taken) in found.items()
    }


class _Names:
    """Kinds of steps; the keys of a graph are made once."""

    def __init__(self) -> None:
        self._keys: dict[int, Mapping[int, str]] = {}
        self._machine = machine(torch.get_num_threads())

    def kind(self, one: Marked) -> str:
        """Return the cost key of an operator, or what else the step is."""
        if not isinstance(one.step, Compute):
            return type(one.step).__name__
        if one.of != "step":
            return one.of
        known = self._keys.get(id(one.nest))
        if known is None:
            known = self._keys[id(one.nest)] = keys(one.nest.graph, self._machine)
        node = one.nest.graph.node[one.step.run.node]
        over = IN_PLACE if one.step.reuses else ""
        return known.get(node.id, node.name if node.bodies else node.op.name) + over


def _predicted(one: Marked) -> float:
    if not isinstance(one.step, Compute) or one.of != "step":
        return 0.0
    return one.nest.costs.seconds.get(one.step.run.node, 0.0)


def clocked(programs: Mapping[str, Subject], rounds: int = ROUNDS) -> dict[str, Shares]:
    """Run programs with a clock behind each step, in turn and on copies; return what the steps take.

    Raises:
        CaptureError: one holds for its first steps only.
    """
    with torch.random.fork_rng(devices=[]):
        watched = {name: _Watched(task.clone(), program) for name, (task, program) in programs.items()}
        interleaved_cpu_seconds(watched, rounds, threads=torch.get_num_threads())
    return {name: shares(programs[name][1].nest, one.least) for name, one in watched.items()}


class _Watched:
    """A program on a task of its own, as a function of nothing.

    Attributes:
        least: seconds of each step in the run in which it took the least.
    """

    def __init__(self, task: Task, program: Program) -> None:
        parts = (program.captured, program.plan, program.emitted(marks=True))
        made = compiled(*parts, task.model, task.optimizer, task.batch, inference=task.loss_fn is None)
        self.least: Sequence[float] = ()
        self._clock = Clock()
        self._step = Step(task.subject, replace(made, guards=made.portable), recorder=self._clock)
        self._args, self._kwargs = arguments(task.batch)

    def __call__(self) -> None:
        self._step(*self._args, **self._kwargs)
        seconds = self._clock.seconds
        self.least = [*map(min, self.least, seconds)] if self.least else seconds


def operator(kind: str) -> str:
    """Return what a kind of step shares with others that differ in shapes and numbers alone.

    Example:
        >>> operator("aten.mm.default(%0:float32[4,5]) on cpu; EPYC in place")
        'aten.mm.default in place'
    """
    return kind.partition("(")[0] + (IN_PLACE if kind.endswith(IN_PLACE) else "")


class InPlace:
    """What the steps of some programs took where they ran, from which the time of another follows.

    The clocks say how the time of a program divides among its steps, and the program's own time, measured
    without clocks, what it comes to. A kind of step that was not seen takes its profiled seconds times what
    the `NEAREST` of the same operator that were seen, by their seconds, took over theirs.

    Example:
        >>> seen = {"mm(8)": Share(1, 1.0, 1.2), "add(8)": Share(2, 0.2, 0.8)}
        >>> known = InPlace([(seen, 2.0)])
        >>> round(known.seconds({"mm(8)": Share(2, 2.0), "add(4)": Share(1, 0.05)}), 6)
        2.6
    """

    def __init__(self, references: Sequence[tuple[Shares, float]]) -> None:
        """Take the shares of some programs, clocked, with the seconds of each."""
        runs: dict[str, list[float]] = defaultdict(lambda: [0, 0.0, 0.0])
        for found, seconds in references:
            scale = seconds / sum(share.taken or 0.0 for share in found.values())
            for kind, share in found.items():
                total = runs[kind]
                total[0] += share.runs
                total[1] += share.predicted
                total[2] += scale * (share.taken or 0.0)
        self._each = {kind: taken / count for kind, (count, _, taken) in runs.items()}
        self._near: dict[str, list[tuple[float, float]]] = defaultdict(list)
        for kind, (count, predicted, taken) in runs.items():
            if predicted:
                self._near[operator(kind)].append((log(predicted / count), taken / predicted))
        costed = [(predicted, taken) for _, predicted, taken in runs.values() if predicted]
        whole = sum(predicted for predicted, _ in costed)
        self._usual = sum(taken for _, taken in costed) / whole if whole else 1.0

    def seconds(self, of: Shares) -> float:
        """Return the time of a program whose steps are these."""
        return sum(self._taken(kind, share) for kind, share in of.items())

    def each(self, kind: str, predicted: float) -> float:
        """Return the seconds of one run of an operator, whether or not it writes over an operand.

        Args:
            kind: the cost key of the operator.
            predicted: its seconds by the profile.

        Example:
            >>> seen = {"mm(8)": Share(2, 1.0, 1.2), "exp(8) in place": Share(1, 0.5, 0.25)}
            >>> known = InPlace([(seen, 1.45)])
            >>> round(known.each("mm(8)", 0.5), 6), round(known.each("exp(8)", 0.5), 6)
            (0.6, 0.25)
        """
        forms = (kind, kind + IN_PLACE)
        seen = next((form for form in forms if form in self._each), None)
        near = next((form for form in forms if operator(form) in self._near), kind)
        return self._taken(seen or near, Share(1, predicted))

    def _taken(self, kind: str, share: Share) -> float:
        each = self._each.get(kind)
        if each is not None:
            return share.runs * each
        if not share.predicted:
            return 0.0
        return share.predicted * self._factor(operator(kind), log(share.predicted / share.runs))

    def _factor(self, name: str, size: float) -> float:
        near = sorted(self._near.get(name, ()), key=lambda one: abs(one[0] - size))[:NEAREST]
        return sum(factor for _, factor in near) / len(near) if near else self._usual


def clocks_in(programs: Mapping[str, Subject]) -> Mapping[str, Shares]:
    """Return what the steps of programs take by a clock; nothing where they cannot be run with clocks.

    Args:
        programs: by name.
    """
    if not have_clocks(programs.values()):
        return {}
    try:
        return clocked(programs)
    except CaptureError:
        return {}


def foretelling(references: Iterable[tuple[Shares, float]], usual: float) -> Callable[[Program], float]:
    """Return what gives the seconds of a program, from what operators take in others.

    Args:
        references: the shares of other programs, by the clock, and what each took without clocks.
        usual: what a program took over its prediction: for where there are no references.
    """
    known = [(of, seconds) for of, seconds in references if _ticked(of)]
    if not known:
        return lambda program: usual * program.timeline.seconds
    found = InPlace(known)
    return lambda program: found.seconds(shares(program.nest))


Clocks = Callable[[Mapping[str, Subject]], Mapping[str, Shares]]


def corrected(
    programs: Mapping[str, Subject], taken: Mapping[str, float], plain: str, clocks: Clocks = clocks_in
) -> dict[str, float]:
    """Return the seconds of programs as they follow from what operators take in some of them.

    The plain program and up to `REFERENCES` others, spread over the predicted times, are run with clocks.
    Each program is corrected by those of them that are others, never by its own runs. Where programs cannot
    be run with clocks, all are corrected by what the plain program took over its prediction.

    Args:
        programs: by name.
        taken: seconds of each, measured without clocks, in turn.
        plain: name of the program that drops nothing.
        clocks: runs programs with clocks.
    """
    whole = {name: program.timeline.seconds for name, (_, program) in programs.items()}
    others = sorted((name for name in programs if name != plain), key=whole.__getitem__)
    chosen = [plain, *(others[i] for i in spread(len(others), REFERENCES))]
    seen = clocks({name: programs[name] for name in chosen}) if have_clocks(programs.values()) else {}
    usual = taken[plain] / whole[plain]
    return {
        name: foretelling([(of, taken[one]) for one, of in seen.items() if one != name], usual)(program)
        for name, (_, program) in programs.items()
    }


def have_clocks(programs: Iterable[Subject]) -> bool:
    """Whether the steps of all programs run one after the other, and are over when the next begins.

    Args:
        programs: each with the task that it was captured from.
    """
    return all(task.device == "cpu" and not program.host_bytes for task, program in programs)


def _ticked(of: Shares) -> bool:
    """Whether the clock told any time at all: not where it is coarser than the program is long."""
    return any(share.taken for share in of.values())


def spread(count: int, most: int) -> list[int]:
    """Return up to so many of the numbers below a count, the first and the last among them.

    Example:
        >>> spread(11, 3), spread(2, 3)
        ([0, 5, 10], [0, 1])
    """
    picked = min(count, most)
    return sorted({round(i * (count - 1) / max(picked - 1, 1)) for i in range(picked)})
