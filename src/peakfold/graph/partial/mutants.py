"""Mutants: programs of the same inputs and the same output shape, equal to the original in part."""

from collections.abc import Iterator
from itertools import permutations

import numpy as np

from peakfold.graph.partial.program import IllegalProgram, Program, apply, drawn, evaluate

DEPTH = 4


def mutants(original: Program, depth: int = DEPTH, limit: int = 2000) -> Iterator[Program]:
    """Yield programs of the original's shape, by number of operators; no two compute the same.

    The operators are those of the original, with the attributes that it uses, and those that only move
    numbers. Programs that give the same numbers as one before are not gone on from.

    Args:
        original: a convolution, a product or a sum of inputs.
        depth: most operators of a mutant.
        limit: most programs that are kept to go on from.
    """
    values = drawn((original,), 0)
    levels: list[list[Program]] = [list(original.inputs)]
    seen = {_print(one, values) for one in original.inputs}
    same = {_print(original, values)}
    for _ in range(depth):
        level: list[Program] = []
        for made in _grown(original, levels, limit):
            mark = _print(made, values)
            if made.shape == original.shape and made != original and mark not in same | seen:
                yield made
            if mark not in seen and len(level) < limit:
                level.append(made)
            seen.add(mark)
        levels.append(level)


def _print(program: Program, values: dict[Program, np.ndarray[tuple[int, ...], np.dtype[np.int64]]]) -> bytes:
    found = evaluate(program, values)
    return repr(found.shape).encode() + found.tobytes()


def _grown(original: Program, levels: list[list[Program]], limit: int) -> Iterator[Program]:
    """Yield operators on what the last level made, with anything before it beside."""
    everything = [one for level in levels for one in level]
    for one in levels[-1]:
        yield from moved(one)
        for other in everything:
            for pair in ((one, other), (other, one)):
                made = joined_by(original, *pair)
                if made is not None:
                    yield made


def moved(one: Program) -> Iterator[Program]:
    """Yield the operators that only move the numbers of a program."""
    rank = len(one.shape)
    if rank == 2:
        yield apply("transpose", one, order=(1, 0))
        return
    yield apply("transpose", one, order=(0, 1, 3, 2))
    for axis in (2, 3):
        if one.shape[0] > 1:
            yield apply("fold", one, axis=axis)
        elif one.op != "fold":
            yield from _legal("unfold", one, axis=axis, parts=2)
    yield from _legal("to_batch", one, by=2)
    yield from _legal("to_space", one, by=2)


def _legal(op: str, *args: Program, **attrs: int | tuple[int, ...]) -> Iterator[Program]:
    try:
        yield apply(op, *args, **attrs)
    except IllegalProgram:
        return


def joined_by(original: Program, a: Program, b: Program) -> Program | None:
    """Return the original's operator on two other programs; None where it does not take them."""
    try:
        return apply(original.op, a, b, **dict(original.attrs))  # type: ignore[arg-type]
    except (IllegalProgram, IndexError):
        return None


def random_pair(generator: np.random.Generator) -> tuple[Program, Program]:
    """Return a random original and a random mutant of it, which differs in part, nowhere or everywhere."""
    n, c, o = (int(generator.integers(1, 4)) for _ in range(3))
    h, w = (int(generator.integers(4, 9)) for _ in range(2))
    k = int(generator.choice([1, 2, 3]))
    x, kernel = (
        Program("input", (), (("name", "x"), ("shape", (n, c, h, w)))),
        Program("input", (), (("name", "w"), ("shape", (o, c, k, k)))),
    )
    how = {
        "pad": tuple(int(each) for each in generator.integers(0, 3, 4)),
        "stride": tuple(int(each) for each in generator.integers(1, 3, 2)),
        "dilation": tuple(int(each) for each in generator.integers(1, 3, 2)),
    }
    original = joined_by(Program("conv", (), tuple(sorted(how.items()))), x, kernel)
    found = None if original is None else _random_mutant(original, generator)
    return random_pair(generator) if found is None or original is None else (original, found)


def _random_mutant(original: Program, generator: np.random.Generator) -> Program | None:
    """Return the original's operator between chains of moves, with attributes that may be others."""
    x, w = original.args
    attrs = dict(original.attrs)
    for name in ("pad", "stride", "dilation"):
        if generator.random() < 0.3:
            values = original.numbers(name)
            orders = sorted(set(permutations(values)))
            attrs[name] = orders[int(generator.integers(len(orders)))]
    before, after = _random_moves(generator)
    made: Program | None = x
    for move in before:
        made = _step(made, move)
    kernel = apply("transpose", w, order=(0, 1, 3, 2)) if generator.random() < 0.3 else w
    if made is None:
        return None
    result = joined_by(Program("conv", (), tuple(sorted(attrs.items()))), made, kernel)
    for move in after:
        result = _step(result, move, x.shape[0])
    return result if result is not None and result.shape == original.shape else None


def _random_moves(generator: np.random.Generator) -> tuple[list[str], list[str]]:
    pairs = (("fold2", "unfold2"), ("fold3", "unfold3"), ("turn", "turn"), ("batch", "space"))
    picked = [pairs[int(i)] for i in generator.integers(0, len(pairs), int(generator.integers(0, 3)))]
    return [a for a, _ in picked], [b for _, b in reversed(picked)]


def _step(one: Program | None, move: str, images: int = 1) -> Program | None:
    if one is None:
        return None
    try:
        if move.startswith("fold"):
            return apply("fold", one, axis=int(move[-1]))
        if move.startswith("unfold"):
            return apply("unfold", one, axis=int(move[-1]), parts=images)
        if move == "turn":
            return apply("transpose", one, order=(0, 1, 3, 2))
        return apply("to_batch" if move == "batch" else "to_space", one, by=2)
    except IllegalProgram:
        return None
