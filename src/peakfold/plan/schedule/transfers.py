"""Lowering of offloads and packing: four steps for each gap on the host, two for each that is packed.

What a decision names are places; what may happen between them is looked up in the schedule itself. The
copy back arrives before the first step that reads, overwrites or replaces the buffer after the copy out
began, whichever step that is, so that no decision can change what is computed.
"""

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from peakfold.errors import PlanError
from peakfold.ir.graph import Graph, Value
from peakfold.ir.plan import (
    Arrive,
    Buffer,
    Commit,
    CompressGap,
    Compute,
    Free,
    Offload,
    OffloadGap,
    Pack,
    Prefetch,
    Release,
    Schedule,
    Step,
    Unpack,
)
from peakfold.ir.types import TensorType
from peakfold.ops.packing import packing

MOVED_INPUTS = frozenset({"parameter", "buffer", "gradient", "optimizer"})
"""Kinds of inputs whose bytes a program may take from the user's tensors, and gives back in the same step."""


@dataclass(frozen=True, slots=True)
class Trip:
    """The four places of one buffer's way to the host and back, each before a step of the schedule.

    Attributes:
        buffer: what is moved.
        out: the copy to the host starts before this step.
        gone: its device bytes are given back before this step.
        back: they are taken again, and the copy back starts, before this step.
        read: the step that next needs the buffer.
    """

    buffer: Buffer
    out: int
    gone: int
    back: int
    read: int


def with_transfers(graph: Graph, schedule: Schedule, gaps: Sequence[OffloadGap]) -> Schedule:
    """Return a schedule with the steps that decided offloads come to.

    Raises:
        PlanError: a decision names what the graph has not, or what cannot be moved.
    """
    if not gaps:
        return schedule
    return Schedule(tuple(_inserted(schedule.steps, trips(graph, schedule, gaps))))


def with_packing(graph: Graph, schedule: Schedule, gaps: Sequence[CompressGap]) -> Schedule:
    """Return a schedule in which values are packed between two readers; no gap, no steps.

    Raises:
        PlanError: a decision names what the graph has not, or what cannot be packed.
    """
    movable, places = Movable(graph), Places(graph, schedule)
    found: list[Trip] = []
    for gap in gaps:
        away = OffloadGap(gap.value, gap.after, gap.use, gap.use, gap.use)
        movable.require(away, packed=True)
        stay = places.stay(away)
        if stay is not None and stay[1] < stay[2]:
            buffer, out, read = stay
            found.append(Trip(buffer, out, out, read, read))
    before: Moves = {}
    for trip in _apart(found):
        before.setdefault(trip.out, []).append((PACKING, Pack(trip.buffer)))
        before.setdefault(trip.read, []).append((PACKING, Unpack(trip.buffer)))
    return Schedule(tuple(_merged(schedule.steps, before))) if before else schedule


def trips(graph: Graph, schedule: Schedule, gaps: Sequence[OffloadGap]) -> list[Trip]:
    """Return the ways to the host and back that decisions come to; what comes to nothing is left out.

    Raises:
        PlanError: a decision names what the graph has not, or what cannot be moved.
    """
    movable = Movable(graph)
    places = Places(graph, schedule)
    found: list[Trip] = []
    for gap in gaps:
        movable.require(gap)
        trip = places.trip(gap)
        if trip is not None:
            found.append(trip)
    return _apart(found)


def _apart(found: Sequence[Trip]) -> list[Trip]:
    """Leave out what begins before the same buffer is back from an earlier way.

    Decisions are kept in the order of ids; which way is earlier, the schedule says.
    """
    kept: list[Trip] = []
    last: dict[Buffer, int] = {}
    for trip in sorted(found, key=lambda trip: (trip.out, trip.read)):
        if trip.out >= last.get(trip.buffer, 0):
            last[trip.buffer] = trip.read
            kept.append(trip)
    return kept


