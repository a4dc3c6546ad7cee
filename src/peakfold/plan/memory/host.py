"""Where offloaded buffers wait: an offset for each in one arena on the host."""

from collections.abc import Iterator
from dataclasses import dataclass

from peakfold.ir.graph import Graph
from peakfold.ir.plan import Arrive, Buffer, Offload, Schedule
from peakfold.plan.memory import greedy
from peakfold.plan.memory.problem import Buffer as Placed
from peakfold.plan.memory.problem import Problem
from peakfold.plan.memory.sections import columns

ALIGNMENT = 64


@dataclass(frozen=True)
class HostLayout:
    """An arena on the host.

    Attributes:
        offsets: of what each Offload of the schedule copies, in order.
        nbytes: size of the arena.
    """

    offsets: tuple[int, ...]
    nbytes: int


def host_layout(graph: Graph, schedule: Schedule) -> HostLayout:
    """Return the arena of a schedule: a buffer has its place from its Offload to its Arrive.

    Example:
        >>> host_layout(Graph((), (), ()), Schedule(()))
        HostLayout(offsets=(), nbytes=0)
    """
    stays = [
        Placed(str(i), begin, end, graph.nbytes(buffer.value), ALIGNMENT)
        for i, (buffer, begin, end) in enumerate(_stays(schedule))
    ]
    if not stays:
        return HostLayout((), 0)
    offsets = [int(offset) for offset in greedy.by_size(columns(Problem(tuple(stays))))]
    return HostLayout(tuple(offsets), max(at + stay.size for at, stay in zip(offsets, stays, strict=True)))


def _stays(schedule: Schedule) -> Iterator[tuple[Buffer, int, int]]:
    """Yield each offloaded buffer, in the order of the copies out, with the rows of its stay."""
    ends: dict[tuple[Buffer, int], int] = {}
    begun: dict[Buffer, int] = {}
    for row, step in enumerate(schedule.steps):
        if isinstance(step, Offload):
            begun[step.buffer] = row
            ends[step.buffer, row] = len(schedule.steps)
        elif isinstance(step, Arrive):
            ends[step.buffer, begun[step.buffer]] = row + 1
    yield from ((buffer, row, end) for (buffer, row), end in ends.items())
