"""Ordering again what is around a change, and no more [MAGIS, algorithm 2].

A stretch of the known order around what changed grows to narrow waists on both sides. Each connected piece
of it is cut at its waists; each part is ordered by itself, and the pieces are merged. Then a wider
stretch is ordered that holds the peak, too, and again as long as that lowers it.
"""

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace
from itertools import pairwise

from peakfold.plan.reorder.condense import condense
from peakfold.plan.reorder.downsets import LIMIT, Solution, solve
from peakfold.plan.reorder.problem import Problem
from peakfold.plan.reorder.reach import Reach

STEPS = 20
"""Items by which a stretch grows at most, on each side."""
WIDE = 10
"""A waist above which it grows on while waists fall."""
NARROW = 4
"""A waist below which it does in any case."""
BESIDE = 20
"""Items beside what changed and the peak, on each side, where waists were too near."""
WIDER = 3
"""Most times that a stretch is made wider, while that lowers the peak."""
LONG = 24
"""Items of a stretch between two places where all paths meet, above which it is cut at waists of one, too."""


def reschedule(
    problem: Problem, order: Sequence[int], changed: Collection[int], limit: int = LIMIT
) -> Solution:
    """Return an order that is best around what changed; elsewhere it is the known one.

    Args:
        problem: what is ordered.
        order: a known order, with what changed in some place where it may be.
        changed: items that were put in, or around which some were taken out.
        limit: most downsets that are looked at in each part.
    """
    small = condense(problem, order)
    groups = small.groups_of(changed)
    found = _around(small.problem, small.order, groups, limit)
    return _expanded(problem, order, small.expanded(found.order), found)


def whole(
    problem: Problem, order: Sequence[int], limit: int = LIMIT, way: Callable[..., Solution] = solve
) -> Solution:
    """Return the best order of all items together, leaves and roots put with their neighbours.

    Args:
        problem: what is ordered.
        order: a known order.
        limit: most downsets that are looked at.
        way: `solve`, or `plain` for the recursion without bounds.
    """
    small = condense(problem, order)
    found = way(small.problem, small.order, limit)
    return _expanded(problem, order, small.expanded(found.order), found)


def in_parts(problem: Problem, order: Sequence[int], limit: int = LIMIT) -> Solution:
    """Return an order in which everything was ordered, each part between waists by itself.

    Args:
        problem: what is ordered.
        order: a known order.
        limit: most downsets that are looked at in each part.
    """
    small = condense(problem, order)
    found = _stretch(small.problem, small.order, 0, len(small.order) - 1, limit)
    return _expanded(problem, order, small.expanded(found.order), found)


def _expanded(problem: Problem, order: Sequence[int], other: tuple[int, ...], found: Solution) -> Solution:
    """The better of the known order and another one; equal peaks keep the known one."""
    before, after = problem.peak(order), problem.peak(other)
    if before <= after:
        return Solution(tuple(order), before, found.exact, found.states)
    return Solution(other, after, found.exact, found.states)


def _around(problem: Problem, order: Sequence[int], changed: Collection[int], limit: int) -> Solution:
    places = [at for at, item in enumerate(order) if item in changed]
    if not places:
        return Solution(tuple(order), problem.peak(order), False, 0)
    reach = Reach.of(problem, order)
    first = extended(reach, order, places[0], -1)
    last = extended(reach, order, places[-1], 1)
    best = _stretch(problem, order, first, last, limit)
    for _ in range(WIDER):
        hot = problem.rows(best.order).index(best.peak)
        begin = max(min(first, hot) - BESIDE, 0)
        end = min(max(last, hot) + BESIDE, len(order) - 1)
        wider = _stretch(problem, best.order, begin, end, limit)
        gains = wider.peak < best.peak
        best = replace(wider if gains else best, states=best.states + wider.states)
        if not gains:
            break
    return best


