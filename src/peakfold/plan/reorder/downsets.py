"""An order of least peak: dynamic programming over downsets [Serenity, MLSys 2020], best first.

A downset is a set of items that may have run; what is live after it depends on the set alone, so that of all
orders of it only the one of least peak counts. Downsets are looked at in the order of their peaks, the
deepest first among equals: the first that is whole is best. No downset counts for less than what every
order needs somewhere. An item that lifts nothing above the peak so far, and after which no more is live
than before, runs at once: an order that runs it later is not better, for it frees at least as much wherever
it runs later, but by then it has freed it later.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush

from peakfold.plan.reorder.problem import Problem, bits
from peakfold.plan.reorder.reach import Reach

LIMIT = 20_000
"""Downsets that are looked at before the search gives up and takes the best order that it knows."""


@dataclass(frozen=True, slots=True)
class Solution:
    """An order.

    Attributes:
        order: all items.
        peak: most bytes at once.
        exact: whether no order has less.
        states: downsets that were looked at.
    """

    order: tuple[int, ...]
    peak: int
    exact: bool
    states: int


def solve(problem: Problem, known: Sequence[int], limit: int = LIMIT) -> Solution:
    """Return an order of least peak; the known one where that is as good.

    Args:
        problem: what is ordered.
        known: any order of it.
        limit: most downsets that are looked at; beyond it the result is not exact.
    """
    least, bound = problem.peak(known), lower_bound(problem, known)
    best = tuple(known)
    if least <= bound:
        return Solution(best, least, True, 0)
    search = _Downsets(problem, bound, least, limit)
    found = search.run()
    if found is not None:
        return Solution(found, problem.peak(found), True, search.states)
    if search.states <= limit:
        return Solution(best, least, True, search.states)
    tried = greedy(problem)
    peak = problem.peak(tried)
    return Solution(tried if peak < least else best, min(peak, least), False, search.states)


def lower_bound(problem: Problem, known: Sequence[int]) -> int:
    """Return bytes that every order needs at once: while one item runs, with what must be live beside it."""
    reach = Reach.of(problem, known)
    most = problem.given
    beside = _Beside(problem)
    for item in known:
        most = max(most, beside.live(item, reach))
    return most


class _Beside:
    """What must be live while an item runs."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.values = [
            (size, 1 << problem.maker[v] if v in problem.maker else 0, problem.readers[v], v in problem.kept)
            for v, size in enumerate(problem.nbytes)
            if size and (v in problem.maker or problem.readers[v] or v in problem.kept)
        ]

    def live(self, item: int, reach: Reach) -> int:
        """Bytes of values made before it, and read by it or after it; of its own, less what it may reuse."""
        problem = self.problem
        before, later = reach.before[item], reach.after[item] | (1 << item)
        held = sum(
            size
            for size, maker, readers, kept in self.values
            if (not maker or maker & before) and (kept or readers & later)
        )
        own = problem.made[item] + problem.workspace[item]
        return held + own - sum({a: problem.nbytes[a] for a, _ in self._pairs(item)}.values())

    def _pairs(self, item: int) -> Sequence[tuple[int, int]]:
        return self.problem.reuses[item] if self.problem.reuses else ()


