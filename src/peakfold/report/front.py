"""A front as one self-contained HTML page: bytes against time, points and peers, all relative to eager."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from peakfold.report.html import environment

WIDTH, HEIGHT = 1000, 400
AIR = 0.05
"""Of the plot's width, before the first and behind the last dot."""

Kind = Literal["predicted", "measured", "peer"]


@dataclass(frozen=True, slots=True)
class Dot:
    """One program.

    Attributes:
        kind: a point of the front as predicted, one that was run, or a peer.
        name: what a reader sees of it.
        memory: bytes over eager's.
        latency: seconds over eager's.
    """

    kind: Kind
    name: str
    memory: float
    latency: float


@dataclass(frozen=True, slots=True)
class Placed:
    """A dot, in percent of the plot from the left and the bottom."""

    dot: Dot
    left: float
    bottom: float


@dataclass(frozen=True, slots=True)
class Plot:
    """Dots on one scale, stairs through those of the front, and labels of both axes.

    Attributes:
        dots: all.
        front, peers: SVG paths in a box of WIDTH x HEIGHT, the least memory at each time; empty without dots.
        times: of the axis, as (percent, label).
        memories: as ``times``.
    """

    dots: tuple[Placed, ...]
    front: str
    peers: str
    times: tuple[tuple[float, str], ...]
    memories: tuple[tuple[float, str], ...]


def plot_of(dots: Sequence[Dot]) -> Plot:
    """Place dots: the memory axis begins at nothing, the time axis at the fastest.

    Example:
        >>> plot = plot_of([Dot("measured", "a", 0.5, 1.0), Dot("peer", "b", 1.0, 2.0)])
        >>> [(placed.left, placed.bottom) for placed in plot.dots], plot.memories[-1]
        ([(5.0, 50.0), (95.0, 100.0)], (100.0, '1'))
    """
    low, high = _bounds([dot.latency for dot in dots])
    top = max([1.0, *(dot.memory for dot in dots)])

    def left(latency: float) -> float:
        return round(100 * (latency - low) / (high - low), 2)

    def bottom(memory: float) -> float:
        return round(100 * memory / top, 2)

    def stairs(kinds: Sequence[Kind]) -> str:
        chosen = [(left(d.latency), bottom(d.memory)) for d in dots if d.kind in kinds]
        return _stairs(chosen)

    run = any(dot.kind == "measured" for dot in dots)
    return Plot(
        dots=tuple(Placed(dot, left(dot.latency), bottom(dot.memory)) for dot in dots),
        front=stairs(("measured",) if run else ("predicted",)),
        peers=stairs(("peer",)),
        times=tuple((left(at), f"{at:g}") for at in _round(low, high)),
        memories=tuple((bottom(at), f"{at:g}") for at in _round(0.0, top)),
    )


def render_front(
    target: str, dots: Sequence[Dot], lines: Sequence[str], rows: Sequence[Sequence[str]]
) -> str:
    """Return the page of a front.

    Args:
        target: what the user calls the program.
        dots: points and peers.
        lines: what is said below the plot.
        rows: of the table of points: their cells.
    """
    template = environment().get_template("front.html.j2")
    return template.render(title=target, plot=plot_of(dots), lines=lines, rows=rows)


def _bounds(times: Sequence[float]) -> tuple[float, float]:
    low, high = min([1.0, *times]), max([1.0, *times])
    span = (high - low) or 1.0
    return low - AIR * span / (1 - 2 * AIR), high + AIR * span / (1 - 2 * AIR)


def _stairs(places: Sequence[tuple[float, float]]) -> str:
    """The least from the left, held until the next lower one, to the right end."""
    path, least = "", math.inf
    for left, bottom in sorted(places):
        if bottom < least:
            x, y = f"{WIDTH * left / 100:.1f}", f"{HEIGHT * (1 - bottom / 100):.1f}"
            path, least = f"{path}H{x}V{y}" if path else f"M{x} {y}", bottom
    return f"{path}H{WIDTH}" if path else ""


def _round(low: float, high: float) -> list[float]:
    """Numbers between two, about five, that are short in decimals."""
    raw = (high - low) / 5
    base = 10.0 ** math.floor(math.log10(raw))
    step = next(base * factor for factor in (1, 2, 5, 10) if base * factor >= raw)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [round(k * step, 6) for k in range(first, last + 1)]
