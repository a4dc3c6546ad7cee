"""Problems without slack that have a solution: a rectangle of time and bytes, cut into buffers."""

import random

from peakfold.plan.memory import Buffer, Problem


def cut(count, seed, *, steps=None, nbytes=1 << 20, unit=512):
    """Cut a rectangle in two, again and again, in time or in bytes."""
    rng = random.Random(seed)
    parts = [(0, steps or 2 * count, 0, nbytes // unit)]
    while len(parts) < count:
        some = rng.sample(range(len(parts)), min(3, len(parts)))
        at = max(some, key=lambda i: (parts[i][1] - parts[i][0]) * (parts[i][3] - parts[i][2]))
        first, last, low, high = parts[at]
        if rng.random() < 0.5:
            if last - first > 1:
                middle = rng.randrange(first + 1, last)
                parts[at : at + 1] = [(first, middle, low, high), (middle, last, low, high)]
        elif high - low > 1:
            middle = rng.randrange(low + 1, high)
            parts[at : at + 1] = [(first, last, low, middle), (first, last, middle, high)]
    rng.shuffle(parts)
    return Problem(tuple(Buffer(str(i), a, b, (d - c) * unit) for i, (a, b, c, d) in enumerate(parts)))


def backward(problem):
    """The same problem with time turned round."""
    return Problem(tuple(Buffer(b.id, -b.upper, -b.lower, b.size, b.alignment) for b in problem.buffers))
