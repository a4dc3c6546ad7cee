"""The checker of placements, written apart from the planners.

It walks through time, keeps the live buffers sorted by offset and compares each newcomer with its two
neighbours in the arena.
"""

from bisect import bisect_left, insort
from dataclasses import replace

from peakfold.errors import PlanError
from peakfold.plan.memory.problem import Buffer, Problem, as_int

AGAIN = "plan the problem again: peakfold plan PROBLEM.csv -o SOLUTION.csv"


def check_placement(solution: Problem, arena: int | None = None) -> int:
    """Check that a solution is one.

    Args:
        solution: buffers with offsets.
        arena: bytes that must hold all of them; by default as large as they need.

    Returns:
        The largest end of a buffer, in bytes.

    Raises:
        PlanError: a buffer has no offset, is not aligned or ends outside the arena, or two live buffers
            overlap; names them. The arena is no whole number.
    """
    limit = as_int(arena)
    if limit is None and arena is not None:
        raise _illegal("the arena is not a whole number", "", "bytes", repr(arena), "round it")
    for buffer in solution.buffers:
        _check_alone(buffer, limit)
    _check_overlaps(solution.buffers)
    return max(end(buffer) for buffer in solution.buffers)


def match(problem: Problem, solution: Problem) -> Problem:
    """The problem with the offsets of a solution, buffers matched by id.

    A solution need not say the alignments: those of the problem hold.

    Raises:
        PlanError: the solution is for another problem: an id, a lifetime or a size differs, or an alignment
            where the solution has some; names the first buffer that does.
    """
    aligned = any(buffer.alignment != 1 for buffer in solution.buffers)
    found = {buffer.id: buffer for buffer in solution.buffers}
    for buffer in problem.buffers:
        there = found.get(buffer.id)
        if there is None:
            raise _foreign(f"{buffer.named} of the problem", "an offset for this buffer", "none")
        if _facts(buffer, aligned) != _facts(there, aligned):
            where = f"{there.named} of the solution"
            raise _foreign(where, _facts(buffer, aligned), _facts(there, aligned))
    wanted = {buffer.id for buffer in problem.buffers}
    for buffer in solution.buffers:
        if buffer.id not in wanted:
            raise _foreign(f"{buffer.named} of the solution", "an id of the problem", buffer.id)
    placed = problem.placed([end(found[b.id]) - b.size for b in problem.buffers])
    return Problem(tuple(replace(b, row=found[b.id].row) for b in placed.buffers))


def end(buffer: Buffer) -> int:
    """One after the last byte of a placed buffer."""
    if buffer.offset is None:
        raise _illegal("a buffer has no place", buffer.named, "an offset", "none")
    return buffer.offset + buffer.size


def _facts(b: Buffer, aligned: bool) -> str:
    facts = f"lower {b.lower}, upper {b.upper}, size {b.size}"
    return f"{facts}, alignment {b.alignment}" if aligned else facts


def _check_alone(buffer: Buffer, arena: int | None) -> None:
    top = end(buffer)
    start = top - buffer.size
    if start < 0:
        raise _illegal("a buffer starts outside the arena", buffer.named, "0 or more", str(start))
    if start % buffer.alignment:
        expected = f"a multiple of {buffer.alignment}"
        raise _illegal("an offset is not aligned", buffer.named, expected, str(start))
    if arena is not None and top > arena:
        expected = f"an end within the arena of {arena} bytes"
        raise _illegal("a buffer ends outside the arena", buffer.named, expected, str(top))


def _check_overlaps(buffers: tuple[Buffer, ...]) -> None:
    starts = [(b.lower, 1, i) for i, b in enumerate(buffers)]
    ends = [(b.upper, 0, i) for i, b in enumerate(buffers)]
    live: list[tuple[int, int, int]] = []
    for _, born, i in sorted(starts + ends):
        top = end(buffers[i])
        span = (top - buffers[i].size, top, i)
        place = bisect_left(live, span)
        if not born:
            del live[place]
            continue
        for other in live[max(place - 1, 0) : place + 1]:
            if other[0] < span[1] and span[0] < other[1]:
                _overlap(buffers[other[2]], buffers[i])
        insort(live, span)


def _overlap(a: Buffer, b: Buffer) -> None:
    where = f"{a.named} and {b.named}, both live at {max(a.lower, b.lower)}"
    got = f"[{a.offset}, {end(a)}) and [{b.offset}, {end(b)})"
    raise _illegal("two live buffers overlap", where, "disjoint ranges of bytes", got)


def _foreign(where: str, expected: str, got: str) -> PlanError:
    hint = "give both of one problem: peakfold plan PROBLEM.csv -o SOLUTION.csv"
    return _illegal("the solution is for another problem", where, expected, got, hint)


def _illegal(what: str, where: str, expected: str, got: str, hint: str = AGAIN) -> PlanError:
    return PlanError(stage="check", what=what, where=where, expected=expected, got=got, hint=hint)
