"""A problem with fewer items: what hangs on one neighbour alone goes with it.

On a training graph nearly every step has others beside it: gradients of weights wait for nobody, and what
reads parameters alone could run at any time. Put with a neighbour, they leave a graph that has narrow waists.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush

from peakfold.plan.reorder.problem import Problem, bits
from peakfold.plan.reorder.reach import Reach


@dataclass(frozen=True)
class Condensed:
    """A problem whose items are groups of items of another one.

    Attributes:
        problem: of the groups.
        groups: items of each, in the order in which they run.
        order: a known order of the groups.
    """

    problem: Problem
    groups: tuple[tuple[int, ...], ...]
    order: tuple[int, ...]

    def expanded(self, order: Iterable[int]) -> tuple[int, ...]:
        """Return the order of items that an order of groups means."""
        return tuple(item for group in order for item in self.groups[group])

    def groups_of(self, items: Iterable[int]) -> frozenset[int]:
        """Return the groups that some items are in."""
        wanted = set(items)
        return frozenset(g for g, group in enumerate(self.groups) if not wanted.isdisjoint(group))


def condense(problem: Problem, order: Sequence[int]) -> Condensed:
    """Attach leaves and roots to a neighbour, where that decides no other order.

    A leaf goes with an item behind all others that it waits for, a root with one before all others that
    wait for it. So neither closes a circle.

    Args:
        problem: the items.
        order: a known order of them.
    """
    found = Condensed(problem, tuple((item,) for item in range(problem.size)), tuple(order))
    for attached in (_leaves, _roots, _leaves, _roots):
        into = attached(found.problem, found.order)
        if all(item == other for item, other in enumerate(into)):
            continue
        small = _condensed(found.problem, found.order, into)
        groups = tuple(found.expanded(group) for group in small.groups)
        found = Condensed(small.problem, groups, small.order)
    return found


def _leaves(problem: Problem, order: Sequence[int]) -> list[int]:
    """For each item, the one that it goes with: a leaf with the last of those that it waits for."""
    place = {item: at for at, item in enumerate(order)}
    reach = Reach.of(problem, order)
    into = list(range(problem.size))
    for item in order:
        waits = problem.before[item]
        if waits and not problem.successors[item]:
            last = max(bits(waits), key=place.__getitem__)
            if not waits & ~reach.before[last] & ~(1 << last):
                into[item] = last
    return into


def _roots(problem: Problem, order: Sequence[int]) -> list[int]:
    """For each item, the one that it goes with: a root with the first of those that wait for it."""
    place = {item: at for at, item in enumerate(order)}
    reach = Reach.of(problem, order)
    into = list(range(problem.size))
    for item in order:
        later = problem.successors[item]
        if later and not problem.before[item]:
            first = min(later, key=place.__getitem__)
            if all(other == first or reach.after[first] >> other & 1 for other in later):
                into[item] = first
    return into


def _condensed(problem: Problem, order: Sequence[int], into: Sequence[int]) -> Condensed:
    members: dict[int, list[int]] = {}
    for item in order:
        members.setdefault(into[item], []).append(item)
    groups = [tuple(group) for group in members.values()]
    place = {item: at for at, item in enumerate(order)}
    of = {item: g for g, group in enumerate(groups) for item in group}
    own = [sum(1 << item for item in group) for group in groups]
    makes, reads = [], []
    for group, mask in zip(groups, own, strict=True):
        made = [v for item in group for v in problem.makes[item]]
        alone = len(group) == 1
        out = [v for v in made if alone or v in problem.kept or problem.readers[v] & ~mask]
        makes.append(tuple(out))
        inside = set(made)
        reads.append(tuple(dict.fromkeys(v for i in group for v in problem.reads[i] if v not in inside)))
    after = tuple(
        tuple(sorted({of[k] for item in group for k in bits(problem.before[item])} - {g}))
        for g, group in enumerate(groups)
    )
    single = [len(group) == 1 for group in groups]
    found = Problem(
        reads=tuple(reads),
        makes=tuple(makes),
        nbytes=problem.nbytes,
        kept=problem.kept,
        workspace=tuple(
            problem.workspace[group[0]] if one else _hidden(problem, group, set(out))
            for group, out, one in zip(groups, makes, single, strict=True)
        ),
        after=after,
        reuses=tuple(
            problem.reuses[group[0]] if one else () for group, one in zip(groups, single, strict=True)
        )
        if problem.reuses
        else (),
    )
    first = [place[main] for main in members]
    return Condensed(found, tuple(groups), nearest(found, first))


def _hidden(problem: Problem, group: tuple[int, ...], out: set[int]) -> int:
    """Bytes that a group has at once beyond what it makes for others, nothing of it dead before."""
    live = most = done = 0
    for item in group:
        done |= 1 << item
        live += problem.made[item]
        most = max(most, live + problem.workspace[item])
        live -= sum(
            size
            for size, readers, value in problem.mortal[item]
            if value not in out and not readers & ~done and problem.maker.get(value) in group
        )
    return max(0, most - sum(problem.nbytes[v] for v in out))


def nearest(problem: Problem, rank: Sequence[int]) -> tuple[int, ...]:
    """Return the order nearest to a rank of the items; those that wait for one another are left out."""
    waits = [mask.bit_count() for mask in problem.before]
    heap = [(rank[item], item) for item, count in enumerate(waits) if not count]
    heapify(heap)
    order = []
    while heap:
        _, item = heappop(heap)
        order.append(item)
        for later in problem.successors[item]:
            waits[later] -= 1
            if not waits[later]:
                heappush(heap, (rank[later], later))
    return tuple(order)
