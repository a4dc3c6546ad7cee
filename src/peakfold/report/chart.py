"""Memory over the step as shapes: what a page draws, in percent of the plot."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

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


def columns_of(totals: Sequence[int], most: int = COLUMNS) -> list[int]:
    """Return the steps that a plot shows: all, or of each group of neighbours the one with most bytes.

    Example:
        >>> columns_of((5, 1, 2, 9, 3, 3), most=3)
        [0, 3, 4]
    """
    count = min(most, len(totals))
    ends = [i * len(totals) // count for i in range(count + 1)] if count else [0]
    groups = (range(a, b) for a, b in pairwise(ends))
    return [max(group, key=lambda step: (totals[step], -step)) for group in groups]


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
    shown = columns_of(line.totals)
    floor = [0.0] * len(shown)
    bands = []
    for kind in (kind for kind in STACK if kind in line.series):
        ceiling = [below + line.series[kind][step] for below, step in zip(floor, shown, strict=True)]
        bands.append(Band(kind, _path(floor, ceiling, top)))
        floor = ceiling
    return Chart(title, tuple(bands), _mark(line, shown, top), _data(line, shown))


def _path(floor: Sequence[float], ceiling: Sequence[float], top: float) -> str:
    """The area between two staircases, as one closed path."""
    width = WIDTH / len(floor)
    up = _stairs(ceiling, [i * width for i in range(len(ceiling) + 1)], top)
    back = [(len(floor) - i) * width for i in range(len(floor) + 1)]
    down = _stairs(list(reversed(floor)), back, top)
    return f"M0 {_y(floor[0], top)}{up}{down}Z"


def _stairs(levels: Sequence[float], ends: Sequence[float], top: float) -> str:
    parts: list[str] = []
    last = ""
    for level, end in zip(levels, ends[1:], strict=True):
        if (y := _y(level, top)) != last:
            parts.append(f"V{y}")
            last = y
            parts.append(f"H{end:.1f}")
        else:
            parts[-1] = f"H{end:.1f}"
    return "".join(parts)


def _y(nbytes: float, top: float) -> str:
    return f"{HEIGHT * (1 - nbytes / top):.1f}"


def _mark(line: Timeline, shown: Sequence[int], top: float) -> Mark:
    column = max(range(len(shown)), key=lambda i: (line.totals[shown[i]], -i))
    return Mark(
        left=round(100 * (column + 0.5) / len(shown), 2),
        percent=round(100 * line.peak_bytes / top, 2),
        step=line.steps[line.peak_step],
        label=bytes_text(line.peak_bytes),
    )


def _data(line: Timeline, shown: Sequence[int]) -> dict[str, object]:
    """What a reader sees under the pointer: for each column the operator and the bytes by kind."""
    at = 0.0
    starts = []
    for seconds in line.seconds:
        starts.append(at)
        at += seconds
    return {
        "steps": [line.steps[step] for step in shown],
        "times": [seconds_text(starts[step]) for step in shown],
        "totals": [line.totals[step] for step in shown],
        "kinds": {kind: [line.series[kind][step] for step in shown] for kind in STACK if kind in line.series},
    }
