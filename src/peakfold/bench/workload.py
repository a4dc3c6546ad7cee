"""One workload: memory and equality of each variant, then the time of all, in turn."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import torch

from peakfold.bench.beside import as_call
from peakfold.bench.observe import Call, Make, Observed, is_equal, message, observe, timed
from peakfold.bench.peers import catalog
from peakfold.bench.planned import CLOSE, SPARES, Planned, Plans, Search
from peakfold.bench.rows import EAGER, PEAKFOLD, Row
from peakfold.bench.settings import Settings, is_checkpoint
from peakfold.budget import parse_memory
from peakfold.errors import InfeasibleError
from peakfold.ir.plan import Plan
from peakfold.pipeline.in_place import corrected
from peakfold.pipeline.machine import free_bytes
from peakfold.pipeline.program import TORCH, Program
from peakfold.pipeline.prove import planned_call
from peakfold.pipeline.task import Task
from peakfold.report.progress import Progress
from peakfold.workloads import SIZES, block_classes, build

NONE = "none"
ROUNDS = 3
"""Timed runs from which times are corrected before the search."""


@dataclass
class _Run:
    """A workload as its benchmark goes on.

    Attributes:
        rows: by their names.
        calls: the variants that run, by the name of the first row that has them.
        same: of each row, that name: one program may serve several constraints.
        plans: name of the first row with a plan.
        programs: peakfold's, by that name.
    """

    workload: str
    task: Task
    settings: Settings
    say: Progress
    emit: Callable[[Row], None]
    rows: dict[str, Row] = field(default_factory=dict)
    calls: dict[str, Call] = field(default_factory=dict)
    same: dict[str, str] = field(default_factory=dict)
    plans: dict[Plan, str] = field(default_factory=dict)
    programs: dict[str, Program] = field(default_factory=dict)
    eager: Observed | None = None

    def put(self, row: Row) -> None:
        """Keep a row, and tell it."""
        self.rows[row.name] = row
        self.emit(row)

    def try_(self, row: Row, make: Make, program: Program | None = None) -> None:
        """Run a variant alone, a peer or a program; a failure becomes the row's error."""
        self.say("memory", 0.0, row.name)
        try:
            seen, difference = observe(make, self.task, self.settings.seed, self.eager, *_beside(program))
        except Exception as error:
            self.put(replace(row, error=message(error)))
            return
        if self.eager is None:
            self.eager = seen
        self.calls[row.name] = seen.call
        self.same[row.name] = row.name
        self.put(
            replace(
                row,
                peak_bytes=seen.peak_bytes,
                memory_ratio=seen.peak_bytes / self.eager.peak_bytes,
                equal=is_equal(difference),
                max_error=difference.max_error,
            )
        )

    def reuse(self, row: Row, first: str) -> None:
        """Take over what was measured of a row with the same program."""
        known = self.rows[first]
        self.same[row.name] = first
        self.put(
            replace(
                row,
                peak_bytes=known.peak_bytes,
                memory_ratio=known.memory_ratio,
                equal=known.equal,
                max_error=known.max_error,
                error=known.error,
            )
        )


def run_workload(name: str, settings: Settings, say: Progress, emit: Callable[[Row], None]) -> None:
    """Measure every variant of a workload, and tell each row as soon as something of it is known.

    Args:
        name: of the workload.
        settings: what is to run.
        say: told where it is.
        emit: given each row, again whenever more of it is known.
    """
    say("build", 0.0)
    target = build(name, settings.size, optimizer=settings.optimizer, seed=settings.seed)
    run = _Run(name, Task.of(target), settings, say, emit)
    peers = catalog(block_classes(name), SIZES[name][settings.size].batch)
    for peer in [EAGER, *settings.chosen(peers)]:
        run.try_(Row(name, peer, allocator=TORCH), partial(as_call, peers[peer]))
    if run.eager is None:
        return
    plans = Plans(run.task, settings, say)
    _add(run, plans, Planned(NONE, plans.plain))
    for constraint, search in _memory_searches(run, plans):
        _search(run, plans, constraint, search)
    quick = timed(_quick(run), ROUNDS, settings.threads, say)
    plans.correction = _correction(run, plans, quick)
    for constraint, search in _time_searches(run, plans, quick):
        _search(run, plans, constraint, search)
    _time(run, timed(run.calls, settings.repeats, settings.threads, say))


