"""The comparison with peers as rows of tables, made of the JSON of ``peakfold bench``."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from peakfold.bench.best import Best, best_at, best_at_peers
from peakfold.bench.rows import PEAKFOLD, Results, Row, row_from_dict
from peakfold.bench.table import equal_word

Found = Mapping[str, Any]
Cells = Sequence[str]

LIMITS = (1.05, 1.10, 1.35)
BARS = {
    "resnet50": 0.78, "bert": 0.58, "vit": 0.60, "unet": 0.65, "unetpp": 0.55, "gptneo": 0.55, "btlm": 0.34,
}  # fmt: skip
"""What memory at 10 % more time is to be at most, over eager's."""


def _results(rows: Sequence[Found]) -> Results:
    return Results(tuple(row_from_dict(row) for row in rows))


def times(rows: Sequence[Found]) -> Iterator[Cells]:
    """Yield how far predicted times are from measured ones, before and after correction."""
    results = _results(rows)
    for workload in results.workloads:
        plans = [row for row in results.of(workload) if row.variant == PEAKFOLD and row.latency_ratio]
        before = [_off(row.uncorrected_latency_ratio, row) for row in plans]
        after = [_off(row.predicted_latency_ratio, row) for row in plans if row.constraint != "none"]
        if before and after:
            yield workload, str(len(plans)), f"{max(before):.1%}", f"{max(after):.1%}"


def _off(predicted: float | None, row: Row) -> float:
    assert row.latency_ratio is not None
    return abs((predicted or 0.0) / row.latency_ratio - 1)


def limits(rows: Sequence[Found]) -> Iterator[Cells]:
    """Yield the least memory within each limit of the time, beside the best checkpointing peer."""
    for best in best_at(_results(rows), LIMITS):
        bar = f"{BARS[best.workload]:.2f}" if best.limit == 1.10 and best.workload in BARS else ""
        yield best.workload, f"{best.limit:.2f}", ratio(best.peakfold), bar, *_peer(best)


def at_peers(rows: Sequence[Found]) -> Iterator[Cells]:
    """Yield the same within the time of each checkpointing peer, and of eager."""
    for best in best_at_peers(_results(rows)):
        yield best.workload, f"{best.limit:.2f} ({best.why})", ratio(best.peakfold), *_peer(best)


def _peer(best: Best) -> Cells:
    reached = {True: "yes", False: "NO", None: "-"}[best.reached]
    return f"{ratio(best.peer)} ({best.of})", ratio(best.bound), reached


def variants(rows: Sequence[Found]) -> Iterator[Cells]:
    """Yield every variant."""
    for row in _results(rows).rows:
        yield (
            row.workload,
            row.name,
            "-" if row.peak_bytes is None else f"{row.peak_bytes / 1e6:.1f}",
            ratio(row.memory_ratio),
            ratio(row.latency_ratio),
            row.error.split("\n")[0][:80] if row.error else equal_word(row),
        )


def ratio(value: float | None) -> str:
    """Return a ratio as tables show it."""
    return "-" if value is None else f"{value:.3f}"
