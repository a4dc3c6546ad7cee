"""Figures 9 and 10: least bytes within a time, and least time within bytes, beside peers."""

from collections.abc import Iterable, Iterator

from peakfold.bench.figures.studied import Asked, Row, Studied, studied
from peakfold.errors import InfeasibleError

TIMES = (1.10, 1.05)
"""Most time over eager's, of figure 9."""
SHARES = (0.8, 0.4)
"""Most bytes over eager's, of figure 10."""


def memory_bars(name: str, asked: Asked) -> Iterator[Row]:
    """Yield the least bytes within each time."""
    one = studied(name, asked)
    peers = tuple(_peers(one, asked))
    for limit in TIMES:
        if asked.has(workload=name, latency=limit):
            continue
        found = _least((planner, peak) for planner, peak, time in peers if time <= limit)
        yield {"workload": name, "latency": limit, "peers": found, **_ours(one, asked, latency=limit)}


def time_bars(name: str, asked: Asked) -> Iterator[Row]:
    """Yield the least time within each share of eager's bytes."""
    one = studied(name, asked)
    peers = tuple(_peers(one, asked))
    for share in SHARES:
        if asked.has(workload=name, memory=share):
            continue
        found = _least((planner, time) for planner, peak, time in peers if peak <= share)
        yield {"workload": name, "memory": share, "peers": found, **_ours(one, asked, memory=share)}


def _peers(one: Studied, asked: Asked) -> Iterator[tuple[str, float, float]]:
    """Yield what the planners of the literature come to, over eager: name, bytes, seconds."""
    return ((name, peak / one.eager, seconds / one.seconds) for name, peak, seconds in one.peers(asked))


def _least(found: Iterable[tuple[str, float]]) -> dict[str, float]:
    """Return the least figure of each planner."""
    best: dict[str, float] = {}
    for planner, figure in found:
        best[planner] = min(best.get(planner, figure), figure)
    return best


def _ours(one: Studied, asked: Asked, memory: float | None = None, latency: float | None = None) -> Row:
    search = one.search(asked, memory, latency)
    try:
        found = search.run()
    except InfeasibleError as error:
        return {"peakfold": None, "lowest_memory_ratio": error.lowest_peak_bytes / one.eager}
    return {
        "peakfold": one.ratios(found.peak_bytes, found.seconds),
        "states": found.states,
        "regions": [f"{region.axis} into {region.parts}" for region in found.plan.regions],
    }
