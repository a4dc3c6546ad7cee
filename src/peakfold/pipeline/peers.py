"""What users do today, run beside the points of a front: what it takes, and where the front is ahead."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from peakfold.pipeline.task import Task
from peakfold.report.progress import Progress

EAGER = "eager"
MARGIN = 1.1
"""A peer is not timed in turn with the points where another one takes no more bytes and so much less time."""


@dataclass(frozen=True)
class Seen:
    """A peer that ran by itself.

    Attributes:
        name: of it.
        call: one more step of it; None where it failed.
        peak_bytes: the most bytes of a step.
        seconds: CPU seconds of its first step.
        equal: whether losses, parameters and optimizer state are eager's but for rounding. Running
            statistics do not count: a checkpoint around them updates them twice.
        error: why it failed.
    """

    name: str
    call: Callable[[], object] | None
    peak_bytes: int = 0
    seconds: float = 0.0
    equal: bool | None = None
    error: str | None = None


Peers = Callable[[Task, Progress], Sequence[Seen]]
"""Runs the peers of a task, eager first, on copies of it."""


@dataclass(frozen=True, slots=True)
class PeerOf:
    """A peer beside a front; ratios are to eager, None where it failed.

    Attributes:
        name: such as ``"accumulate-4+checkpoint-1"``.
        memory_ratio: measured.
        latency_ratio: of the least of several steps, run in turn with the points, where it is ``timed``; else
            of one step: another peer takes no more bytes and clearly less time.
        equal: as in `Seen`.
        timed: whether it was run in turn with the points.
        error: why it failed.
    """

    name: str
    memory_ratio: float | None = None
    latency_ratio: float | None = None
    equal: bool | None = None
    timed: bool = False
    error: str | None = None


@dataclass(frozen=True, slots=True)
class Ahead:
    """Measured points of a front against the best of eager and all peers that are equal.

    Attributes:
        points: that were measured and are equal.
        left: of them, those that take less memory than every peer that is as fast.
        latency: of the fastest point.
        peer: the fastest peer.
        peer_latency: of it.
        words: what it comes to, as one line.
    """

    points: int
    left: int
    latency: float
    peer: str
    peer_latency: float
    words: str = field(init=False)

    def __post_init__(self) -> None:
        fastest = f"the fastest takes {self.latency:.3f} of eager's time, {self.peer} {self.peer_latency:.3f}"
        said = f"left of the best peer at {self.left} of {self.points} points; {fastest}"
        object.__setattr__(self, "words", said)


def worth_timing(seen: Sequence[Seen]) -> dict[str, Callable[[], object]]:
    """Return the steps of peers that may be the best at some time.

    Example:
        >>> def call(): ...
        >>> slow, wrong = Seen("slow", call, 6, 2.0, True), Seen("wrong", call, 1, 1.0, False)
        >>> list(worth_timing([Seen("quick", call, 5, 1.0, True), slow, wrong]))
        ['quick']
    """
    able = [one for one in seen if one.equal and one.name != EAGER]
    return {
        one.name: one.call
        for one in able
        if one.call is not None
        and not any(
            other.peak_bytes <= one.peak_bytes and MARGIN * other.seconds < one.seconds for other in able
        )
    }


def peers_of(seen: Sequence[Seen], timed: Mapping[str, float]) -> tuple[PeerOf, ...]:
    """Return the peers with their ratios.

    Args:
        seen: eager first.
        timed: latency ratios of those that were run in turn with the points, by name.
    """
    eager = seen[0] if seen else None
    if eager is None or eager.call is None:
        return ()
    return tuple(
        PeerOf(one.name, error=one.error)
        if one.call is None
        else PeerOf(
            one.name,
            one.peak_bytes / eager.peak_bytes,
            timed.get(one.name, one.seconds / eager.seconds),
            one.equal,
            one.name in timed,
        )
        for one in seen[1:]
    )


def ahead(points: Sequence[tuple[float, float]], peers: Sequence[PeerOf]) -> Ahead | None:
    """Compare measured points with peers that were timed in the same run; None without any of either.

    Args:
        points: (memory ratio, latency ratio) of those that are equal.
        peers: all.

    Example:
        >>> peers = [PeerOf("a", 0.6, 0.95, True, True), PeerOf("b", 0.1, 1.1, True, True)]
        >>> ahead([(0.5, 0.9), (0.2, 1.2)], peers).words
        "left of the best peer at 1 of 2 points; the fastest takes 0.900 of eager's time, a 0.950"
    """
    timed = [
        (one.memory_ratio, one.latency_ratio, one.name)
        for one in peers
        if one.timed and one.equal and one.memory_ratio is not None and one.latency_ratio is not None
    ]
    if not points or not peers:
        return None
    known = [(1.0, 1.0, EAGER), *timed]
    left = sum(
        all(memory < other for other, seconds, _ in known if seconds <= latency) for memory, latency in points
    )
    seconds, name = min((seconds, name) for _, seconds, name in known)
    return Ahead(len(points), left, min(latency for _, latency in points), name, seconds)
