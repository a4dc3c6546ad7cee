"""The Pareto front of a step: the least bytes at every time, predicted and measured."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache

from peakfold.cost.costs import Costs
from peakfold.errors import UsageError
from peakfold.graph.wl import hashed
from peakfold.ir.graph import Graph
from peakfold.ir.plan import Plan
from peakfold.ir.text import print_plan
from peakfold.options import from_environment
from peakfold.pipeline import prove
from peakfold.pipeline.arena import laid_out, require_allocator
from peakfold.pipeline.before import timeline_before
from peakfold.pipeline.ctrl_c import postponed
from peakfold.pipeline.exact import Precise
from peakfold.pipeline.forms import SHARE, Form, forms
from peakfold.pipeline.in_place import Shares, Subject, clocks_in, spread
from peakfold.pipeline.measured import PLAIN, Measured, measured
from peakfold.pipeline.peers import Ahead, PeerOf, Peers, ahead, peers_of, worth_timing
from peakfold.pipeline.picked import LIMITS, MARGINS, Look, lowest_within
from peakfold.pipeline.pricing import priced
from peakfold.pipeline.program import ARENA, TORCH, Program, emit_plan
from peakfold.pipeline.request import Request
from peakfold.pipeline.searches import side_by_side
from peakfold.pipeline.task import Task
from peakfold.pipeline.tried import why_unsplit
from peakfold.plan.fission.derive import Splitter
from peakfold.plan.schedule import planner
from peakfold.plan.schedule.found import Point
from peakfold.plan.search import joint
from peakfold.plan.search.rewrites import State
from peakfold.plan.search.states import Archive
from peakfold.report.progress import Progress, silent
from peakfold.report.units import bytes_text

TIMES = (1.0, 1.05, 1.1, 1.35)
"""Times, over the plan that drops nothing, at which the least bytes are searched."""
ALONE = 40
"""Budgets for which one search plans where nothing is split."""
FIRST = 4
"""Points of a front that are run first, with clocks."""


@dataclass(frozen=True, slots=True)
class PointOf:
    """One point of a front; ratios are to eager, None where nothing was run.

    Attributes:
        memory_ratio, latency_ratio: predicted.
        peak_bytes: predicted most bytes at once.
        measured_memory_ratio, measured_latency_ratio: by running it.
        corrected_latency_ratio: predicted from what operators took in other programs that ran (`in_place`).
        equal: whether it computes the same; None where it was not run.
        regions: what is done in parts, in the words of the plan.
        plan: the plan's text.
    """

    memory_ratio: float
    latency_ratio: float
    peak_bytes: int
    regions: tuple[str, ...]
    plan: str
    measured_memory_ratio: float | None = None
    measured_latency_ratio: float | None = None
    corrected_latency_ratio: float | None = None
    equal: bool | None = None


@dataclass(frozen=True, slots=True)
class Errors:
    """How far predictions are off at most, as shares of what was measured.

    Attributes:
        points: that were measured.
        memory, latency, corrected_latency: of the ratios of `PointOf`.
    """

    points: int
    memory: float
    latency: float
    corrected_latency: float


@dataclass(frozen=True, slots=True)
class FrontOf:
    """The front of a program.

    Attributes:
        target: what the user calls it.
        eager_peak_bytes: predicted.
        states: plans that were looked at.
        points: from the most bytes to the least; time rises.
        notes: what else is to be said, of the cache for example.
        allocator: what allocated for the points that were measured: ``"torch"``, or ``"arena"``, which
            counts whole in their bytes; None where none was.
        errors: of predictions; None where none was measured.
        peers: what users do today, run in the same run.
        ahead: the points against them; None where either is missing.
    """

    target: str
    eager_peak_bytes: int
    states: int
    points: tuple[PointOf, ...]
    notes: tuple[str, ...] = ()
    allocator: str | None = None
    errors: Errors | None = None
    peers: tuple[PeerOf, ...] = ()
    ahead: Ahead | None = None


def pareto(
    task: Task,
    asked: Request,
    measure: bool,
    progress: Progress = silent,
    in_arena: bool = False,
    peers: Peers | None = None,
) -> FrontOf:
    """Return the front of a task.

    Args:
        task: a training step, or inference.
        asked: time budget, iterations, seed, device and whether regions may be split.
        measure: run some points (`picked`), compare them with eager and measure both.
        progress: told where the work is.
        in_arena: with ``measure``: run each program in an arena of its own, which counts whole in its peak.
        peers: with ``measure``: what else runs, and is timed in turn with the points.

    Raises:
        UsageError: points are to be measured where nothing can be run, or in arenas where there are none.
        CaptureError: the program cannot be captured.
    """
    if measure:
        _require_runnable(task, asked)
    if in_arena:
        _require_arenas(task, measure)
    progress("capture", 0.0, "")
    captured, options = task.capture(), from_environment()

    notes: dict[str, None] = {}

    def costs_of(graph: Graph) -> Costs:
        costs, notices = priced(graph, task, asked, options, lambda done, total: None)
        notes.update(dict.fromkeys(notices))
        return costs

    costs = costs_of(captured.graph)
    plain = emit_plan(captured, Plan(captured.graph.digest), costs, costs_of=costs_of)
    eager = timeline_before(task, captured.graph, costs).peak_bytes
    archive, states, tried = _of_forms(captured.graph, costs_of, plain.timeline.seconds, asked, progress)
    notes.update(dict.fromkeys(_rewritten_notes(tried, archive)))
    if not any(point.plan.regions for point in archive.front):
        notes.update(dict.fromkeys(why_unsplit(asked, Plan(captured.graph.digest))))
    points, splitter = [], Splitter()
    for one in archive.front:
        text = print_plan(one.plan, tried[one.plan.graph].graph, splitter=splitter)
        split = tuple(line.strip() for line in text.splitlines() if line.lstrip().startswith("split "))
        ratio = one.seconds / plain.timeline.seconds
        points.append((one, PointOf(one.peak_bytes / eager, ratio, one.peak_bytes, split, text)))
    seen = peers(task, progress) if measure and peers is not None else ()
    taken: dict[str, float] = {}
    if measure:
        tasks = {digest: Precise(form.of(task), prove.STEPS) for digest, form in tried.items()}

        @cache
        def subject(index: int) -> tuple[Precise, Program]:
            plan = points[index][0].plan
            form, mine = tried[plan.graph], tasks[plan.graph]
            own = emit_plan(form.bound(captured), plan, costs_of(form.graph), costs_of=costs_of)
            return mine, laid_out(mine.task, own, None, run=True) if in_arena else own

        plain = laid_out(task, plain, None, run=True) if in_arena else plain
        picked, clocks = _picked(task, plain, [point.plan for _, point in points], subject, progress)
        programs = {points[index][1].plan: subject(index) for index in picked}
        ran, taken = measured(task, programs, plain, progress, worth_timing(seen), clocks)
        points = [(one, _with(point, ran)) for one, point in points]
    allocator = (ARENA if in_arena else TORCH) if measure else None
    found = tuple(point for _, point in points)
    beside = peers_of(seen, taken)
    return FrontOf(
        target=asked.name,
        eager_peak_bytes=eager,
        states=states,
        points=found,
        notes=tuple(notes),
        allocator=allocator,
        errors=_errors(found),
        peers=beside,
        ahead=ahead(_proved(found), beside),
    )


def _proved(points: Sequence[PointOf]) -> list[tuple[float, float]]:
    """Measured ratios of the points that are equal."""
    return [
        (point.measured_memory_ratio, point.measured_latency_ratio)
        for point in points
        if point.equal and point.measured_memory_ratio and point.measured_latency_ratio
    ]


def _require_runnable(task: Task, asked: Request) -> None:
    if task.is_real and not asked.simulated:
        return
    raise UsageError(
        stage="options",
        what="points of the front cannot be measured where nothing can be run",
        expected="a device that is here, and a model and a batch with numbers",
        got=asked.device if asked.simulated else "a model or a batch on the meta device",
        hint="leave --measure out: every point is predicted",
    )


def _require_arenas(task: Task, measure: bool) -> None:
    if measure and task.device == "cpu":
        require_allocator()
        return
    raise UsageError(
        stage="options",
        what="points of the front cannot run in arenas",
        expected="--measure, on the CPU",
        got=f"the device {task.device}" if measure else "points that are only predicted",
        hint="leave --arena out" if measure else "add --measure, or leave --arena out",
    )


def _searched(
    graph: Graph,
    costs: Costs,
    costs_of: Callable[[Graph], Costs],
    seconds: float,
    asked: Request,
    progress: Progress,
) -> tuple[Archive, int]:
    """Search the whole front at once; Ctrl-C ends it with what was found."""
    times = [ratio * seconds for ratio in TIMES]
    with postponed() as ctrl_c:

        def tell(state: planner.Progress) -> None:
            least = bytes_text(state.peak_bytes) if state.peak_bytes is not None else "none yet"
            progress("search", state.share, f"at {TIMES[-1]:g}x time: {least}")
            if ctrl_c.pressed:
                raise KeyboardInterrupt

        if asked.fission:
            return joint.optimize_front(
                graph,
                costs,
                costs_of,
                times=times,
                time_budget=asked.time_budget,
                iterations=asked.iterations,
                seed=asked.seed,
                progress=tell,
                workers=side_by_side(asked.simulated),
                measured=not asked.simulated,
            )
        found = planner.optimize_front(
            graph,
            costs,
            count=ALONE,
            time_budget=asked.time_budget,
            iterations=asked.iterations,
            seed=asked.seed,
            progress=tell,
        )
        archive = Archive()
        archive.add(*(point for point in found.points if point is not None))
        return archive, found.states


def _of_forms(
    graph: Graph,
    costs_of: Callable[[Graph], Costs],
    seconds: float,
    asked: Request,
    progress: Progress,
) -> tuple[Archive, int, Mapping[str, Form]]:
    """Search the front of the best form of a graph; return the forms by the digests of their graphs."""
    if not asked.rewrite:
        archive, states = _searched(graph, costs_of(graph), costs_of, seconds, asked, progress)
        return archive, states, {graph.digest: Form(State(hashed(graph)))}
    looked_at = [0]

    def search(one: Graph, alone: Request) -> Sequence[Point]:
        found, states = _searched(one, costs_of(one), costs_of, seconds, alone, progress)
        looked_at[0] += states
        return found.front

    found = forms(graph, search, asked, [ratio * seconds for ratio in TIMES])
    left = (
        asked if asked.iterations is not None else replace(asked, time_budget=(1 - SHARE) * asked.time_budget)
    )
    archive, states = _searched(found[0].graph, costs_of(found[0].graph), costs_of, seconds, left, progress)
    archive.add(*(point for form in found for point in form.points))
    return archive, states + looked_at[0], {form.graph.digest: form for form in found}


def _rewritten_notes(tried: Mapping[str, Form], archive: Archive) -> Iterator[str]:
    for digest, form in tried.items():
        count = sum(point.plan.graph == digest for point in archive.front)
        if count and form.words:
            yield f"{count} of {len(archive.front)} points are of the graph rewritten: {form.words}"


def _picked(
    task: Task,
    plain: Program,
    names: Sequence[str],
    subject: Callable[[int], tuple[Precise, Program]],
    progress: Progress,
) -> tuple[list[int], Mapping[str, Shares]]:
    """Return the points that are run, and what their steps took by the clock."""

    def of(points: Iterable[int]) -> dict[str, Subject]:
        return {names[i]: (subject(i)[0].task, subject(i)[1]) for i in sorted(points)}

    def looked(points: Iterable[int]) -> Look:
        return Look.at(task, {PLAIN: (task, plain), **of(points)}, PLAIN)

    def within(look: Look) -> set[int]:
        foretell = look.ratios()
        return {*lowest_within(len(names), lambda index: foretell(subject(index)[1]), limits)}

    limits = [margin * limit for limit in LIMITS for margin in MARGINS]
    first = {*spread(len(names), FIRST)}
    progress("verify", 0.0, "a first look at the times, with clocks")
    look = looked(first)
    second = within(look) - first
    if not second:
        return sorted(first), look.seen
    progress("verify", 0.0, "a second look, at the points that were found")
    look = look.beside(looked(second))
    third = within(look) - first - second
    picked = sorted(first | second | third)
    if not look.seen or not third:
        return picked, look.seen
    progress("verify", 0.0, "clocks in the other points")
    return picked, {**look.seen, **clocks_in(of(third))}


def _with(point: PointOf, measured: Mapping[str, Measured]) -> PointOf:
    if point.plan not in measured:
        return point
    found = measured[point.plan]
    return replace(
        point,
        measured_memory_ratio=found.memory_ratio,
        measured_latency_ratio=found.latency_ratio,
        corrected_latency_ratio=found.corrected_latency_ratio,
        equal=found.equal,
    )


def _errors(points: Sequence[PointOf]) -> Errors | None:
    off = [
        (
            abs(point.memory_ratio / point.measured_memory_ratio - 1),
            abs(point.latency_ratio / point.measured_latency_ratio - 1),
            abs(point.corrected_latency_ratio / point.measured_latency_ratio - 1),
        )
        for point in points
        if point.measured_memory_ratio and point.measured_latency_ratio and point.corrected_latency_ratio
    ]
    return Errors(len(off), *map(max, zip(*off, strict=True))) if off else None


def table_rows(front: FrontOf) -> Iterator[tuple[str, ...]]:
    """Yield the rows of a table of a front."""
    for point in front.points:
        measured = (point.measured_memory_ratio, point.measured_latency_ratio)
        shown = tuple("" if ratio is None else f"{ratio:.3f}" for ratio in measured)
        split = "; ".join(line.split(" over ")[0] for line in point.regions)
        equal = {None: "", True: "equal", False: "NOT EQUAL"}[point.equal]
        yield (f"{point.memory_ratio:.3f}", f"{point.latency_ratio:.3f}", *shown, equal, split)