class _Downsets:
    """The search for a peak below one that is known."""

    def __init__(self, problem: Problem, bound: int, below: int, limit: int) -> None:
        self.problem = problem
        self.bound, self.below, self.limit = bound, below, limit
        self.whole = (1 << problem.size) - 1
        self.came: dict[int, tuple[int, tuple[int, ...]]] = {}
        self.states = 0

    def run(self) -> tuple[int, ...] | None:
        """Return an order of least peak; None where none is below the known one, or the limit is passed."""
        problem = self.problem
        ready = sum(1 << item for item, mask in enumerate(problem.before) if not mask)
        heap = [(max(self.bound, problem.given), 0, 0, problem.given, ready)]
        settled: set[int] = set()
        closed: set[int] = set()
        best: dict[int, int] = {0: heap[0][0]}
        while heap:
            peak, _, done, live, ready = heappop(heap)
            if done in settled or peak >= self.below:
                continue
            settled.add(done)
            self.states += 1
            if self.states > self.limit:
                return None
            origin = done
            done, live, ready, ran = self._safe(peak, done, live, ready)
            if done == self.whole:
                return (*self._path(origin), *ran)
            if done in closed:
                continue
            closed.add(done)
            for item in bits(ready):
                after = done | 1 << item
                at_once, then = problem.run(item, live, after)
                reached = max(peak, at_once)
                if reached < best.get(after, self.below):
                    best[after] = reached
                    self.came[after] = (origin, (*ran, item))
                    heappush(
                        heap,
                        (
                            reached,
                            -after.bit_count(),
                            after,
                            then,
                            ready_after(problem, ready, item, after),
                        ),
                    )
        return None

    def _safe(self, peak: int, done: int, live: int, ready: int) -> tuple[int, int, int, tuple[int, ...]]:
        """Run what can only help, until nothing is left of it."""
        problem = self.problem
        ran: list[int] = []
        again = True
        while again:
            again = False
            for item in bits(ready):
                after = done | 1 << item
                at_once, then = problem.run(item, live, after)
                if at_once <= peak and then <= live:
                    ready = ready_after(problem, ready, item, after)
                    done, live, again = after, then, True
                    ran.append(item)
                    break
        return done, live, ready, tuple(ran)

    def _path(self, done: int) -> tuple[int, ...]:
        """The items that led to a downset."""
        rows = []
        while done:
            done, ran = self.came[done]
            rows.append(ran)
        return tuple(item for ran in reversed(rows) for item in ran)


def ready_after(problem: Problem, ready: int, item: int, done: int) -> int:
    """Return the items that may run once one has, as bits.

    Args:
        problem: what is ordered.
        ready: those that could run before it.
        item: what runs.
        done: what ran, the item included.
    """
    ready ^= 1 << item
    for later in problem.successors[item]:
        if not problem.before[later] & ~done:
            ready |= 1 << later
    return ready


def greedy(problem: Problem) -> tuple[int, ...]:
    """Return the order that runs next, each time, what leaves least live."""
    done, live = 0, problem.given
    ready = {item for item, mask in enumerate(problem.before) if not mask}
    order = []
    while ready:
        ways = [(problem.run(item, live, done | 1 << item)[::-1], item) for item in sorted(ready)]
        (live, _), item = min(ways)
        order.append(item)
        done |= 1 << item
        ready.discard(item)
        ready |= {later for later in problem.successors[item] if not problem.before[later] & ~done}
    return tuple(order)


def plain(problem: Problem, known: Sequence[int], limit: int = LIMIT) -> Solution:
    """Return an order of least peak by the recursion alone, size after size, without bounds.

    Downsets that need more than the known order are left out (Serenity's soft budget).

    Args:
        problem: what is ordered.
        known: any order of it.
        limit: most downsets; beyond it the known order is returned, not exact.
    """
    budget = problem.peak(known)
    ready = sum(1 << item for item, mask in enumerate(problem.before) if not mask)
    layer: dict[int, tuple[int, int, int, int | None]] = {0: (problem.given, problem.given, ready, None)}
    layers = [layer]
    states = 0
    for _ in range(problem.size):
        layer = _next(problem, layer, budget)
        layers.append(layer)
        states += len(layer)
        if states > limit:
            return Solution(tuple(known), budget, False, states)
    order: list[int] = []
    done = (1 << problem.size) - 1
    for found in reversed(layers[1:]):
        item = found[done][3]
        assert item is not None
        order.append(item)
        done ^= 1 << item
    return Solution(tuple(reversed(order)), layers[-1][(1 << problem.size) - 1][0], True, states)


def _next(
    problem: Problem, layer: Mapping[int, tuple[int, int, int, int | None]], budget: int
) -> dict[int, tuple[int, int, int, int | None]]:
    """The downsets of one item more: peak, live bytes, items that may run, the item that ran last."""
    found: dict[int, tuple[int, int, int, int | None]] = {}
    for done, (peak, live, ready, _) in layer.items():
        for item in bits(ready):
            after = done | 1 << item
            at_once, then = problem.run(item, live, after)
            reached = max(peak, at_once)
            if reached <= budget and (after not in found or reached < found[after][0]):
                found[after] = (reached, then, ready_after(problem, ready, item, after), item)
    return found
