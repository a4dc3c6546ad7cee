"""Problems that look like given ones: their solutions, changed in ways that leave a solution without slack.

Every variant comes with a placement that fits, so that a planner that finds none has failed.
"""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from peakfold.plan.memory import Buffer, Problem, lower_bound

GRAIN = 1024
"""Times and sizes of the variants are multiples of this, as those of the public problems are."""

BORDER = 0.04
"""Of the capacity: the buffers that live across both halves of two problems that are glued."""


@dataclass(frozen=True)
class Packed:
    """A rectangle of time and bytes that is in use."""

    lower: int
    upper: int
    low: int
    high: int

    def meets(self, other: "Packed") -> bool:
        """Whether both have some byte at some time."""
        return (
            self.lower < other.upper
            and other.lower < self.upper
            and self.low < other.high
            and other.low < self.high
        )


Layout = list[Packed]
Change = Callable[[Layout, int, random.Random], Layout]


def layout_of(problem: Problem, offsets: Sequence[int]) -> Layout:
    """Return the rectangles of a solution."""
    return [Packed(b.lower, b.upper, o, o + b.size) for b, o in zip(problem.buffers, offsets, strict=True)]


def problem_of(layout: Layout, rng: random.Random) -> Problem:
    """Return the buffers of a layout, in any order, with their offsets."""
    rows = rng.sample(layout, len(layout))
    return Problem(
        tuple(Buffer(str(i), p.lower, p.upper, p.high - p.low, offset=p.low) for i, p in enumerate(rows))
    )


def variant(
    kind: str, bases: Sequence[Layout], capacity: int, rng: random.Random, seal: bool
) -> tuple[Problem, int]:
    """Return a variant with its solution, and its capacity.

    Args:
        kind: of ``KINDS``.
        bases: solutions of the problem that is changed, and of another one to glue to it.
        capacity: bytes that both keep to.
        rng: what is random.
        seal: fill the gaps where the least is free, so that nothing is.
    """
    if kind == "glue":
        layout, capacity = glued(bases[0], bases[1], capacity, rng)
    else:
        layout = KINDS[kind](bases[0], capacity, rng)
    if rng.random() < 0.5:
        layout = [replace(p, lower=-p.upper, upper=-p.lower) for p in layout]
    if seal:
        layout = sealed(layout, capacity, rng)
    return problem_of(layout, rng), capacity


def unchanged(layout: Layout, capacity: int, rng: random.Random) -> Layout:
    """Return the layout: another order of the buffers, and time turned round or not, are all that is new."""
    return layout


def split(layout: Layout, capacity: int, rng: random.Random) -> Layout:
    """Cut some buffers in two, in time or in bytes."""
    share = rng.choice((0.05, 0.15, 0.4))
    out: Layout = []
    for p in layout:
        times, sizes = (p.upper - p.lower) // GRAIN, (p.high - p.low) // GRAIN
        in_time = rng.random() < 0.5
        if rng.random() >= share or (times if in_time else sizes) < 2:
            out.append(p)
        elif in_time:
            at = p.lower + GRAIN * rng.randrange(1, times)
            out += [replace(p, upper=at), replace(p, lower=at)]
        else:
            at = p.low + GRAIN * rng.randrange(1, sizes)
            out += [replace(p, high=at), replace(p, low=at)]
    return out


def merged(layout: Layout, capacity: int, rng: random.Random) -> Layout:
    """Make one buffer of some pairs that touch along a whole side."""
    share = rng.choice((0.3, 1.0))
    out = set(layout)
    for p in rng.sample(layout, len(layout)):
        if p not in out or rng.random() >= share:
            continue
        for q in sorted(out, key=lambda q: (q.lower, q.low)):
            above = (q.lower, q.upper, q.low) == (p.lower, p.upper, p.high)
            after = (q.low, q.high, q.lower) == (p.low, p.high, p.upper)
            if above or after:
                out -= {p, q}
                out.add(Packed(p.lower, q.upper, p.low, q.high))
                break
    return sorted(out, key=lambda p: (p.lower, p.low))


def grown(layout: Layout, capacity: int, rng: random.Random) -> Layout:
    """Let some buffers grow into free space, in time or in bytes."""
    share = rng.choice((0.1, 0.4, 1.0))
    begin, end = min(p.lower for p in layout), max(p.upper for p in layout)
    out = list(layout)
    for i in rng.sample(range(len(out)), len(out)):
        if rng.random() >= share:
            continue
        p, others = out[i], out[:i] + out[i + 1 :]
        column = [q for q in others if q.lower < p.upper and p.lower < q.upper]
        high = min((q.low for q in column if q.low >= p.high), default=capacity)
        row = [q for q in others if q.low < p.high and p.low < q.high]
        upper = min((q.lower for q in row if q.lower >= p.upper), default=end)
        lower = max((q.upper for q in row if q.upper <= p.lower), default=begin)
        out[i] = rng.choice((replace(p, high=high), replace(p, upper=upper), replace(p, lower=lower)))
    return out


def shrunk(layout: Layout, capacity: int, rng: random.Random) -> Layout:
    """Take up to a third of some buffers away, at their ends or at their tops."""
    share = rng.choice((0.3, 0.6))
    out: Layout = []
    for p in layout:
        in_time = rng.random() < 0.5
        most = (p.upper - p.lower if in_time else p.high - p.low) // GRAIN // 3
        less = GRAIN * rng.randint(0, most) if rng.random() < share else 0
        out.append(replace(p, upper=p.upper - less) if in_time else replace(p, high=p.high - less))
    return out


