"""Boxes: regions of the output in which a program is one formula, and the test whether two agree there.

Each operator turns the split points of its operands into those of its result. Between split points the sum's
range is one interval and every index is an affine function of the position, as theorems 1 and 2 of the paper
ask for: two programs that agree at m + 1 positions of a box, for all inputs, agree in all of it (m the number
of dimensions), and programs that differ at a position agree there, on random elements of a field of p, with a
probability of at most n / p (n the degree).
"""

from collections.abc import Callable, Iterator, Mapping
from itertools import pairwise, product
from math import ceil

import numpy as np

from peakfold.graph.partial.program import Array, Program, drawn, evaluate

TESTS = 4

Splits = tuple[frozenset[int], ...]
Box = tuple[tuple[int, int], ...]


def splits(program: Program) -> Splits:
    """Return the positions, for each dimension, at which the formula may become another one.

    Example:
        >>> from peakfold.graph.partial.program import apply, given
        >>> x, w = given("x", 1, 1, 8, 8), given("w", 1, 1, 3, 3)
        >>> conv = apply("conv", x, w, pad=(1, 1, 1, 1), stride=(1, 1), dilation=(1, 1))
        >>> [sorted(each) for each in splits(conv)[2:]]
        [[0, 1, 7, 8], [0, 1, 7, 8]]
    """
    memo: dict[Program, Splits] = {}
    stack = [program]
    while stack:
        one = stack[-1]
        missing = [arg for arg in one.args if arg not in memo]
        stack.extend(missing)
        if not missing:
            stack.pop()
            found = _RULES.get(one.op, _ends)(one, *(memo[arg] for arg in one.args))
            memo[one] = tuple(
                frozenset({0, n} | {at for at in each if 0 < at < n})
                for each, n in zip(found, one.shape, strict=True)
            )
    return memo[program]


def _ends(term: Program, *args: Splits) -> list[set[int]]:
    return [{0, n} for n in term.shape]


def _conv(term: Program, x: Splits, w: Splits) -> list[set[int]]:
    pad, stride, dilation = (term.numbers(name) for name in ("pad", "stride", "dilation"))
    kernel = term.args[1].shape[2:]
    found: list[set[int]] = [set(x[0]), set(w[0])]
    for i in (0, 1):
        reads = product(x[2 + i], range(kernel[i]))
        found.append({ceil((at + pad[2 * i] - tap * dilation[i]) / stride[i]) for at, tap in reads})
    return found


def _matmul(term: Program, a: Splits, b: Splits) -> list[set[int]]:
    return [set(a[0]), set(b[1])]


def _both(term: Program, a: Splits, b: Splits) -> list[set[int]]:
    return [set(left | right) for left, right in zip(a, b, strict=True)]


def _transpose(term: Program, x: Splits) -> list[set[int]]:
    return [set(x[i]) for i in term.numbers("order")]


def _fold(term: Program, x: Splits) -> list[set[int]]:
    axis, shape = term.number("axis"), term.args[0].shape
    found = [set(each) for each in x]
    found[axis] = {image * shape[axis] + at for image in range(shape[0]) for at in x[axis]}
    found[0] = {0, 1}
    return found


def _unfold(term: Program, x: Splits) -> list[set[int]]:
    axis, length = term.number("axis"), term.shape[term.number("axis")]
    found = [set(each) for each in x]
    found[axis] = {at % length for at in x[axis]}
    found[0] = set(range(term.shape[0] + 1))
    return found


def _to_batch(term: Program, x: Splits) -> list[set[int]]:
    by = term.number("by")
    return [
        set(range(term.shape[0] + 1)),
        set(x[1]),
        *({-(-(at - i) // by) for at in x[axis] for i in range(by)} for axis in (2, 3)),
    ]


def _to_space(term: Program, x: Splits) -> list[set[int]]:
    """Return splits at every position: neighbours lie in different images."""
    return [set(range(term.shape[0] + 1)), set(x[1]), *(set(range(n + 1)) for n in term.shape[2:])]


def _slice(term: Program, x: Splits) -> list[set[int]]:
    found = [set(each) for each in x]
    start, step, axis = term.number("start"), term.number("step"), term.number("axis")
    found[axis] = {-(-(at - start) // step) for at in x[axis]}
    return found


def _pad(term: Program, x: Splits) -> list[set[int]]:
    found = [set(each) for each in x]
    axis, low = term.number("axis"), term.number("low")
    found[axis] = {at + low for at in x[axis]}
    return found


def _concat(term: Program, *parts: Splits) -> list[set[int]]:
    axis = term.number("axis")
    found = [set().union(*each) for each in zip(*parts, strict=True)]
    start, joined = 0, set()
    for part, arg in zip(parts, term.args, strict=True):
        joined |= {start + at for at in part[axis]}
        start += arg.shape[axis]
    found[axis] = joined
    return found


_RULES: Mapping[str, Callable[..., list[set[int]]]] = {
    "conv": _conv,
    "matmul": _matmul,
    "add": _both,
    "transpose": _transpose,
    "fold": _fold,
    "unfold": _unfold,
    "to_batch": _to_batch,
    "to_space": _to_space,
    "slice": _slice,
    "pad": _pad,
    "concat": _concat,
}


def boxes(one: Program, other: Program) -> Iterator[Box]:
    """Yield the boxes in which each of two programs is one formula."""
    both = (sorted(a | b) for a, b in zip(splits(one), splits(other), strict=True))
    yield from product(*(list(pairwise(each)) for each in both))


def failing(original: Program, mutant: Program, seed: int = 0, tests: int = TESTS) -> list[Box]:
    """Return the boxes in which a mutant differs from the original.

    Each box is tested at m + 1 positions; where all agree on ``tests`` draws of the inputs, the chance that
    the programs differ is at most (degree / 2^31)^tests.

    Example:
        >>> from peakfold.graph.partial.program import apply, given
        >>> x, w = given("x", 2, 1, 4, 4), given("w", 1, 1, 3, 3)
        >>> how = dict(pad=(1, 1, 1, 1), stride=(1, 1), dilation=(1, 1))
        >>> wide = apply("unfold", apply("conv", apply("fold", x, axis=3), w, **how), axis=3, parts=2)
        >>> [box[3] for box in failing(apply("conv", x, w, **how), wide) if box[2] == (0, 1)]
        [(3, 4), (0, 1)]
    """
    differ = _differences(original, mutant, seed, tests)
    return [box for box in boxes(original, mutant) if any(differ[place] for place in positions(box))]


def _differences(original: Program, mutant: Program, seed: int, tests: int) -> Array:
    differ = np.zeros(original.shape, np.int64)
    for test in range(tests):
        values = drawn((original, mutant), seed + test)
        differ |= evaluate(original, values) != evaluate(mutant, values)
    return differ


def positions(box: Box) -> Iterator[tuple[int, ...]]:
    """Yield the m + 1 positions at which a box is tested: its corner, one further along each dimension."""
    corner = tuple(low for low, _ in box)
    yield corner
    for i, (low, high) in enumerate(box):
        if high - low > 1:
            yield (*corner[:i], low + 1, *corner[i + 1 :])
