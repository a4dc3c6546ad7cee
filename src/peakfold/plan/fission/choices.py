"""Ways to run the bodies of regions, and which of them are tried together."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import product

import numpy as np

from peakfold.cost.costs import Costs
from peakfold.ir.graph import Graph
from peakfold.ir.plan import Compute, Region
from peakfold.plan.fission.program import with_loops
from peakfold.plan.schedule.timeline import Timeline

CLEARLY = 0.005
"""Share of the workspace that a slower way to run a body must save."""
NESTED = 3
"""Points of a body that the one around it chooses from."""
PRICES = 6
"""Prices of a byte that are tried."""
FINE = 40
"""Prices of a byte at which a plan of the outer graph is recombined with other choices."""


@dataclass(frozen=True, slots=True)
class Choice:
    """One way to run a body.

    Attributes:
        workspace: most bytes of a part beyond operands and results.
        seconds: of all parts.
        region: the region with the plan of its body.
    """

    workspace: int
    seconds: float
    region: Region


def pareto(choices: Iterator[Choice]) -> Iterator[Choice]:
    """Yield what is neither slower nor clearly larger than another one, the fastest first."""
    least = None
    for choice in sorted(choices, key=lambda c: (c.seconds, c.workspace)):
        if least is None or choice.workspace < least * (1 - CLEARLY):
            least = choice.workspace
            yield choice


def few(front: tuple[Choice, ...]) -> tuple[Choice, ...]:
    """Return the ends of a front and what is between them, ``NESTED`` choices at most."""
    picks = sorted({round(i) for i in np.linspace(0, len(front) - 1, min(NESTED, len(front)))})
    return tuple(front[i] for i in picks)


def together(fronts: Mapping[int, tuple[Choice, ...]]) -> Iterator[dict[int, Choice]]:
    """Yield a choice for each of some loops: all combinations of one loop, else the same place in all."""
    if len(fronts) <= 1:
        yield from (dict(zip(fronts, picked, strict=True)) for picked in product(*fronts.values()))
        return
    for place in range(NESTED):
        yield {ident: front[min(place, len(front) - 1)] for ident, front in fronts.items()}


def picks_of(fronts: Mapping[int, tuple[Choice, ...]], count: int = PRICES) -> Iterator[dict[int, Choice]]:
    """Yield the choices that prices of a byte make, from none at all to one that makes all smallest.

    Of a single loop, which no price weighs against another, choices evenly thinned.
    """
    if len(fronts) == 1:
        ((ident, front),) = fronts.items()
        picks = sorted({round(i) for i in np.linspace(0, len(front) - 1, min(count, len(front)))})
        yield from ({ident: front[i]} for i in picks)
        return
    seen: list[tuple[int, ...]] = []
    for price in _prices(fronts, count):
        at = tuple(_cheapest(front, price) for front in fronts.values())
        if at not in seen:
            seen.append(at)
            yield {ident: front[i] for (ident, front), i in zip(fronts.items(), at, strict=True)}


def _prices(fronts: Mapping[int, tuple[Choice, ...]], count: int) -> list[float]:
    """Return prices at which choices change, thinned: 0, some between, infinity."""
    found = sorted(
        (b.seconds - a.seconds) / (a.workspace - b.workspace)
        for front in fronts.values()
        for i, a in enumerate(front)
        for b in front[i + 1 :]
    )
    between = (
        [found[round(i)] * (1 + 1e-9) for i in np.linspace(0, len(found) - 1, count - 2)] if found else []
    )
    return [0.0, *between, np.inf]


def _cheapest(front: tuple[Choice, ...], price: float) -> int:
    if price == np.inf:
        return len(front) - 1
    return min(range(len(front)), key=lambda i: (front[i].seconds + price * front[i].workspace, i))


def combined(
    timeline: Timeline, picked: Mapping[int, Choice], ways: Iterable[dict[int, Choice]]
) -> Iterator[tuple[dict[int, Choice], int, float]]:
    """Yield what a plan of the outer graph comes to with other choices: peak and seconds.

    Args:
        timeline: of the plan, with what was picked.
        picked: a choice for each loop.
        ways: others.
    """
    loops: dict[int, list[int]] = {}
    rest = 0
    for row, step in enumerate(timeline.steps):
        if isinstance(step, Compute) and step.run.node in picked:
            loops.setdefault(step.run.node, []).append(row)
        else:
            rest = max(rest, int(timeline.during[row]))
    others = {
        ident: max(int(timeline.during[row] - timeline.workspace[row]) for row in rows)
        for ident, rows in loops.items()
    }
    for way in ways:
        seconds = sum(len(rows) * (way[i].seconds - picked[i].seconds) for i, rows in loops.items())
        peak = max([rest, *(others[i] + way[i].workspace for i in loops)])
        yield way, peak, timeline.seconds + seconds


def priced(graph: Graph, costs: Costs, choices: Mapping[int, Choice]) -> Costs:
    """Return costs in which each loop costs what was chosen for it."""
    whole = with_loops(graph, costs, {})
    seconds = {**whole.seconds, **{ident: choice.seconds for ident, choice in choices.items()}}
    workspace = {**whole.workspace, **{ident: choice.workspace for ident, choice in choices.items()}}
    return replace(whole, seconds=seconds, workspace=workspace)
