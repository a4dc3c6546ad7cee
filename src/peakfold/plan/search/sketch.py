"""Bytes and seconds of a state of the fission tree, without planning it.

Each enabled region stands as one step: what it makes for others, what it reads, what a part needs beyond
them. Where bytes are left over the budget, or time is left under its limit, values that are cheap to
compute again a byte are dropped between forward and backward, as long as they are live at the peak. The
sketch is for choosing what is worth planning; what is found is always planned, lowered and simulated.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from numba import njit

from peakfold.errors import PlanError
from peakfold.plan.fission.axes import Axes
from peakfold.plan.fission.derive import derive
from peakfold.plan.fission.derived import Body
from peakfold.plan.fission.program import CostsOf, with_loops
from peakfold.plan.fission.tree import Parts, Tree, region_of, rest_of
from peakfold.plan.schedule.arrays import begins, flat
from peakfold.plan.schedule.goal import Goal
from peakfold.plan.search.footprint import Footprint, Ground, footprint, inner_bytes

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]


DEEP = 64
"""Most items that run again for one value."""
CHOICES = 8
"""Values, those of which one run is cheapest a byte, of which the cheapest with all it needs is dropped."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """What a state may come to.

    Attributes:
        peak: most bytes at once, inputs included.
        seconds: of a step.
    """

    peak: float
    seconds: float


class Items(NamedTuple):
    """Items and values in arrays; ``read[read_begin[i]:read_begin[i + 1]]`` are what item ``i`` reads."""

    read_begin: Ints
    read: Ints
    maker: Ints
    nbytes: Ints
    kept: Flags
    workspace: Ints
    seconds: Floats
    again: Floats
    ranked: Ints
    turn: int
    reuse_begin: Ints
    result: Ints
    operand: Ints


@dataclass
class Sketch:
    """Estimates states of one tree.

    Attributes:
        ground: the prepared graph.
        tree: the candidates.
        goal: what is asked: it says what is dropped.
        axes: knows the axes of the graph.
        resident: bytes of the inputs.
        costs_of: gives the costs of the graphs of parts, for `measure`.
    """

    ground: Ground
    tree: Tree
    goal: Goal
    axes: Axes
    resident: int
    costs_of: CostsOf
    _exact: dict[tuple[int, int], float] = field(default_factory=dict)
    _prints: dict[int, tuple[Footprint, ...]] = field(default_factory=dict)
    _work: dict[tuple[int, Parts], list[float]] = field(default_factory=dict)
    _nested: dict[tuple[int, int], tuple[Floats, Floats]] = field(default_factory=dict)

    def footprints(self, index: int) -> tuple[Footprint, ...]:
        """Return the footprint of each loop of a candidate; none where it cannot be split."""
        if index not in self._prints:
            candidate = self.tree.candidates[index]
            regions = (region_of(candidate, 2), *rest_of(candidate, 2))
            try:
                found = tuple(footprint(self.ground, region, self.axes) for region in regions)
            except PlanError:
                found = ()
            self._prints[index] = found
        return self._prints[index]

    def estimate(self, parts: Parts, goal: Goal | None = None) -> Estimate | None:
        """Return what a state may come to; None where a region of it cannot be split.

        Args:
            parts: the state.
            goal: what is asked, where it is not what the sketch is for.
        """
        goal = goal or self.goal
        outer = self.tree.outermost(parts)
        prints = [self.footprints(index) for index in outer]
        if not all(prints):
            return None
        known = [one for loops in prints for one in loops]
        items = self._items
        home = np.full(len(items.seconds), -1, np.int64)
        for region, one in enumerate(known):
            home[one.home] = region
        work = np.array([held for index in outer for held in self._workspace(index, parts)], np.float64)
        taken = sum(self._taken(index, parts) for index in outer)
        reads = [one.reads for one in known]
        if not np.isfinite(taken):
            return None
        peak, seconds = _estimate(
            items,
            home,
            np.array([one.place for one in known], np.int64),
            work,
            np.cumsum([0, *(len(row) for row in reads)]),
            np.concatenate(reads) if reads else np.zeros(0, np.int64),
            float(taken),
            float(goal.memory - self.resident) if goal.memory is not None else -1.0,
            goal.seconds,
        )
        return Estimate(peak + self.resident, seconds)

    @property
    def plain(self) -> int:
        """Most bytes at once where nothing is split or dropped."""
        nothing = self.estimate(self.tree.disabled, Goal(None, None))
        return 0 if nothing is None else int(nothing.peak)

    def unmeasured(self, parts: Parts) -> list[tuple[int, int]]:
        """Return the regions of a state, and their parts, whose seconds are a guess."""
        counts = enumerate(self.tree.counts(parts))
        return [(k, count) for k, count in counts if count > 1 and (k, count) not in self._exact]

    def measure(self, index: int, count: int) -> None:
        """Take the seconds of a region from the costs of the graph of one part; infinite where it is none.

        Args:
            index: of the candidate.
            count: of parts.
        """
        candidate = self.tree.candidates[index]
        regions = (region_of(candidate, count), *rest_of(candidate, count))
        try:
            bodies = derive(self.ground.graph, regions, self.axes).bodies.values()
        except PlanError:
            self._exact[index, count] = np.inf
            return
        self._exact[index, count] = sum(self._seconds_of(body) for body in bodies)

    def _seconds_of(self, body: Body) -> float:
        """Seconds of all parts that drop nothing."""
        costs = with_loops(body.graph, self.costs_of(body.graph), {})
        return body.parts * sum(costs.seconds.get(node.id, 0.0) for node in body.graph.nodes)

    def _added(self, index: int, count: int) -> float:
        """Seconds that parts add to a region, fewer than none where they are faster than the whole.

        Of a number of parts that was not measured: by the nearest one that was. What is faster there is as
        much faster here, what each part adds there it adds here.
        """
        if (index, count) in self._exact:
            return self._exact[index, count] - self._whole(index)
        known = [
            (abs(n - count), n, seconds)
            for (k, n), seconds in self._exact.items()
            if k == index and np.isfinite(seconds)
        ]
        if not known:
            return (count - 1) * sum(one.more for one in self.footprints(index))
        _, parts, seconds = min(known)
        added = seconds - self._whole(index)
        return added if added < 0 else added / (parts - 1) * (count - 1)

    def _whole(self, index: int) -> float:
        return sum(one.seconds for one in self.footprints(index))

    def _workspace(self, index: int, parts: Parts) -> list[float]:
        inner = self.tree.inside(parts, index)
        key = (parts[index], *inner)
        if (index, key) not in self._work:
            self._work[index, key] = list(self._new_workspace(index, parts[index], inner))
        return self._work[index, key]

    def _new_workspace(self, index: int, count: int, inner: Parts) -> Iterator[float]:
        nested = self.tree.outermost(inner)
        for loop, one in enumerate(self.footprints(index)):
            shrinking, staying = one.shrinking.copy(), one.staying.copy()
            for k in (k for k in nested if self.tree.loop_of(k, index) == loop):
                less, rest = self._nested_bytes(index, k, one)
                shrinking -= less * (1 - 1 / inner[k])
                staying -= rest * (1 - 1 / inner[k])
            yield float((shrinking / count + staying).max(initial=0.0))

    def _nested_bytes(self, outer: int, inner: int, one: Footprint) -> tuple[Floats, Floats]:
        if (outer, inner) not in self._nested:
            found = (np.zeros(len(one.inside)), np.zeros(len(one.inside)))
            for other in self.footprints(inner):
                found = inner_bytes(self.ground, one, other)
            self._nested[outer, inner] = found
        return self._nested[outer, inner]

    def _taken(self, index: int, parts: Parts) -> float:
        """Seconds of a region, with those that parts of nested ones add in each of its parts."""
        inner = self.tree.inside(parts, index)
        nested = self.tree.outermost(inner)
        within = sum(max(self._added_within(k, index, parts), 0.0) for k in nested)
        return self._whole(index) + self._added(index, parts[index]) + within

    def _added_within(self, inner: int, outer: int, parts: Parts) -> float:
        """Seconds that parts of a nested region add in all parts of the outer one."""
        if self.tree.is_finer(inner, outer):
            return self._added(inner, self.tree.counts(parts)[inner]) - self._added(inner, parts[outer])
        return self._added(inner, parts[inner]) * parts[outer]

    @cached_property
    def _items(self) -> Items:
        """The items in arrays."""
        problem = self.ground.problem
        count = len(problem.nbytes)
        maker = np.array([problem.maker.get(v, -1) for v in range(count)], np.int64)
        nbytes = np.array(problem.nbytes, np.int64)
        reuses = [tuple({a: (a, b) for a, b in reversed(row)}.values()) for row in problem.reuses]
        tables, graph = self.ground.tables, self.ground.graph
        phases = [graph.node[int(tables.nodes[step])].origin.phase for step in self.ground.steps]
        turn = phases.index("backward") if "backward" in phases else len(phases)
        pure = np.array(
            [tables.pure[step] and not tables.random[step] for step in self.ground.steps], np.bool_
        )
        can = (maker >= 0) & (nbytes > 0)
        can[can] &= pure[maker[can]]
        again = np.where(can, self.ground.seconds[maker], np.inf)
        ranked = np.argsort(again / np.maximum(nbytes, 1), kind="stable")
        return Items(
            read_begin=begins(problem.reads).astype(np.int64),
            read=flat(problem.reads).astype(np.int64),
            maker=maker,
            nbytes=nbytes,
            kept=np.array([v in problem.kept for v in range(count)], np.bool_),
            workspace=np.array(problem.workspace, np.int64),
            seconds=self.ground.seconds,
            again=again,
            ranked=ranked[np.isfinite(again[ranked])].astype(np.int64),
            turn=turn,
            reuse_begin=begins(reuses).astype(np.int64),
            result=flat([[a for a, _ in row] for row in reuses]).astype(np.int64),
            operand=flat([[b for _, b in row] for row in reuses]).astype(np.int64),
        )


@njit(cache=True)
def _estimate(
    items: Items,
    home: Ints,
    place: Ints,
    work: Floats,
    reads_begin: Ints,
    reads: Ints,
    taken: float,
    memory: float,
    latency: float,
) -> tuple[float, float]:
    """Return the peak beyond the inputs, and the seconds."""
    count, values = len(items.seconds), len(items.nbytes)
    seconds = taken
    before = np.full(values, -1, np.int64)
    behind = np.full(values, count, np.int64)
    last = np.full(values, -1, np.int64)
    for item in range(count):
        if home[item] >= 0:
            continue
        seconds += items.seconds[item]
        for at in range(items.read_begin[item], items.read_begin[item + 1]):
            _read(items.read[at], item, items.turn, before, behind, last)
    for region in range(len(place)):
        for at in range(reads_begin[region], reads_begin[region + 1]):
            _read(reads[at], place[region], items.turn, before, behind, last)
    live = np.zeros(count + 1, np.float64)
    for v in range(values):
        maker = items.maker[v]
        if maker < 0:
            continue
        inside = home[maker] >= 0
        if inside and last[v] < 0 and not items.kept[v]:
            continue
        born = place[home[maker]] if inside else maker
        dies = count - 1 if items.kept[v] else max(last[v], born)
        before[v] = max(before[v], born)
        live[born] += items.nbytes[v]
        live[dies + 1] -= items.nbytes[v]
    for at in range(1, count + 1):
        live[at] += live[at - 1]
    for item in range(count):
        if home[item] < 0:
            live[item] += items.workspace[item]
            for at in range(items.reuse_begin[item], items.reuse_begin[item + 1]):
                operand = items.operand[at]
                if last[operand] == item and not items.kept[operand]:
                    live[item] -= items.nbytes[items.result[at]]
    for region in range(len(place)):
        live[place[region]] += work[region]
    found: tuple[float, float] = _dropped(items, home, live, before, behind, last, seconds, memory, latency)
    return found


@njit(cache=True)
def _read(value: int, at: int, turn: int, before: Ints, behind: Ints, last: Ints) -> None:
    """Note that a value is read at a place."""
    last[value] = max(last[value], at)
    if at < turn:
        before[value] = max(before[value], at)
    else:
        behind[value] = min(behind[value], at)


@njit(cache=True)
def _dropped(
    items: Items,
    home: Ints,
    live: Floats,
    before: Ints,
    behind: Ints,
    last: Ints,
    seconds: float,
    memory: float,
    latency: float,
) -> tuple[float, float]:
    """Drop what is cheapest a byte at the peak, until it fits or time is up; return peak and seconds."""
    count = len(home)
    gone = np.zeros(len(items.nbytes), np.bool_)
    again = np.zeros(count, np.bool_)
    chain = np.empty(DEEP, np.int64)
    while True:
        at = 0
        for place in range(1, count):
            if live[place] > live[at]:
                at = place
        if (memory >= 0 and live[at] <= memory) or (memory < 0 and not np.isfinite(latency)):
            return live[at], seconds
        best, least, looked = -1, np.inf, 0
        for v in items.ranked:
            if gone[v] or not before[v] < at < behind[v] or home[items.maker[v]] >= 0 or behind[v] >= count:
                continue
            added, _ = _chain(items, home, again, gone, last, v, behind[v], chain)
            if seconds + added <= latency and added / items.nbytes[v] < least:
                best, least = v, added / items.nbytes[v]
            looked += 1
            if looked == CHOICES:
                break
        if best < 0:
            return live[at], seconds
        added, length = _chain(items, home, again, gone, last, best, behind[best], chain)
        again[chain[:length]] = True
        gone[best] = True
        seconds += added
        for place in range(before[best] + 1, behind[best]):
            live[place] -= items.nbytes[best]


@njit(cache=True)
def _chain(
    items: Items, home: Ints, again: Flags, gone: Flags, last: Ints, value: int, at: int, chain: Ints
) -> tuple[float, int]:
    """Find what must run again for a value at a place: seconds, infinite where too much, and how many."""
    maker = items.maker[value]
    if again[maker]:
        return 0.0, 0
    chain[0] = maker
    seconds, length, looked = items.seconds[maker], 1, 0
    while looked < length:
        item = chain[looked]
        looked += 1
        for k in range(items.read_begin[item], items.read_begin[item + 1]):
            v = items.read[k]
            other = items.maker[v]
            if other < 0 or (last[v] >= at and not gone[v]) or items.kept[v] or again[other]:
                continue
            if home[other] >= 0 or not np.isfinite(items.again[v]):
                return np.inf, 0
            known = False
            for j in range(length):
                known = known or chain[j] == other
            if known:
                continue
            if length == DEEP:
                return np.inf, 0
            chain[length] = other
            length += 1
            seconds += items.seconds[other]
    return seconds, length
