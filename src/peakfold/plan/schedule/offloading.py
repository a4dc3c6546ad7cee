"""Which values wait on the host, and when their copies run, so that a schedule keeps a budget of bytes.

Three queues run at once: compute, copies out, copies back. A copy out starts where the value was last
read; its bytes are given back as soon as it has ended. A copy back starts as late as it can and still
ends before the next reader, all others that come after it counted. What the copies take of time beside
the computation costs nothing; where a budget asks for more, bytes are given back earlier or taken later,
and compute waits.

The choice is greedy: at the row that is most above the budget, the gap is taken that is hidden and helps
most rows for the time on the queue that it takes; without one, the gap for which compute waits least. It
is Belady's rule where all values are alike: what is read latest goes first.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
import numpy.typing as npt

from peakfold.cost.costs import Link
from peakfold.ir.graph import Value
from peakfold.ir.plan import Compute, Free, OffloadGap, Plan, Schedule
from peakfold.plan.schedule.arrays import Bytes, Floats, Ints, Tables
from peakfold.plan.schedule.lower import lower_tables
from peakfold.plan.schedule.simulate import simulate_tables
from peakfold.plan.schedule.slack import Held, Rows, ease
from peakfold.plan.schedule.timeline import Timeline
from peakfold.plan.schedule.transfers import Movable, Places

PICKS = 600
"""Choices after which a target is given up."""
ROUNDING = 1e-12
"""Relative difference of two sums of seconds that is rounding."""
SMALLEST = 1 << 14
"""Bytes below which a value is not worth a copy: its latency takes longer than its bytes."""


@dataclass(frozen=True, slots=True)
class Stay:
    """A gap in which a value could wait on the host: ``row`` last needs it, ``read`` needs it next."""

    value: Value
    nbytes: int
    row: int
    out: int
    read: int


@dataclass
class _Chosen:
    """A stay that was taken: it must be gone by a row, and not be back before another."""

    index: int
    by: int
    until: int


@dataclass
class _Queues:
    """Where the chosen copies lie: rows ``gone`` and ``back`` of each, in the order of ``chosen``.

    Bytes are gone from a row that a decision can name, else the schedule would keep them longer.
    """

    gone: Ints
    back: Ints
    out_free: Floats
    in_start: Floats


@dataclass
class Offloader:
    """One schedule, and the ways to keep budgets with it by offloading.

    Attributes:
        tables: the graph.
        plan: decisions without offloads.
        link: how fast copies are.
        lends: whether the caller's own tensors may be away, too.
    """

    tables: Tables
    plan: Plan
    link: Link
    lends: bool = True
    schedule: Schedule = field(init=False)
    timeline: Timeline = field(init=False)

    def __post_init__(self) -> None:
        self.plan = replace(self.plan, offload=())
        self.schedule = lower_tables(self.tables, self.plan)
        self.timeline = simulate_tables(self.tables, self.schedule, self.link)

    def fit(self, target: int, host_limit: int | None = None, waiting: bool = True) -> Plan | None:
        """Return the plan with the offloads that bring its peak to a target; None where they cannot.

        Args:
            target: most bytes on the device.
            host_limit: most bytes on the host; None for no limit.
            waiting: whether compute may wait for copies. Where it may not, the plan comes as near to the
                target as hidden copies bring it.
        """
        taken: dict[int, _Chosen] = {}
        refused = np.zeros(len(self.stays), np.bool_)
        hopeless = np.zeros(len(self.during), np.bool_)
        for _ in range(PICKS):
            order = sorted(taken.values(), key=lambda item: (self.outs[item.index], item.index))
            queues = self._queues(order)
            excess = self.during - self._saved(order, queues) - target
            excess[hopeless] = 0
            at = int(excess.argmax()) if len(excess) else 0
            if not len(excess) or excess[at] <= 0:
                return self._eased(order if waiting else self._hidden(list(taken.values())), target)
            pick = self._pick(at, excess, queues, order, refused, waiting)
            if pick is None and waiting:
                return None
            if pick is None:
                hopeless[at] = True
                continue
            known = taken.get(pick)
            if known is None and host_limit is not None and not self._has_room(order, pick, host_limit):
                refused[pick] = True
                continue
            fresh = known or _Chosen(pick, len(self.during), 0)
            by, until = (min(fresh.by, at), max(fresh.until, at + 1)) if waiting else (fresh.by, fresh.until)
            taken[pick] = _Chosen(pick, by, until)
        return None

    # --- the candidates ---

    @cached_property
    def stays(self) -> Sequence[Stay]:
        """Every gap between two needs of a value that may be moved."""
        return tuple(self._stays())

    def _stays(self) -> Iterator[Stay]:
        graph, steps = self.tables.graph, self.schedule.steps
        movable = Movable(graph)
        for value, touches in self._places.touches.items():
            given = value.node in graph.input
            if given and not self.lends:
                continue
            if graph.nbytes(value) < SMALLEST or movable.why_not(value) is not None:
                continue
            for row, read in zip(
                [-1, *touches] if given else touches, touches if given else touches[1:], strict=False
            ):
                made = self._places.makes(read, value)
                if isinstance(steps[read], Free) or made or not self._is_anchor(row):
                    continue
                if not given and self._places.over_an_input(self._made_before(touches, row, value), value):
                    continue
                out = self._places.behind(row)
                if self.anchor_from[out] < read:
                    yield Stay(value, graph.nbytes(value), row, out, read)

    def _made_before(self, touches: Sequence[int], row: int, value: Value) -> int:
        return max(at for at in touches if at <= row and self._places.makes(at, value))

    def _is_anchor(self, row: int) -> bool:
        """Whether a decision can name a row: a first run, or the beginning."""
        step = self.schedule.steps[row] if row >= 0 else None
        return row < 0 or (isinstance(step, Compute) and step.run.k == 0)

    @cached_property
    def _places(self) -> Places:
        return Places(self.tables.graph, self.schedule)

    @cached_property
    def anchor_from(self) -> Ints:
        """The first row at or after each that a decision can name; one beyond the last where none is."""
        rows = len(self.schedule.steps)
        found = np.full(rows + 1, rows, np.int32)
        for row in range(rows - 1, -1, -1):
            found[row] = row if self._is_anchor(row) else found[row + 1]
        return found

    @cached_property
    def anchor_to(self) -> Ints:
        """The last row at or before each that a decision can name; -1 where none is."""
        rows = len(self.schedule.steps)
        found = np.full(rows + 1, -1, np.int32)
        for row in range(rows):
            found[row] = row if self._is_anchor(row) else found[row - 1]
        found[rows] = found[rows - 1]
        return found

    @cached_property
    def during(self) -> Bytes:
        """Bytes during each row, nothing offloaded."""
        return np.array(self.timeline.during, np.int64)

    @cached_property
    def times(self) -> Floats:
        """When each row begins, nothing offloaded, and when the last ends."""
        return np.array([*self.timeline.begin, self.timeline.seconds])

    @cached_property
    def outs(self) -> Ints:
        """The row before which the copy out of each stay starts."""
        return np.array([stay.out for stay in self.stays], np.int32)

    @cached_property
    def reads(self) -> Ints:
        """The row that needs each stay's value next."""
        return np.array([stay.read for stay in self.stays], np.int32)

    @cached_property
    def sizes(self) -> Bytes:
        """Bytes of each stay."""
        return np.array([stay.nbytes for stay in self.stays], np.int64)

    @cached_property
    def takes(self) -> Floats:
        """Seconds of one copy of each stay."""
        return self.link.latency + self.sizes / self.link.bandwidth

    # --- the queues ---

    def _queues(self, order: Sequence[_Chosen]) -> _Queues:
        """Put the chosen copies on their queues: out as early as they can, back as late as they can."""
        count, rows = len(order), len(self.during)
        gone, back = np.zeros(count, np.int32), np.zeros(count, np.int32)
        out_free, in_start = np.zeros(rows + 1), np.full(rows + 1, np.inf)
        free = 0.0
        for i, item in enumerate(order):
            out = self.outs[item.index]
            free = max(free, self.times[out]) + self.takes[item.index]
            out_free[out] = free
            natural = self.anchor_from[min(int(np.searchsorted(self.times, free)), rows)]
            gone[i] = self.anchor_from[max(out, min(natural, self.anchor_to[min(item.by, rows)]))]
        start = np.inf
        for i in sorted(range(count), key=lambda i: (-self.reads[order[i].index], i)):
            item = order[i]
            read = self.reads[item.index]
            start = min(start, self.times[read]) - self.takes[item.index]
            in_start[read] = start
            natural = self.anchor_to[max(int(np.searchsorted(self.times, start, "right")) - 1, 0)]
            wanted = max(natural, self.anchor_from[min(item.until, rows)])
            back[i] = min(read, self._fetched(max(wanted, 0)))
        return _Queues(
            gone, back, np.maximum.accumulate(out_free), np.minimum.accumulate(in_start[::-1])[::-1]
        )

    def _saved(self, order: Sequence[_Chosen], queues: _Queues) -> Bytes:
        """Bytes that are away during each row."""
        change = np.zeros(len(self.during) + 1, np.int64)
        for i, item in enumerate(order):
            if queues.gone[i] < queues.back[i]:
                change[queues.gone[i]] += self.sizes[item.index]
                change[queues.back[i]] -= self.sizes[item.index]
        return np.cumsum(change)[:-1]

    def _pick(
        self,
        at: int,
        excess: Bytes,
        queues: _Queues,
        order: Sequence[_Chosen],
        refused: npt.NDArray[np.bool_],
        waiting: bool,
    ) -> int | None:
        """Return the stay that best covers a row; one that was chosen already may be made to wait for."""
        rows = len(self.during)
        done = np.maximum(self.times[self.outs], queues.out_free[self.outs]) + self.takes
        start = np.minimum(self.times[self.reads], queues.in_start[self.reads]) - self.takes
        gone = self.anchor_from[np.minimum(np.searchsorted(self.times, done), rows)]
        back = self.anchor_to[np.maximum(np.searchsorted(self.times, start, "right") - 1, 0)]
        usable = ~refused & (self.outs <= self.anchor_to[at]) & (self.reads > at)
        usable &= self.anchor_from[at + 1] <= rows
        for i, item in enumerate(order):
            if not waiting or queues.gone[i] <= at < queues.back[i]:
                usable[item.index] = False
        hidden = usable & (gone <= at) & (back > at)
        hot = np.concatenate([[0], np.cumsum(np.clip(excess, 0, None) > 0)])
        if hidden.any():
            covered = hot[np.clip(back, 0, rows)] - hot[np.clip(gone, 0, rows)]
            gain = np.minimum(self.sizes, excess[at]) * covered / self.takes
            return int(np.where(hidden, gain, -1.0).argmax())
        if not waiting or not usable.any():
            return None
        late = np.maximum(done - self.times[at], 0) + np.maximum(self.times[at + 1] - start, 0)
        gain = np.minimum(self.sizes, excess[at]) / (late + self.takes * 1e-3)
        return int(np.where(usable, gain, -1.0).argmax())

    def _has_room(self, order: Sequence[_Chosen], pick: int, limit: int) -> bool:
        """Whether the host holds one more stay beside the chosen ones."""
        change = np.zeros(len(self.during) + 2, np.int64)
        for index in (*(item.index for item in order), pick):
            change[self.outs[index]] += self.sizes[index]
            change[self.reads[index] + 1] -= self.sizes[index]
        return int(np.cumsum(change).max()) <= limit

    # --- the decisions ---

    def _hidden(self, picks: Sequence[_Chosen]) -> Sequence[_Chosen]:
        """Return as many picks, the first ones, as cost no time in the simulator.

        A later pick moves the copies of earlier ones on the queues, which were hidden when they were taken.
        """
        kept, refused = 0, len(picks) + 1
        tried = len(picks)
        while refused - kept > 1:
            plan = self._planned(picks[:tried])
            line = simulate_tables(self.tables, lower_tables(self.tables, plan), self.link)
            waits = line.seconds > self.timeline.seconds * (1 + ROUNDING)
            kept, refused = (kept, tried) if waits else (tried, refused)
            tried = (kept + refused) // 2
        return picks[:kept]

    def _eased(self, picks: Sequence[_Chosen], target: int) -> Plan:
        """Return the plan with picks whose copies have the time that a target has bytes for."""
        order = self._in_order(picks)
        queues = self._queues(order)
        left = self.during - self._saved(order, queues)
        held = [
            Held(int(self.sizes[i]), float(self.takes[i]), int(gone), int(back), int(self.reads[i]))
            for i, gone, back in zip((item.index for item in order), queues.gone, queues.back, strict=True)
        ]
        limit = max(target, int(left.max(initial=0)))
        rows = Rows(self.times, limit - left, self.anchor_to, self.anchor_from)
        ease([one for one in held if one.gone < one.back], rows)
        gone = np.array([one.gone for one in held], np.int32)
        back = np.array([one.back for one in held], np.int32)
        return self._with(order, replace(queues, gone=gone, back=back))

    def _planned(self, picks: Sequence[_Chosen]) -> Plan:
        order = self._in_order(picks)
        return self._with(order, self._queues(order))

    def _in_order(self, picks: Sequence[_Chosen]) -> Sequence[_Chosen]:
        return sorted(picks, key=lambda item: (self.outs[item.index], item.index))

    def _with(self, order: Sequence[_Chosen], queues: _Queues) -> Plan:
        return replace(self.plan, offload=tuple(sorted(self._decisions(order, queues))))

    def _decisions(self, order: Sequence[_Chosen], queues: _Queues) -> Iterator[OffloadGap]:
        for i, item in enumerate(order):
            stay = self.stays[item.index]
            gone, back = int(queues.gone[i]), int(queues.back[i])
            if gone < back:
                after = stay.value.node if stay.row < 0 else self._node(stay.row)
                use = self._node(int(self.anchor_to[stay.read]))
                yield OffloadGap(stay.value, after, self._node(gone), self._node(self._fetched(back)), use)

    def _fetched(self, back: int) -> int:
        """The row before whose node a copy back starts; the last that a decision can name where none is."""
        row = int(self.anchor_from[back])
        return row if row < len(self.during) else int(self.anchor_to[-1])

    def _node(self, row: int) -> int:
        step = self.schedule.steps[int(self.anchor_from[row])]
        assert isinstance(step, Compute)
        return step.run.node