def extended(reach: Reach, order: Sequence[int], place: int, step: int) -> int:
    """Return the place to which a stretch grows from one of its ends (``ExtendBound``).

    Args:
        reach: of the problem.
        order: the known order.
        place: the end.
        step: -1 for the begin of a stretch, 1 for its end.
    """
    narrowest: float = float("inf")
    at = place
    for _ in range(STEPS):
        waist = reach.waist(order[at])
        if not ((narrowest > WIDE or waist < NARROW) and waist < narrowest):
            break
        narrowest = waist
        if not 0 <= at + step < len(order):
            break
        at += step
    return at


def _stretch(problem: Problem, order: Sequence[int], first: int, last: int, limit: int) -> Solution:
    """Order what lies between two places; the rest stays."""
    done = sum(1 << item for item in order[:first])
    items = order[first : last + 1]
    part = problem.part(items, done)
    inner, exact, states = _ordered(part, limit)
    between = tuple(items[at] for at in inner)
    if part.peak(inner) >= part.peak(range(part.size)):
        between = tuple(items)
    found = (*order[:first], *between, *order[last + 1 :])
    return Solution(found, problem.peak(found), exact and part.size == problem.size, states)


def _ordered(part: Problem, limit: int) -> tuple[tuple[int, ...], bool, int]:
    """Order each connected piece, then merge: each keeps its own order."""
    pieces, exact, states = [], True, 0
    for piece in _pieces(part):
        own: list[int] = []
        for cut in _cuts(part, piece):
            beside = sum(1 << item for item in range(part.size) if item not in set(piece))
            sub = part.part(cut, sum(1 << item for item in own) | beside)
            found = solve(sub, range(sub.size), limit)
            own += [cut[at] for at in found.order]
            exact, states = exact and found.exact, states + found.states
        pieces.append(own)
    if len(pieces) == 1:
        return tuple(pieces[0]), exact, states
    merged = _merged(part, pieces, limit)
    return merged.order, False, states + merged.states


def _pieces(part: Problem) -> list[list[int]]:
    """The items that depend on each other, each piece in order."""
    root = list(range(part.size))

    def find(item: int) -> int:
        while root[item] != item:
            root[item] = root[root[item]]
            item = root[item]
        return item

    for item in range(part.size):
        for later in part.successors[item]:
            root[find(later)] = find(item)
    found: dict[int, list[int]] = {}
    for item in range(part.size):
        found.setdefault(find(item), []).append(item)
    return list(found.values())


def _cuts(part: Problem, piece: list[int]) -> Iterator[list[int]]:
    """The stretches of a piece between items beside which there is no other; of long ones, at most one.

    A cut at a waist of one leaves what is beside it on the side on which it was, so that short ones have
    none.
    """
    alone = part.part(piece)
    reach = Reach.of(alone, range(alone.size))
    waists = [reach.waist(at) for at in range(len(piece))]
    for begin, end in _between(waists, 0, len(piece), 0):
        narrower = _between(waists, begin, end, 1) if end - begin > LONG else ((begin, end),)
        for first, last in narrower:
            yield piece[first:last]


def _between(waists: Sequence[int], begin: int, end: int, widest: int) -> Iterator[tuple[int, int]]:
    """Yield the stretches between items whose waists are no wider, each with the item that ends it."""
    for at in range(begin, end - 1):
        if waists[at] <= widest:
            yield begin, at + 1
            begin = at + 1
    yield begin, end


def _merged(part: Problem, pieces: Sequence[Sequence[int]], limit: int) -> Solution:
    """The best order in which each piece keeps its own."""
    after: list[tuple[int, ...]] = [()] * part.size
    for piece in pieces:
        for item, later in pairwise(piece):
            after[later] = (item,)
    chained = Problem(
        part.reads, part.makes, part.nbytes, part.kept, part.workspace, tuple(after), part.reuses
    )
    known = [item for piece in pieces for item in piece]
    return solve(chained, known, limit)
