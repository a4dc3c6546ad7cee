"""A place for every allocation of a program in one arena.

What passes is placed by the planner, from the bottom. What outlives the program lies above it, at an
address of its own for the whole program: the caller may hold a result while the next run goes on. What is
held for the caller, its weights say, lies above that.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

from peakfold.errors import InfeasibleError
from peakfold.plan.memory.bound import lower_bound
from peakfold.plan.memory.planner import plan
from peakfold.plan.memory.problem import Placement, Problem, Status
from peakfold.plan.memory.trace import Request, Trace, aligned

SECONDS = 1.0
SHOWN = 6


@dataclass(frozen=True)
class Held:
    """A place for a tensor that is there before the program and after it.

    Attributes:
        name: of the input.
        size: bytes.
        kind: what it is, as reports colour it.
        offset: bytes from the start of the arena.
    """

    name: str
    size: int
    kind: str
    offset: int = 0

    @property
    def room(self) -> int:
        """Bytes that it takes in an arena."""
        return aligned(self.size)


@dataclass(frozen=True)
class Layout:
    """A placed program.

    Attributes:
        trace: what is asked for.
        offsets: bytes from the start of the arena, by request.
        passing: bytes of the lower part, which every step may use anew.
        arena: bytes of all of it.
        lower_bound: bytes; no arena is smaller, proved.
        status: as of a `Placement`.
        seconds: what planning took.
        held: tensors of the caller that lie in the arena too.
        beside: bytes from the start of the arena, by block of other threads.
        device: where it runs.
    """

    trace: Trace
    offsets: tuple[int, ...]
    passing: int
    arena: int
    lower_bound: int
    status: Status
    seconds: float
    held: tuple[Held, ...] = ()
    beside: tuple[int, ...] = ()
    device: str = "cpu"

    @property
    def own(self) -> int:
        """Bytes of the arena below what is held: those of the program itself."""
        return min((one.offset for one in self.held), default=self.arena)

    @property
    def held_room(self) -> int:
        """Bytes of the arena for what is held."""
        return sum(one.room for one in self.held)

    @property
    def held_bytes(self) -> int:
        """Bytes of the tensors that are held, as they are."""
        return sum(one.size for one in self.held)

    @property
    def gap(self) -> float:
        """How far the arena is above the bound, as a fraction."""
        return self.arena / self.lower_bound - 1.0 if self.lower_bound else 0.0


def lay_out(trace: Trace, capacity: int | None = None, time_budget: float = SECONDS, seed: int = 0) -> Layout:
    """Give every allocation of a program a place in one arena.

    Args:
        trace: the program's allocations.
        capacity: bytes that the arena may have; None for as few as possible.
        time_budget: seconds.
        seed: of the search.

    Returns:
        The best layout found; it may be larger than the capacity, see its status.

    Raises:
        InfeasibleError: the capacity is below the bound; says what is live there.

    Example:
        >>> lay_out(Trace((Request(64, 0, 2), Request(64, 1, 3), Request(4, 2, None)), length=4)).offsets
        (0, 64, 128)
    """
    if capacity is not None and capacity < trace.lower_bound:
        raise too_small(trace, capacity)
    problem = trace.problem()
    if problem is None:
        return _layout(trace, Placement((), 0, 0, "optimal", 0.0))
    room = None if capacity is None else capacity - trace.kept_bytes - trace.beside_bytes
    return _layout(trace, plan(problem, room, time_budget, seed))


def holding(layout: Layout, held: Sequence[Held]) -> Layout:
    """Return a layout with places for what is held above all others.

    Example:
        >>> layout = holding(lay_out(Trace((Request(64, 0, 1),), length=2)), (Held("w", 100, "parameters"),))
        >>> layout.held[0].offset, layout.arena, layout.lower_bound
        (64, 192, 192)
    """
    tops = accumulate((one.room for one in held), initial=layout.arena)
    placed_ = tuple(replace(one, offset=top) for one, top in zip(held, tops, strict=False))
    more = sum(one.room for one in held)
    arena, bound = layout.arena + more, layout.lower_bound + more
    return replace(layout, held=placed_, arena=arena, lower_bound=bound)


def relaid(layout: Layout, trace: Trace, held: Sequence[Held] = ()) -> Layout | None:
    """Return the same places for a program that asks for less, or None where it asks for anything else.

    A layout for the largest shape serves every smaller one: requests are paired by the step that makes
    them and their order in it; where each is no larger and no pair overlaps, the addresses hold.

    Args:
        layout: of the larger program.
        trace: of the smaller one.
        held: what the smaller one holds.
    """
    trace = replace(trace, beside=layout.trace.beside)
    if _turns(trace) != _turns(layout.trace):
        return None
    rooms = {one.name: one for one in layout.held}
    if any(one.name not in rooms or one.room > rooms[one.name].room for one in held):
        return None
    places = {key: i for i, key in enumerate(_keys(layout.trace.requests))}
    keys = _keys(trace.requests)
    pairs = [(places.get(key), request) for key, request in zip(keys, trace.requests, strict=True)]
    offsets: list[int] = []
    for place, request in pairs:
        if place is None or request.room > layout.trace.requests[place].room:
            return None
        if (request.dies is None) != (layout.trace.requests[place].dies is None):
            return None
        offsets.append(layout.offsets[place])
    found = replace(
        layout,
        trace=trace,
        offsets=tuple(offsets),
        lower_bound=trace.lower_bound + sum(one.room for one in held),
        seconds=0.0,
        held=tuple(replace(one, offset=rooms[one.name].offset) for one in held),
    )
    return found if _disjoint(found) else None


def too_small(trace: Trace, capacity: int) -> InfeasibleError:
    """Say that no arena of a capacity exists, and what is live where the most is."""
    error = InfeasibleError(
        stage="memory",
        what="no arena of this capacity holds what is live at once: proved",
        where=f"largest there: {', '.join(live_words(trace))}",
        expected=f"{capacity} bytes or less",
        got=f"{trace.lower_bound} bytes live at once",
        hint=f"allow at least {trace.lower_bound} bytes",
    )
    error.lowest_peak_bytes = error.lower_bound_bytes = trace.lower_bound
    return error


def live_words(trace: Trace, held: Sequence[Held] = ()) -> list[str]:
    """Name the largest of what is live where the most is, and of what is held, with its bytes."""
    live = [trace.requests[i] for i in live_there(trace)]
    named = [(request.size, request.name or request.kind) for request in live]
    named += [(one.size, one.name) for one in held]
    largest = sorted(named, key=lambda one: -one[0])[:SHOWN]
    return [f"{name} {size} bytes" for size, name in largest]


def live_there(trace: Trace) -> list[int]:
    """Return what is live where the most is, by index."""
    problem = trace.problem()
    passing = [] if problem is None else [trace.passing[i] for i in lower_bound(problem).live]
    return [*trace.kept, *passing]


def placed(layout: Layout) -> Problem | None:
    """Return what passes as a solution, for the checker; None where nothing does."""
    problem = layout.trace.problem()
    return None if problem is None else problem.placed([layout.offsets[i] for i in layout.trace.passing])


def _layout(trace: Trace, placement: Placement) -> Layout:
    offsets = dict(zip(trace.passing, placement.offsets, strict=True))
    *beside, passing = accumulate((aligned(size) for size in trace.beside), initial=placement.arena)
    top = passing
    for i in trace.kept:
        offsets[i] = top
        top += trace.requests[i].room
    bound = placement.lower_bound + trace.beside_bytes + trace.kept_bytes
    if trace.ways is not None:
        bound = trace.lower_bound  # what is placed is more than any way needs
    every = tuple(offsets[i] for i in range(len(trace.requests)))
    seconds = placement.seconds
    return Layout(trace, every, passing, top, bound, placement.status, seconds, beside=tuple(beside))


def _turns(trace: Trace) -> tuple[object, ...]:
    return () if trace.ways is None else (trace.ways.calls, trace.ways.turns)


def _keys(requests: Iterable[Request]) -> list[tuple[int, int]]:
    """(row, place in it) of each request."""
    count: dict[int, int] = {}
    keys = []
    for request in requests:
        count[request.row] = count.get(request.row, -1) + 1
        keys.append((request.row, count[request.row]))
    return keys


def _disjoint(layout: Layout) -> bool:
    """Whether no two requests that live at once overlap."""
    end = layout.trace.length + 1
    events = []
    for i, request in enumerate(layout.trace.requests):
        born = request.born if request.dies is not None else -1
        events += [(born, 1, i), (end if request.dies is None else request.dies, 0, i)]
    live: dict[int, tuple[int, int]] = {}
    for _, begins, i in sorted(events):
        if not begins:
            del live[i]
            continue
        low = layout.offsets[i]
        high = low + layout.trace.requests[i].room
        if any(a < high and low < b for a, b in live.values()):
            return False
        live[i] = (low, high)
    return True
