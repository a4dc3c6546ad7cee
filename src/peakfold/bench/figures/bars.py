"""Figures 9 and 10: least bytes within a time, and least time within bytes, beside peers."""

from collections.abc import Iterator

from peakfold.bench.figures.studied import Asked, Row, Studied, studied
from peakfold.errors import InfeasibleError

TIMES = (1.10, 1.05)
"""Most time over eager's, of figure 9."""
SHARES = (0.8, 0.4)
"""Most bytes over eager's, of figure 10."""


def memory_bars(name: str, asked: Asked) -> Iterator[Row]:
    """Yield the least bytes within each time."""
    one = studied(name, asked)
    peers = list(one.peers(asked))
    for limit in TIMES:
        best: dict[str, float] = {}
        for planner, peak, seconds in peers:
            if seconds <= limit * one.seconds:
                best[planner] = min(best.get(planner, peak), peak)
        found = {planner: peak / one.eager for planner, peak in best.items()}
        yield {"workload": name, "latency": limit, "peers": found, **_ours(one, asked, latency=limit)}


def time_bars(name: str, asked: Asked) -> Iterator[Row]:
    """Yield the least time within each share of eager's bytes."""
    one = studied(name, asked)
    peers = list(one.peers(asked))
    for share in SHARES:
        best: dict[str, float] = {}
        for planner, peak, seconds in peers:
            if peak <= share * one.eager:
                best[planner] = min(best.get(planner, seconds), seconds)
        found = {planner: seconds / one.seconds for planner, seconds in best.items()}
        yield {"workload": name, "memory": share, "peers": found, **_ours(one, asked, memory=share)}


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
