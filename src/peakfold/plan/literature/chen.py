"""Sublinear memory: keep what crosses a few cuts, compute the stages between them again.

Chen, Xu, Zhang and Guestrin, "Training Deep Nets with Sublinear Memory Cost", 2016, algorithm 3: a stage ends
at the first cut at which what it makes exceeds ``b`` bytes; ``b`` is searched over a grid around the square
root of (bytes of everything times bytes of the largest kept value).
"""

from collections.abc import Iterator

from peakfold.plan.literature.cuts import crossing, cuts
from peakfold.plan.literature.subject import Baseline, Subject, best

GRID = 40
"""Sizes of a stage that are tried."""


def chen(subject: Subject, memory: int) -> Baseline:
    """Return the plan of Chen's algorithm 3 for a budget in bytes."""
    return best((subject.from_modes("chen", modes) for modes in _plans(subject)), memory)


def _plans(subject: Subject) -> Iterator[list[int]]:
    """Yield the modes of each distinct set of stages."""
    yield subject.kept()
    crosses, places = crossing(subject), cuts(subject)
    total = sum(_bytes(subject, subject.makes[step]) for step in subject.steps[: subject.turn])
    seen: set[tuple[int, ...]] = set()
    for i in range(GRID):
        ends = tuple(_stages(subject, places, total * 0.9**i))
        if ends not in seen:
            seen.add(ends)
            yield subject.dropped(v for end in ends for v in crosses[end])


def _stages(subject: Subject, places: list[int], most: float) -> Iterator[int]:
    """Yield where each stage ends that makes up to ``most`` bytes."""
    made, allowed = 0, set(places)
    for place, step in enumerate(subject.steps[: subject.turn]):
        made += _bytes(subject, subject.makes[step])
        if made > most and place in allowed:
            yield place
            made = 0


def _bytes(subject: Subject, storages: list[int]) -> int:
    return sum(int(subject.tables.nbytes[v]) for v in storages)