def _memory_searches(run: _Run, plans: Plans) -> Iterator[tuple[str, Search]]:
    assert run.eager is not None
    for asked in run.settings.memory:
        budget = parse_memory(asked)
        free = free_bytes(run.task.device) if budget.fit else 0
        nbytes = budget.resolve(run.eager.peak_bytes, free)
        constraint = f"memory {asked}"
        yield constraint, partial(plans.within_bytes, constraint, nbytes)


def _time_searches(run: _Run, plans: Plans, quick: dict[str, float]) -> Iterator[tuple[str, Search]]:
    for limit in run.settings.latency:
        constraint = f"latency {limit:.2f}"
        yield constraint, partial(plans.within_time, constraint, limit, SPARES)
    for peer in quick if run.settings.matched else ():
        if peer == EAGER or is_checkpoint(peer):
            constraint = f"as {peer}"
            limit, spares = quick[peer] / quick[EAGER], CLOSE if peer == EAGER else ()
            yield constraint, partial(plans.within_time, constraint, limit, spares)


def _search(run: _Run, plans: Plans, constraint: str, search: Search) -> None:
    run.say("search", 0.0, constraint)
    try:
        found: Sequence[Planned] = search()
    except Exception as error:
        bound = error.lower_bound_bytes if isinstance(error, InfeasibleError) else None
        run.put(Row(run.workload, PEAKFOLD, constraint, lower_bound_bytes=bound, error=message(error)))
        return
    for planned in found:
        _add(run, plans, planned)


def _add(run: _Run, plans: Plans, planned: Planned) -> None:
    """Measure a program alone, or take over what is known of it."""
    row = Row(
        run.workload,
        PEAKFOLD,
        planned.constraint,
        predicted_peak_bytes=planned.program.peak,
        predicted_latency_ratio=plans.ratio(planned.program),
        uncorrected_latency_ratio=plans.uncorrected(planned.program),
        lower_bound_bytes=planned.lower_bound_bytes,
        search_seconds=planned.search_seconds,
        allocator=planned.program.allocator,
    )
    first = run.plans.setdefault(planned.program.plan, row.name)
    if first == row.name:
        run.programs[first] = planned.program
        run.try_(row, lambda task: planned_call(task, planned.program), planned.program)
    else:
        run.reuse(row, first)


def _beside(program: Program | None) -> tuple[Sequence[torch.Tensor], int]:
    """Return what a variant holds beside its task: constants, and bytes of an arena."""
    if program is None:
        return (), 0
    return program.captured.binding.constants, 0 if program.layout is None else program.layout.arena


def _quick(run: _Run) -> dict[str, Call]:
    """Return what is timed before the searches for limits of the time."""
    matched = run.settings.matched
    return {
        name: call
        for name, call in run.calls.items()
        if run.rows[name].variant in (EAGER, PEAKFOLD) or (matched and is_checkpoint(name))
    }


def _correction(run: _Run, plans: Plans, quick: dict[str, float]) -> float:
    """Return the mean of measured over predicted time of the programs that ran."""
    found = [
        quick[name] / quick[EAGER] / row.predicted_latency_ratio
        for name, row in run.rows.items()
        if name in quick and row.predicted_latency_ratio
    ]
    return sum(found) / len(found) if found else 1.0


def _time(run: _Run, seconds: dict[str, float]) -> None:
    """Fill in the times, and predictions corrected by what operators took in other programs."""
    run.say("time", 1.0, "clocks in the programs")
    programs = {name: (run.task, program) for name, program in run.programs.items() if name in seconds}
    plain = f"{PEAKFOLD} {NONE}"
    foretold = corrected(programs, seconds, plain) if plain in programs else {}
    for name, row in list(run.rows.items()):
        first = run.same.get(name, "")
        taken = seconds.get(first)
        if taken is None:
            continue
        predicted = row.predicted_latency_ratio
        run.put(
            replace(
                row,
                cpu_seconds=taken,
                latency_ratio=taken / seconds[EAGER],
                predicted_latency_ratio=foretold[first] / seconds[EAGER] if first in foretold else predicted,
            )
        )
