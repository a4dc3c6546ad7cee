"""Figures 13 and 15: how a search converges, with what is left out of it, and where its time goes."""

from collections.abc import Callable, Iterator
from dataclasses import replace

from peakfold.bench.figures.studied import Asked, Row, Studied, studied
from peakfold.errors import InfeasibleError
from peakfold.plan.schedule.found import Progress
from peakfold.plan.search.joint import Joint
from peakfold.plan.search.roots import Roots

CONSTRAINTS: tuple[tuple[str, float | None, float | None], ...] = (
    ("latency 1.10", None, 1.10),
    ("latency 1.05", None, 1.05),
    ("memory 80%", 0.8, None),
    ("memory 40%", 0.4, None),
)
"""Name, most bytes and most time over eager's."""

ABLATIONS: dict[str, Roots] = {
    "whole": Roots(),
    "without the tree": Roots(tree=False),
    "without the filter": Roots(hot=False),
    "2 levels": Roots(levels=2),
    "8 levels": Roots(levels=8),
}
"""What is left out or changed; the whole has 4 levels."""


def curves(name: str, asked: Asked) -> Iterator[Row]:
    """Yield what each search had found by when, for each constraint and ablation."""
    one = studied(name, asked)
    for constraint, memory, latency in CONSTRAINTS:
        for ablation, roots in ABLATIONS.items():
            if asked.has(workload=name, constraint=constraint, search=ablation):
                continue
            search = replace(one.search(asked, memory, latency), roots=roots)
            points = _converging(one, search, asked.tell(f"{constraint}, {ablation}"))
            yield {"workload": name, "constraint": constraint, "search": ablation, "points": points}


def _converging(one: Studied, search: Joint, tell: Callable[[Progress], None]) -> list[Row]:
    """Run a search; return the seconds at which it found better plans, and what they come to."""
    points: list[Row] = []
    best: list[tuple[int | None, float | None]] = [(None, None)]

    def told(state: Progress) -> None:
        now = (state.peak_bytes, state.seconds)
        if now != best[0] and state.peak_bytes is not None and state.seconds is not None:
            best[0] = now
            points.append({"after": state.elapsed, **one.ratios(state.peak_bytes, state.seconds)})
        tell(state)

    search.progress = told
    try:
        found = search.run()
    except InfeasibleError:
        return points
    if (found.peak_bytes, found.seconds) == best[0]:
        return points
    last = one.ratios(found.peak_bytes, found.seconds)
    return [*points, {"after": found.elapsed, **last}]


def stages(name: str, asked: Asked) -> Iterator[Row]:
    """Yield seconds and counts of the stages of a search, and states filtered as duplicates."""
    one = studied(name, asked)
    for constraint, memory, latency in CONSTRAINTS:
        if asked.has(workload=name, constraint=constraint):
            continue
        search = replace(one.search(asked, memory, latency), workers=1)
        try:
            looked = search.run().states
        except InfeasibleError:
            looked = search.looked_at
        clock = search.clock
        sketching = sum(clock.seconds.get(stage, 0.0) for stage in ("moves", "hashing", "sketch"))
        sketched = clock.counts.get("sketch", 0)
        yield {
            "workload": name,
            "nodes": len(one.graph.nodes),
            "constraint": constraint,
            "seconds": dict(clock.seconds),
            "counts": dict(clock.counts),
            "distinct_states": sketched,
            "duplicates": clock.duplicates,
            "plans_decoded": looked - sketched,
            "states_per_second": sketched / sketching if sketching else None,
            "hashing_share": clock.seconds.get("hashing", 0.0) / max(sum(clock.seconds.values()), 1e-9),
            "hashing_share_of_sketching": clock.seconds.get("hashing", 0.0) / sketching
            if sketching
            else None,
        }