class Places:
    """Where the buffers of a schedule are made and used."""

    def __init__(self, graph: Graph, schedule: Schedule) -> None:
        self.graph = graph
        self.steps = schedule.steps

    @cached_property
    def first(self) -> Mapping[int, int]:
        """Place of the first run of each node; of an input, the beginning."""
        found = dict.fromkeys(self.graph.input, -1)
        for at, step in enumerate(self.steps):
            if isinstance(step, Compute):
                found.setdefault(step.run.node, at)
        return found

    @cached_property
    def touches(self) -> Mapping[Value, Sequence[int]]:
        """Places that make, read, overwrite, replace or free the storage of each Value, in order."""
        found: dict[Value, list[int]] = {}
        for at, step in enumerate(self.steps):
            for value in dict.fromkeys(self._touched(step)):
                found.setdefault(value, []).append(at)
        return found

    def _touched(self, step: Step) -> Iterator[Value]:
        graph = self.graph
        if isinstance(step, Compute):
            node = graph.node[step.run.node]
            yield from map(graph.storage, node.inputs)
            yield from map(graph.storage, node.outputs)
        elif isinstance(step, Commit):
            yield Value(step.input)
            yield graph.storage(graph.new_value[step.input])
        elif isinstance(step, Free | Pack | Unpack):
            yield step.buffer.value

    def makes(self, at: int, value: Value) -> bool:
        """Whether a step makes the storage of a value."""
        step = self.steps[at]
        return isinstance(step, Compute) and step.run.node == value.node

    def trip(self, gap: OffloadGap) -> Trip | None:
        """Return the way of a decision; None where nothing reads the buffer again, or no time is left."""
        found = self.stay(gap)
        if found is None:
            return None
        buffer, out, read = found
        gone = max(out, self.first.get(gap.gone, read))
        back = min(read, self.first.get(gap.fetch, read))
        return Trip(buffer, out, gone, back, read) if gone < back else None

    def stay(self, gap: OffloadGap) -> tuple[Buffer, int, int] | None:
        """Return the buffer of a decision, where it is last needed and where next; None where it is not."""
        started = self.first.get(gap.after, -2)
        places = self.touches.get(gap.value, ())
        following = bisect_right(places, started)
        if started == -2 or following == len(places) or (following == 0 and gap.after != gap.value.node):
            return None
        read = places[following]
        if isinstance(self.steps[read], Free | Pack | Unpack) or self.makes(read, gap.value):
            return None
        out = self.behind(started)
        made = [at for at in places[:following] if self.makes(at, gap.value)]
        if made and self.over_an_input(made[-1], gap.value):
            return None
        return Buffer(gap.value, len(made) - 1 if made else 0), out, read

    def over_an_input(self, at: int, value: Value) -> bool:
        """Whether a step writes a value into the bytes of a graph input, which it is there to replace."""
        step = self.steps[at]
        reuses = step.reuses if isinstance(step, Compute) else ()
        return any(reuse.kind == "update" and reuse.output == value.index for reuse in reuses)

    def behind(self, at: int) -> int:
        """Return the place behind a step and what it gives back."""
        at += 1
        while 0 < at < len(self.steps) and isinstance(self.steps[at], Free | Commit):
            at += 1
        return at


class Movable:
    """Which values may wait on the host."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph

    @cached_property
    def shared(self) -> frozenset[Value]:
        """Storages that a step gives a second name, as a view that it makes beside other outputs."""
        graph = self.graph
        mixed = (node for node in graph.nodes if not node.is_view)
        return frozenset(
            graph.storage(alias) for node in mixed for alias in node.aliases if alias is not None
        )

    def why_not(self, value: Value) -> str | None:
        """Return why a value cannot be moved, or None."""
        graph = self.graph
        if value.node not in graph.input and value.node not in graph.node:
            return "there is no such value"
        if graph.storage(value) != value:
            return f"it is a view of {graph.name_of(graph.storage(value))}"
        if not isinstance(graph.type(value), TensorType) or not graph.nbytes(value):
            return "it has no bytes on the device"
        if value in self.shared:
            return "another output shares its storage"
        given = graph.input.get(value.node)
        if given is not None and given.kind not in MOVED_INPUTS:
            return f"it is an input of kind {given.kind}, which stays where it is"
        return None

    def require(self, gap: OffloadGap, packed: bool = False) -> None:
        """Raise unless a decision names what there is, and what can be moved, or packed."""
        graph = self.graph
        reason = self.why_not(gap.value)
        if packed and reason is None and packing(graph, gap.value) is None:
            reason = "it holds no truth values, and no numbers that are known to be small"
        known = gap.value.node in graph.input or gap.value.node in graph.node
        named = graph.name_of(gap.value) if known else str(gap.value)
        for node in (gap.after, gap.gone, gap.fetch, gap.use):
            if node not in graph.node and node != gap.value.node:
                reason = reason or f"there is no node {node}"
            elif node in graph.node and graph.node[node].is_view:
                reason = reason or f"{graph.node[node].name} is a view, and never a step"
        if reason is not None:
            raise PlanError(
                stage="lower",
                what=f"this cannot {'be packed' if packed else 'wait on the host'}",
                got=f"{named}: {reason}",
                hint="remove the line, or name another value",
            )


Moves = dict[int, list[tuple[int, Step]]]
"""Steps to put before each place, with their ranks: less comes first."""
PACKING = 9


def _inserted(steps: Sequence[Step], found: Sequence[Trip]) -> Iterator[Step]:
    """Put the moves between the steps; at one place copies out start first, and bytes are freed first.

    Of copies back that start at one place, that of the first reader is the first: the others queue behind it.
    """
    before: Moves = {}
    for trip in sorted(found, key=lambda trip: trip.read):
        moves: tuple[tuple[int, Step], ...] = (
            (trip.out, Offload(trip.buffer)),
            (trip.gone, Release(trip.buffer)),
            (trip.back, Prefetch(trip.buffer)),
            (trip.read, Arrive(trip.buffer)),
        )
        for rank, (at, move) in enumerate(moves):
            before.setdefault(at, []).append((rank, move))
    return _merged(steps, before)


def _merged(steps: Sequence[Step], before: Moves) -> Iterator[Step]:
    for at, step in enumerate(steps):
        yield from (move for _, move in sorted(before.get(at, ()), key=lambda item: item[0]))
        yield step
