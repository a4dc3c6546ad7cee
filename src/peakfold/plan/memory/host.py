"""Where offloaded buffers wait: an offset for each in one arena on the host."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from peakfold.ir.graph import Graph
from peakfold.ir.plan import Arrive, Buffer, Compute, Offload, Prefetch, Release, Schedule, Step
from peakfold.plan.memory import greedy
from peakfold.plan.memory.lifetimes import step_name
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


@dataclass(frozen=True)
class Move:
    """One way to the host and back.

    Attributes:
        name: of what is moved.
        nbytes: its bytes.
        offset: where it waits in the arena on the host.
        out: the step before which the copy out starts; empty at the end of the program.
        gone: the step before which the device's bytes are given back.
        fetch: the step before which the copy back starts.
        back: the step before which it must be there again.
    """

    name: str
    nbytes: int
    offset: int
    out: str
    gone: str
    fetch: str
    back: str


def moves(graph: Graph, schedule: Schedule) -> tuple[Move, ...]:
    """Return every way to the host and back, in the order of the copies out.

    Example:
        >>> moves(Graph((), (), ()), Schedule(()))
        ()
    """
    layout, following = host_layout(graph, schedule), _following(graph, schedule.steps)
    places: dict[Buffer, list[int]] = {}
    found: list[tuple[Buffer, list[int]]] = []
    for row, step in enumerate(schedule.steps):
        if isinstance(step, Offload):
            places[step.buffer] = []
            found.append((step.buffer, places[step.buffer]))
        if isinstance(step, Offload | Prefetch | Arrive) or (
            isinstance(step, Release) and step.buffer in places and len(places[step.buffer]) == 1
        ):
            places[step.buffer].append(row)
    return tuple(
        Move(
            graph.name_of(buffer.value),
            graph.nbytes(buffer.value),
            offset,
            *(following[row] for row in rows),
        )
        for (buffer, rows), offset in zip(found, layout.offsets, strict=True)
    )


def _following(graph: Graph, steps: Sequence[Step]) -> list[str]:
    """Return the name of the first operator at or after each row; a repeated run says so."""
    names, name = [""] * len(steps), ""
    for row in reversed(range(len(steps))):
        step = steps[row]
        name = step_name(graph, step) if isinstance(step, Compute) else name
        names[row] = name
    return names


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