def window(layout: Layout, capacity: int, rng: random.Random) -> Layout:
    """Keep what is live in a stretch of time, from its begin to its end."""
    begin, end = min(p.lower for p in layout), max(p.upper for p in layout)
    length = int((end - begin) * rng.uniform(0.4, 0.8))
    first = rng.randrange(begin, end - length, GRAIN)
    last = first + length
    kept = (replace(p, lower=max(p.lower, first), upper=min(p.upper, last)) for p in layout)
    return [p for p in kept if p.lower < p.upper]


def nudged(layout: Layout, capacity: int, rng: random.Random) -> Layout:
    """Move begins, ends and tops of some buffers a little, where that hits no other one."""
    share, step = rng.choice((0.2, 0.7)), 24
    out = list(layout)
    for i in rng.sample(range(len(out)), len(out)):
        if rng.random() >= share:
            continue
        p = out[i]
        moves = [GRAIN * rng.randint(-step, step) for _ in range(3)]
        q = Packed(p.lower + moves[0], p.upper + moves[1], p.low, p.high + moves[2])
        legal = q.lower < q.upper and q.low < q.high <= capacity
        if legal and not any(q.meets(other) for j, other in enumerate(out) if j != i):
            out[i] = q
    return out


def recut(layout: Layout, capacity: int, rng: random.Random) -> Layout:
    """Cut a rectangle out of time and bytes, and anew into as many buffers as lay in it."""
    begin, end = min(p.lower for p in layout), max(p.upper for p in layout)
    length, height = int((end - begin) * rng.uniform(0.2, 0.5)), int(capacity * rng.uniform(0.3, 0.7))
    lower, low = rng.randrange(begin, end - length, GRAIN), rng.randrange(0, capacity - height, GRAIN)
    hole = Packed(lower, lower + length // GRAIN * GRAIN, low, low + height // GRAIN * GRAIN)
    out, inside = list[Packed](), 0
    for p in layout:
        out += _outside(p, hole)
        inside += p.meets(hole)
    return out + cut(hole, max(inside // 2, 2), rng)


def cut(whole: Packed, count: int, rng: random.Random) -> Layout:
    """Cut a rectangle in two, again and again."""
    parts = [whole]
    for _ in range(20 * count):
        if len(parts) >= count:
            break
        some = rng.sample(range(len(parts)), min(3, len(parts)))
        i = max(some, key=lambda i: (parts[i].upper - parts[i].lower) * (parts[i].high - parts[i].low))
        p = parts[i]
        times, sizes = (p.upper - p.lower) // GRAIN, (p.high - p.low) // GRAIN
        if rng.random() < 0.5 and times > 1:
            at = p.lower + GRAIN * rng.randrange(1, times)
            parts[i : i + 1] = [replace(p, upper=at), replace(p, lower=at)]
        elif sizes > 1:
            at = p.low + GRAIN * rng.randrange(1, sizes)
            parts[i : i + 1] = [replace(p, high=at), replace(p, low=at)]
    return parts


def _outside(p: Packed, hole: Packed) -> Layout:
    """What is left of a rectangle beside another one."""
    if not p.meets(hole):
        return [p]
    first, last = max(p.lower, hole.lower), min(p.upper, hole.upper)
    pieces = [
        replace(p, upper=first),
        replace(p, lower=last),
        Packed(first, last, p.low, hole.low),
        Packed(first, last, hole.high, p.high),
    ]
    return [q for q in pieces if q.lower < q.upper and q.low < q.high]


def glued(one: Layout, other: Layout, capacity: int, rng: random.Random) -> tuple[Layout, int]:
    """Put one problem after another in time, with a few buffers across both, and return their capacity."""
    shift = max(p.upper for p in one) - min(p.lower for p in other)
    layout = one + [replace(p, lower=p.lower + shift, upper=p.upper + shift) for p in other]
    border = int(capacity * BORDER) // GRAIN * GRAIN
    across = Packed(min(p.lower for p in layout), max(p.upper for p in layout), capacity, capacity + border)
    return layout + cut(across, 6, rng), capacity + border


def sealed(layout: Layout, capacity: int, rng: random.Random) -> Layout:
    """Fill the gaps at the time when least is free, each with a buffer as long as it can live."""
    problem = problem_of(layout, rng)
    at = lower_bound(problem).time
    begin, end = min(p.lower for p in layout), max(p.upper for p in layout)
    out, floor = list(layout), 0
    live = sorted((p for p in layout if p.lower <= at < p.upper), key=lambda p: p.low)
    for top, high in [*((p.low, p.high) for p in live), (capacity, capacity)]:
        if top > floor:
            row = [p for p in out if p.low < top and floor < p.high]
            lower = max((p.upper for p in row if p.upper <= at), default=begin)
            upper = min((p.lower for p in row if p.lower > at), default=end)
            out.append(Packed(lower, upper, floor, top))
        floor = high
    return out


KINDS: dict[str, Change] = {
    "unchanged": unchanged,
    "split": split,
    "merged": merged,
    "grown": grown,
    "shrunk": shrunk,
    "window": window,
    "nudged": nudged,
    "recut": recut,
}
