"""What a program with control flow asks of its allocator, whichever way it goes.

A *fork* is a branch or a while loop of the emitted program, by its number. Each of its two *sections* is
recorded in some run: both sides of a branch; the pass of a loop with the question after it, and nothing where
it ends. The recordings agree outside of what they decide otherwise, and are laid over one another: one after
the other, as if both sections ran. What both sides of a branch give out is one request: one of them makes it.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from peakfold.errors import PlanError
from peakfold.plan.memory.trace import Request, Trace, Ways

ALLOCATE, FREE, MARK, TURN = range(4)
"""What an allocator saw: bytes asked for, the request of an index given back, the end of a step, and the way
of a fork, see `turn`."""

SECOND, FIRST, OVER = range(3)
"""Ways of a fork: into a section of it, or out of it."""

Events = Sequence[tuple[int, int]]
Choices = Mapping[int, bool]
"""Whether the first section of a fork runs; that of those which are not named does. Of a loop both do."""

Record = Callable[[Choices], tuple[Events, Trace]]
"""Runs a program as chosen; returns what an allocator saw, and the same as a trace."""


@dataclass(eq=False)
class _Place:
    """A point of a program: an allocation, the end of a step, or where a fork begins or ends.

    Attributes:
        request: what is asked for there.
        fork: its number, where one begins there, else -1.
        sections: of the fork, by the way into them.
        twin: the same point of the recordings before.
        at: when it is, once all recordings are laid over one another.
    """

    request: Request | None = None
    fork: int = -1
    sections: "dict[int, list[_Place]]" = field(default_factory=dict)
    twin: "_Place | None" = None
    at: int = -1

    @property
    def kind(self) -> tuple[int, int]:
        """What two recordings must agree on."""
        return (-1 if self.request is None else self.request.size), self.fork


@dataclass(eq=False)
class _Block:
    """A request of the program, by where it is made and given back in each recording.

    Attributes:
        made: where; of both sides, where both make it.
        ends: the last point before it is given back; None where it never is.
    """

    made: list[_Place]
    ends: list[_Place | None]

    @property
    def request(self) -> Request:
        """It as it is asked for; from its first point on to its last one."""
        found = self.made[0].request
        assert found is not None
        born = min(place.at for place in self.made)
        kept = any(end is None for end in self.ends)
        dies = None if kept else max(2 * end.at + 1 for end in self.ends if end is not None)
        return replace(found, born=2 * born, dies=dies, until=-1 if kept else found.until)

    @property
    def last(self) -> float:
        """The time of the last point before it is given back."""
        return max(float("inf") if end is None else end.at for end in self.ends)


def turn(number: int, way: int) -> tuple[int, int]:
    """Return the event of a fork that goes a way."""
    return TURN, 3 * number + way


def every_way(record: Record) -> Trace:
    """Run a program until both sections of every fork are known, and return what it asks for.

    Args:
        record: runs it once.

    Raises:
        PlanError: two runs differ outside of what was decided otherwise.

    Example:
        >>> from peakfold.plan.memory.recorded import requests_of
        >>> def record(choices):
        ...     first = choices.get(0, True)
        ...     made = [(ALLOCATE, 64)] if first else [(ALLOCATE, 256), (ALLOCATE, 64), (FREE, 0)]
        ...     events = [turn(0, FIRST if first else SECOND), *made, turn(0, OVER), (MARK, 0)]
        ...     return events, Trace(tuple(requests_of(events)))
        >>> trace = every_way(record)
        >>> [(request.size, request.dies) for request in trace.requests], trace.lower_bound
        ([(64, None), (256, 13)], 320)
        >>> trace.ways.calls, trace.ways.turns
        ((0, 1, 0), ((0, 0, 1, 3),))
    """
    program, blocks = list[_Place](), dict[_Place, _Block]()
    least, steps = 0, tuple[str, ...]()
    left: list[dict[int, bool]] = [{}]
    while left:
        events, trace = record(left.pop())
        places, made, ends = _parsed(events, trace.requests)
        program = _laid_over(program, places)
        for one, end in zip(made, ends, strict=True):
            block = blocks.setdefault(_same(one), _Block([_same(one)], []))
            block.ends.append(None if end is None else _same(end))
        least, steps = max(least, trace.lower_bound), trace.steps
        left = list(_unknown(program, {}))
    return _trace(program, blocks, least, steps)


def _parsed(
    events: Events, requests: Sequence[Request]
) -> tuple[list[_Place], list[_Place], list[_Place | None]]:
    """Return a recording as a tree; where requests are made, and the last point before each is given back."""
    root = [_Place()]
    stack, forks = [root], list[_Place]()
    made, ends = list[_Place](), list[_Place | None](None for _ in requests)
    for kind, number in events:
        if kind == ALLOCATE:
            made.append(_Place(requests[len(made)]))
            stack[-1].append(made[-1])
        elif kind == FREE:
            ends[number] = stack[-1][-1]
        elif kind == MARK:
            stack[-1].append(_Place())
        else:
            _turned(stack, forks, *divmod(number, 3))
    return root, made, ends


def _turned(stack: list[list[_Place]], forks: list[_Place], number: int, way: int) -> None:
    """Begin a section of a fork, or end it; a point before each, after which something can be given back."""
    if forks and forks[-1].fork == number:
        stack.pop()
    else:
        forks.append(_Place(fork=number))
        stack[-1].append(forks[-1])
    if way == OVER:
        forks.pop()
        stack[-1].append(_Place())
    else:
        stack.append(forks[-1].sections.setdefault(way, [_Place()]))


def _same(place: _Place) -> _Place:
    return place.twin or place


def _laid_over(program: list[_Place], places: list[_Place]) -> list[_Place]:
    """Return what is known of a program, with what another recording adds; points of that get their twins."""
    if not program:
        return places
    stack = [(program, places)]
    while stack:
        mine, others = stack.pop()
        if [one.kind for one in mine] != [one.kind for one in others]:
            raise _differs(mine, others)
        for one, other in zip(mine, others, strict=True):
            other.twin = one
            for way, section in other.sections.items():
                if way in one.sections:
                    stack.append((one.sections[way], section))
                else:
                    one.sections[way] = section
    return program


def _unknown(places: Sequence[_Place], chosen: Mapping[int, bool]) -> Iterator[dict[int, bool]]:
    """Yield what to choose so that a section runs which is not known yet."""
    for place in places:
        for way, section in place.sections.items():
            inside = {**chosen, place.fork: way == FIRST}
            yield from _unknown(section, inside)
        if len(place.sections) == 1:
            (known,) = place.sections
            yield {**chosen, place.fork: known != FIRST}


def _trace(
    program: list[_Place], blocks: Mapping[_Place, _Block], least: int, steps: tuple[str, ...]
) -> Trace:
    order = list(_in_order(program))
    for at, place in enumerate(order):
        place.at = at
    of = dict(blocks)
    for place in reversed(order):  # forks inside of a side come first
        _join(place, of)
    found = sorted(dict.fromkeys(of.values()), key=lambda block: block.request.born)
    number = {block: index for index, block in enumerate(found)}
    makers = [place for place in order if place.request is not None]
    calls = tuple(number[of[place]] for place in makers)
    requests = tuple(block.request for block in found)
    turns = tuple(_turns(order, makers))
    return Trace(requests, steps, 2 * len(order) + 1, ways=Ways(calls, turns, least))


def _in_order(places: Sequence[_Place]) -> Iterator[_Place]:
    """Yield every point: a fork, its first section, its second."""
    for place in places:
        yield place
        for way in (FIRST, SECOND):
            yield from _in_order(place.sections.get(way, ()))


def _join(fork: _Place, of: dict[_Place, _Block]) -> None:
    """Make one block of each pair that both sections of a fork leave behind."""
    first, second = (_left_by(fork.sections.get(way, []), of) for way in (FIRST, SECOND))
    for one in first:
        kept = one.request.dies is None
        fitting = (
            other
            for other in second
            if other.request.size == one.request.size and (other.request.dies is None) == kept
        )
        other = next(fitting, None)
        if other is None:
            continue
        second.remove(other)
        both = _Block([*one.made, *other.made], [*one.ends, *other.ends])
        of |= dict.fromkeys(both.made, both)


def _left_by(section: list[_Place], of: Mapping[_Place, _Block]) -> list[_Block]:
    """Return the blocks that a section makes and that live on after it."""
    inside = list(_in_order(section))
    made = dict.fromkeys(of[place] for place in inside if place.request is not None)
    return [block for block in made if block.last > inside[-1].at]


def _turns(order: Sequence[_Place], makers: Sequence[_Place]) -> Iterator[tuple[int, int, int, int]]:
    """Yield each fork: its number, and the allocations before its sections, and before what follows it."""
    before = {place: index for index, place in enumerate(makers)}

    def until(places: Sequence[_Place]) -> int:
        return sum(place in before for place in _in_order(places))

    count = 0
    for place in order:
        count += place in before
        if place.fork >= 0:
            first, second = (until(place.sections.get(way, [])) for way in (FIRST, SECOND))
            yield place.fork, count, count + first, count + first + second


def _differs(mine: Sequence[_Place], others: Sequence[_Place]) -> PlanError:
    sizes = [[one.request.size for one in places if one.request is not None] for places in (mine, others)]
    pairs = zip(sizes[0], sizes[1], strict=False)
    at = next((i for i, (one, other) in enumerate(pairs) if one != other), min(map(len, sizes)))
    one, other = (f"{found[at]} bytes" if at < len(found) else "nothing" for found in sizes)
    return PlanError(
        stage="arena",
        what="what the program allocates differs from run to run beside what its branches decide",
        expected=f"{one} as request {at}",
        got=other,
        hint="give the budget without arena:",
    )
