"""The least memory within a time: of peakfold, and of the peers that compute again by hand."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from peakfold.bench.rows import EAGER, PEAKFOLD, Results, Row, eager_of
from peakfold.bench.settings import is_checkpoint

AHEAD = 0.85
"""The part of the best checkpointing peer's memory that peakfold is to stay within at equal time."""


@dataclass(frozen=True)
class Best:
    """The least peaks within a time, all relative to eager's peak.

    Attributes:
        workload: its name.
        limit: of the time over eager's.
        why: ``"limit"``, or the peer whose measured time the limit is.
        peakfold: of its plans that measured within the limit; None where none did.
        plan: which.
        peer: of eager and the checkpointing peers that did.
        of: which.
        bound: the proven lower bound; None where nothing was searched.
    """

    workload: str
    limit: float
    why: str
    peakfold: float | None
    plan: str
    peer: float | None
    of: str
    bound: float | None

    @property
    def most(self) -> float | None:
        """What peakfold is to stay within: a part of the peer's memory, or the bound where that is more."""
        if self.peer is None:
            return None
        return max(AHEAD * self.peer, self.bound or 0.0)

    @property
    def reached(self) -> bool | None:
        """Whether it does; None where there is nothing to compare with."""
        if self.most is None:
            return None
        return self.peakfold is not None and self.peakfold <= self.most


def best_at(results: Results, limits: Sequence[float]) -> Iterator[Best]:
    """Yield the least memory of each workload within each limit.

    Example:
        >>> rows = (Row("w", "eager", memory_ratio=1.0, latency_ratio=1.0),
        ...         Row("w", "checkpoint-1", memory_ratio=0.5, latency_ratio=1.3),
        ...         Row("w", "peakfold", "latency 1.35", memory_ratio=0.4, latency_ratio=1.34))
        >>> [(best.peakfold, best.peer, best.reached) for best in best_at(Results(rows), (1.1, 1.35))]
        [(None, 1.0, False), (0.4, 0.5, True)]
    """
    for workload in results.workloads:
        rows = results.of(workload)
        yield from (_best(rows, limit, "limit") for limit in limits)


def best_at_peers(results: Results) -> Iterator[Best]:
    """Yield the same within the measured time of each checkpointing peer, and of eager."""
    for workload in results.workloads:
        rows = results.of(workload)
        for row in rows:
            if row.latency_ratio is not None and _is_peer(row):
                yield _best(rows, row.latency_ratio, row.variant)


def _best(rows: Sequence[Row], limit: float, why: str) -> Best:
    mine = _least(rows, limit, lambda row: row.variant == PEAKFOLD and row.equal is not False)
    peer = _least(rows, limit, _is_peer)
    return Best(
        workload=rows[0].workload,
        limit=limit,
        why=why,
        peakfold=None if mine is None else mine.memory_ratio,
        plan="" if mine is None else mine.constraint,
        peer=None if peer is None else peer.memory_ratio,
        of="" if peer is None else peer.variant,
        bound=bound_ratio(rows),
    )


def _is_peer(row: Row) -> bool:
    return row.variant == EAGER or is_checkpoint(row.variant)


def _least(rows: Sequence[Row], limit: float, is_one: Callable[[Row], bool]) -> Row | None:
    within = [
        (row.memory_ratio, row.latency_ratio, i)
        for i, row in enumerate(rows)
        if is_one(row)
        and row.memory_ratio is not None
        and row.latency_ratio is not None
        and row.latency_ratio <= limit
    ]
    return rows[min(within)[2]] if within else None


def bound_ratio(rows: Sequence[Row]) -> float | None:
    """Return the proven lower bound of the peak over eager's peak; None where nothing was searched."""
    eager = eager_of(rows)
    bounds = [row.lower_bound_bytes for row in rows if row.lower_bound_bytes]
    if eager is None or not eager.peak_bytes or not bounds:
        return None
    return max(bounds) / eager.peak_bytes
