"""Memory over the step as shapes: what a page draws, in percent of the plot."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, groupby, pairwise

from peakfold.report.model import BlockKind, Report, Timeline
from peakfold.report.units import bytes_text, seconds_text

STACK: tuple[BlockKind, ...] = (
    "parameters",
    "buffers",
    "optimizer state",
    "batch",
    "gradients",
    "activations",
    "workspace",
)
COLUMNS = 600
WIDTH, HEIGHT = 1000, 400
HEADROOM = 1.06
FAR = 1.5
EVEN = 0.25


@dataclass(frozen=True)
class Band:
    """The area of one kind: an SVG path in a box of WIDTH x HEIGHT."""

    kind: BlockKind
    path: str


@dataclass(frozen=True)
class Tick:
    """A label at the memory axis."""

    percent: float
    label: str


@dataclass(frozen=True)
class Mark:
    """The peak: where it is and what runs there."""

    left: float
    percent: float
    step: str
    label: str


@dataclass(frozen=True)
class Chart:
    """One plot. ``data`` is what the page's script reads out under the pointer."""

    title: str
    bands: tuple[Band, ...]
    peak: Mark
    data: dict[str, object]


@dataclass(frozen=True)
class Picture:
    """The plots of a report, on one scale. Lines are in percent from the bottom, None where not drawn."""

    charts: tuple[Chart, ...]
    kinds: tuple[BlockKind, ...]
    ticks: tuple[Tick, ...]
    budget: float | None
    bound: float | None


def picture_of(report: Report) -> Picture:
    """Draw the timelines of a report on one scale."""
    pairs = (("Before: eager", report.timelines.before), ("After: peakfold", report.timelines.after))
    lines = [(title, line) for title, line in pairs if line is not None and line.steps]
    top = _top([line for _, line in lines], report.limits.memory_bytes)
    return Picture(
        charts=tuple(_chart(title, line, top) for title, line in lines),
        kinds=tuple(kind for kind in STACK if any(kind in line.series for _, line in lines)),
        ticks=_ticks(top),
        budget=_line(report.limits.memory_bytes, top),
        bound=_line(report.lower_bound_bytes, top),
    )


def groups_of(count: int, most: int = COLUMNS) -> list[range]:
    """Return the columns of a plot: each step, or ``most`` groups of neighbours.

    Example:
        >>> groups_of(5, most=2)
        [range(0, 2), range(2, 5)]
    """
    columns = min(most, count)
    ends = [i * count // columns for i in range(columns + 1)] if columns else [0]
    return [range(a, b) for a, b in pairwise(ends)]


def _top(lines: Sequence[Timeline], budget: int | None) -> float:
    peak = max((line.peak_bytes for line in lines), default=1)
    near = budget if budget is not None and budget <= FAR * peak else 0
    return max(peak, near, 1) * HEADROOM


def _line(nbytes: int | None, top: float) -> float | None:
    return None if nbytes is None or nbytes > top else round(100 * nbytes / top, 2)


def _ticks(top: float) -> tuple[Tick, ...]:
    raw = top / 4
    base = 10 ** math.floor(math.log10(raw))
    step = next(base * factor for factor in (1, 2, 5, 10) if base * factor >= raw)
    count = int(top // step)
    return tuple(Tick(round(100 * i * step / top, 2), _tick_text(i * step)) for i in range(count + 1))


def _tick_text(nbytes: float) -> str:
    return "0" if not nbytes else bytes_text(round(nbytes)).replace(".0 ", " ").replace(".00 ", " ")


def _chart(title: str, line: Timeline, top: float) -> Chart:
    groups = groups_of(len(line.steps))
    shown = [max(group, key=lambda step: (line.totals[step], -step)) for group in groups]
    ends = _ends(line, groups)
    floor = [0.0] * len(shown)
    bands = []
    for kind in (kind for kind in STACK if kind in line.series):
        ceiling = [below + line.series[kind][step] for below, step in zip(floor, shown, strict=True)]
        bands.append(Band(kind, _path(floor, ceiling, ends, top)))
        floor = ceiling
    return Chart(title, tuple(bands), _mark(line, shown, ends, top), _data(line, shown, ends))


def _ends(line: Timeline, groups: Sequence[range]) -> list[float]:
    """Where each column ends, in parts of the width: as wide as its operators are long."""
    least = EVEN * sum(line.seconds) / len(line.steps) or 1.0
    widths = [sum(line.seconds[step] + least for step in group) for group in groups]
    ends = [*accumulate(widths)]
    return [round(end / ends[-1], 5) for end in ends]


def _path(floor: Sequence[float], ceiling: Sequence[float], ends: Sequence[float], top: float) -> str:
    """The area between two staircases, as one closed path."""
    xs = [0.0, *ends]
    up = _stairs(ceiling, xs[1:], top)
    down = _stairs(floor[::-1], xs[-2::-1], top)
    return f"M0 {_y(floor[0], top)}{up}{down}Z"


def _stairs(levels: Sequence[float], ends: Sequence[float], top: float) -> str:
    """A path over levels, each held until its end; equal neighbours are one."""
    parts: list[str] = []
    for level, run in groupby(zip(levels, ends, strict=True), key=lambda item: _y(item[0], top)):
        *_, (_, end) = run
        parts.append(f"V{level}H{WIDTH * end:.1f}")
    return "".join(parts)


def _y(nbytes: float, top: float) -> str:
    return f"{HEIGHT * (1 - nbytes / top):.1f}"


def _mark(line: Timeline, shown: Sequence[int], ends: Sequence[float], top: float) -> Mark:
    column = shown.index(line.peak_step)
    start = ends[column - 1] if column else 0.0
    return Mark(
        left=round(50 * (start + ends[column]), 2),
        percent=round(100 * line.peak_bytes / top, 2),
        step=line.steps[line.peak_step],
        label=bytes_text(line.peak_bytes),
    )


def _data(line: Timeline, shown: Sequence[int], ends: Sequence[float]) -> dict[str, object]:
    """What a reader sees under the pointer: for each column the operator and the bytes by kind."""
    starts = [0.0, *accumulate(line.seconds)]
    return {
        "steps": [line.steps[step] for step in shown],
        "times": [seconds_text(starts[step]) if starts[-1] else "" for step in shown],
        "ends": list(ends),
        "kinds": {kind: [line.series[kind][step] for step in shown] for kind in STACK if kind in line.series},
    }
