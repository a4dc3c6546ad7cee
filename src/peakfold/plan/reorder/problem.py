"""What is ordered: items that read and make values, and what an order of them comes to in bytes.

A value lives from the item that makes it, or from the beginning, to its last reader; one that is kept lives
to the end. While an item runs, its operands, its results and its workspace are there; a result may be written
into an operand that dies.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

from peakfold.plan.schedule.arrays import Tables
from peakfold.plan.schedule.frame import Frame

Rows = tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class Problem:
    """Items to be ordered; items and values are numbers from 0.

    Attributes:
        reads: values that each item reads.
        makes: values that each item makes.
        nbytes: bytes of each value.
        kept: values that live to the end.
        workspace: hidden bytes while each item runs.
        after: items that must come before each one, beside the makers of what it reads.
        reuses: for each item, pairs (result, operand): the result is written into the operand, if that dies.
    """

    reads: Rows
    makes: Rows
    nbytes: tuple[int, ...]
    kept: frozenset[int]
    workspace: tuple[int, ...]
    after: Rows = ()
    reuses: tuple[tuple[tuple[int, int], ...], ...] = ()

    @property
    def size(self) -> int:
        """Number of items."""
        return len(self.reads)

    @cached_property
    def maker(self) -> Mapping[int, int]:
        """The item that makes each value; none for a value that is there from the beginning."""
        return {value: item for item, made in enumerate(self.makes) for value in made}

    @cached_property
    def readers(self) -> tuple[int, ...]:
        """Items that read each value, as bits."""
        found = [0] * len(self.nbytes)
        for item, read in enumerate(self.reads):
            for value in read:
                found[value] |= 1 << item
        return tuple(found)

    @cached_property
    def before(self) -> tuple[int, ...]:
        """Items that must come right before each one, as bits."""
        found = []
        for item, read in enumerate(self.reads):
            mask = 0
            for value in read:
                maker = self.maker.get(value, item)
                mask |= 1 << maker if maker != item else 0
            for other in self.after[item] if self.after else ():
                mask |= 1 << other
            found.append(mask)
        return tuple(found)

    @cached_property
    def successors(self) -> Rows:
        """Items that wait for each one."""
        found: list[list[int]] = [[] for _ in range(self.size)]
        for item, mask in enumerate(self.before):
            for other in bits(mask):
                found[other].append(item)
        return tuple(tuple(row) for row in found)

    @cached_property
    def made(self) -> tuple[int, ...]:
        """Bytes that each item makes."""
        return tuple(sum(self.nbytes[v] for v in row) for row in self.makes)

    @cached_property
    def given(self) -> int:
        """Bytes that are there from the beginning."""
        return sum(
            size
            for v, size in enumerate(self.nbytes)
            if v not in self.maker and (self.readers[v] or v in self.kept)
        )

    @cached_property
    def mortal(self) -> tuple[tuple[tuple[int, int, int], ...], ...]:
        """For each item, the values that may die with it: bytes, readers as bits, the value."""
        return tuple(
            tuple(
                (self.nbytes[v], self.readers[v], v)
                for v in dict.fromkeys((*read, *made))
                if v not in self.kept and self.nbytes[v]
            )
            for read, made in zip(self.reads, self.makes, strict=True)
        )

    def run(self, item: int, live: int, done: int) -> tuple[int, int]:
        """Return the bytes while an item runs, and after it.

        Args:
            item: the item.
            live: bytes before it.
            done: items that ran, this one included, as bits.
        """
        dead = 0
        dying = []
        for size, readers, value in self.mortal[item]:
            if not readers & ~done:
                dead += size
                dying.append(value)
        at_once = live + self.made[item] + self.workspace[item]
        if dying and self.reuses and self.reuses[item]:
            at_once -= self._reused(item, dying)
        return at_once, live + self.made[item] - dead

    def _reused(self, item: int, dying: Sequence[int]) -> int:
        """Bytes of results that lie in operands that die."""
        saved, taken, placed = 0, set(), set()
        for result, operand in self.reuses[item]:
            if operand in dying and operand not in taken and result not in placed:
                taken.add(operand)
                placed.add(result)
                saved += self.nbytes[result]
        return saved

    def peak(self, order: Iterable[int]) -> int:
        """Return the most bytes at once of an order of all items."""
        return max(self.rows(order), default=self.given)

    def rows(self, order: Iterable[int]) -> list[int]:
        """Return the bytes at once while each item of an order runs; what is given counts always."""
        live, done, found = self.given, 0, []
        for item in order:
            done |= 1 << item
            at_once, live = self.run(item, live, done)
            found.append(max(at_once, self.given))
        return found

    def is_order(self, order: Sequence[int]) -> bool:
        """Whether each item is there once, and behind all that it waits for."""
        done = 0
        for item in order:
            if self.before[item] & ~done or done >> item & 1:
                return False
            done |= 1 << item
        return done == (1 << self.size) - 1

    def part(self, items: Sequence[int], done: int = 0) -> "Problem":
        """Return the items of a stretch of an order as a problem of its own, numbered by their place.

        Values that later items read, or that are kept, live through it; what was made before it is given.
        Only what it touches counts.

        Args:
            items: those of the stretch.
            done: those before it, as bits.
        """
        place = {item: at for at, item in enumerate(items)}
        inside = sum(1 << item for item in items)
        values = list(dict.fromkeys(v for item in items for v in (*self.reads[item], *self.makes[item])))
        number = {v: at for at, v in enumerate(values)}
        kept = frozenset(number[v] for v in values if v in self.kept or self.readers[v] & ~inside & ~done)
        waits = tuple(tuple(place[other] for other in bits(self.before[item] & inside)) for item in items)
        return Problem(
            reads=tuple(tuple(number[v] for v in self.reads[item]) for item in items),
            makes=tuple(tuple(number[v] for v in self.makes[item]) for item in items),
            nbytes=tuple(self.nbytes[v] for v in values),
            kept=kept,
            workspace=tuple(self.workspace[item] for item in items),
            after=waits,
            reuses=tuple(tuple((number[a], number[b]) for a, b in self.reuses[item]) for item in items)
            if self.reuses
            else (),
        )


def problem_of(frame: Frame) -> tuple[Problem, tuple[int, ...]]:
    """Return the base steps of a graph as a problem, and the step that each item is, in their order.

    Graph inputs are there all the time and count nothing. Updates run as soon as they can, so that what
    they alone read dies at once.
    """
    tables = frame.tables
    steps = tuple(frame.base.tolist())
    inside = set(steps)
    counted = (tables.producer >= 0) & (tables.replaces < 0) & ~tables.host_number
    waits = _waits(frame, inside)
    item = {step: at for at, step in enumerate(steps)}
    reads = _rows(tables.operand_begin.tolist(), tables.operands.tolist())
    makes = _rows(tables.output_begin.tolist(), tables.outputs.tolist())
    pairs = _pairs(tables)
    problem = Problem(
        reads=tuple(reads[step] for step in steps),
        makes=tuple(makes[step] for step in steps),
        nbytes=tuple(int(size) if ok else 0 for size, ok in zip(tables.nbytes, counted, strict=True)),
        kept=frozenset(tables.is_output.nonzero()[0].tolist()),
        workspace=tuple(int(tables.workspace[step]) for step in steps),
        after=tuple(tuple(sorted(item[other] for other in waits[step])) for step in steps),
        reuses=tuple(pairs[step] for step in steps),
    )
    return problem, steps


def _waits(frame: Frame, inside: Set[int]) -> Mapping[int, set[int]]:
    """For each base step, the steps that it waits for beside those that make what it reads.

    What writes the new value of a state input waits for the other readers of the old one; random and impure
    steps keep their order.
    """
    tables = frame.tables
    found: dict[int, set[int]] = {step: set() for step in inside}
    for new in (tables.replaces >= 0).nonzero()[0].tolist():
        maker, old = int(tables.producer[new]), int(tables.replaces[new])
        if maker in inside:
            users = tables.users[tables.user_begin[old] : tables.user_begin[old + 1]].tolist()
            found[maker] |= {user for user in users if user in inside and user != maker}
    bound = [step for step in frame.base.tolist() if tables.random[step] or not tables.pure[step]]
    for step, later in pairwise(bound):
        found[later].add(step)
    return found


def _rows(begin: Sequence[int], items: Sequence[int]) -> Rows:
    return tuple(tuple(items[a:b]) for a, b in pairwise(begin))


def _pairs(tables: Tables) -> tuple[tuple[tuple[int, int], ...], ...]:
    begin = tables.reuse_begin.tolist()
    both = list(zip(tables.reuse_output.tolist(), tables.reuse_operand.tolist(), strict=True))
    inputs = tables.producer < 0
    return tuple(tuple(pair for pair in both[a:b] if not inputs[pair[1]]) for a, b in pairwise(begin))


def bits(mask: int) -> Iterator[int]:
    """Yield the places of the bits that are set, in order."""
    while mask:
        low = mask & -mask
        yield low.bit_length() - 1
        mask ^= low
