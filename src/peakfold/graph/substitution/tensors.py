"""The enumerator's operators on tensors, compiled by numba; `kernel` has those on elements."""

from typing import TYPE_CHECKING

import numpy as np

from peakfold.graph.substitution.kernel import (
    ADD,
    CONCAT,
    CONV,
    CONV_RELU,
    DIV,
    EXP,
    EXPAND,
    GATHER,
    MATMUL,
    MAX,
    MAXIMUM,
    MAXPOOL,
    MEAN,
    MOST,
    MUL,
    PAD,
    RECIPROCAL,
    SCALE,
    SHARES,
    SLICE,
    SOFTMAX,
    SPLIT,
    SUM,
    TRANSPOSE,
    P,
    Q,
    compiled,
    divided,
    elementwise,
    inverted,
    pointwise,
)

if TYPE_CHECKING:
    from peakfold.graph.substitution.kernel import Floats, Ints, Words


@compiled
def copied(a: "Words", x: "Floats", m: int, o: "Words", z: "Floats", n: int) -> None:
    """Copy an element."""
    o[n, 0], o[n, 1], z[n] = a[m, 0], a[m, 1], x[m]


@compiled
def added(
    a: "Words", x: "Floats", m: int, b: "Words", y: "Floats", k: int, o: "Words", z: "Floats", n: int
) -> None:
    """Add the product of two elements to an element."""
    o[n, 0] = (o[n, 0] + a[m, 0] * b[k, 0]) % np.uint64(P)
    o[n, 1] = (o[n, 1] + a[m, 1] * b[k, 1]) % np.uint64(Q)
    z[n] += x[m] * y[k]


@compiled
def product(
    s: "Ints", a: "Words", x: "Floats", t: "Ints", b: "Words", y: "Floats", r: "Ints", o: "Words", z: "Floats"
) -> bool:
    """Compute a batched matrix product."""
    if s[0] != t[0] or s[2] != t[1] or s[0] * s[1] * t[2] > MOST:
        return False
    r[0], r[1], r[2] = s[0], s[1], t[2]
    for i in range(r[0]):
        for j in range(r[1]):
            for k in range(r[2]):
                n = (i * r[1] + j) * r[2] + k
                o[n, 0], o[n, 1], z[n] = np.uint64(0), np.uint64(0), 0.0
                for c in range(s[2]):
                    added(a, x, (i * s[1] + j) * s[2] + c, b, y, (i * t[1] + c) * t[2] + k, o, z, n)
    return True


@compiled
def joined(
    axis: int,
    s: "Ints",
    a: "Words",
    x: "Floats",
    t: "Ints",
    b: "Words",
    y: "Floats",
    r: "Ints",
    o: "Words",
    z: "Floats",
) -> bool:
    """Join two tensors along an axis."""
    for other in range(3):
        if other != axis and s[other] != t[other]:
            return False
        r[other] = s[other]
    r[axis] = s[axis] + t[axis]
    if r[0] * r[1] * r[2] > MOST:
        return False
    place = np.zeros(3, np.int64)
    at = 0
    for i in range(r[0]):
        for j in range(r[1]):
            for k in range(r[2]):
                place[0], place[1], place[2] = i, j, k
                if place[axis] < s[axis]:
                    copied(a, x, (i * s[1] + j) * s[2] + k, o, z, at)
                else:
                    place[axis] -= s[axis]
                    copied(b, y, (place[0] * t[1] + place[1]) * t[2] + place[2], o, z, at)
                at += 1
    return True


@compiled
def convolved(
    stride: int,
    dilation: int,
    s: "Ints",
    a: "Words",
    x: "Floats",
    t: "Ints",
    b: "Words",
    y: "Floats",
    r: "Ints",
    o: "Words",
    z: "Floats",
) -> bool:
    """Compute a convolution along one axis, padded to the same size."""
    if s[1] % t[1] or t[2] % 2 == 0:
        return False
    groups = s[1] // t[1]
    if t[0] % groups:
        return False
    length = (s[2] - 1) // stride + 1
    r[0], r[1], r[2] = s[0], t[0], length
    if r[0] * r[1] * r[2] > MOST:
        return False
    each = t[0] // groups
    border = dilation * (t[2] - 1) // 2
    for i in range(r[0]):
        for j in range(r[1]):
            first = (j // each) * t[1]
            for k in range(length):
                n = (i * r[1] + j) * length + k
                o[n, 0], o[n, 1], z[n] = np.uint64(0), np.uint64(0), 0.0
                for c in range(t[1]):
                    for d in range(t[2]):
                        at = k * stride + d * dilation - border
                        if 0 <= at < s[2]:
                            added(
                                a,
                                x,
                                (i * s[1] + first + c) * s[2] + at,
                                b,
                                y,
                                (j * t[1] + c) * t[2] + d,
                                o,
                                z,
                                n,
                            )
    return True


@compiled
def reduced(
    op: int, axis: int, s: "Ints", a: "Words", x: "Floats", r: "Ints", o: "Words", z: "Floats"
) -> bool:
    """Reduce along an axis."""
    for other in range(3):
        r[other] = s[other]
    r[axis] = 1
    n = r[0] * r[1] * r[2]
    if n > MOST:
        return False
    z[:n] = -np.inf if op == MAX else 0.0
    o[:n] = np.uint64(0)
    m = 0
    for i in range(s[0]):
        for j in range(s[1]):
            for k in range(s[2]):
                at = ((i % r[0]) * r[1] + j % r[1]) * r[2] + k % r[2]
                if op == MAX:
                    if x[m] > z[at]:
                        copied(a, x, m, o, z, at)
                else:
                    o[at, 0] = (o[at, 0] + a[m, 0]) % np.uint64(P)
                    o[at, 1] = (o[at, 1] + a[m, 1]) % np.uint64(Q)
                    z[at] += x[m]
                m += 1
    if op == MEAN:
        share, share_q = SHARES[s[axis], 0], SHARES[s[axis], 1]
        for at in range(n):
            o[at, 0] = o[at, 0] * share % np.uint64(P)
            o[at, 1] = o[at, 1] * share_q % np.uint64(Q)
            z[at] /= s[axis]
    return True


@compiled
def softmax(axis: int, s: "Ints", a: "Words", x: "Floats", r: "Ints", o: "Words", z: "Floats") -> bool:
    """Compute a softmax along an axis."""
    n = s[0] * s[1] * s[2]
    powers, reals = np.empty((MOST, 2), np.uint64), np.empty(MOST)
    sums, totals, wide = np.empty((MOST, 2), np.uint64), np.empty(MOST), np.empty(3, np.int64)
    for m in range(n):
        pointwise(EXP, a[m], x[m : m + 1], a[m], x[m : m + 1], powers[m], reals[m : m + 1])
    reduced(SUM, axis, s, powers, reals, wide, sums, totals)
    return divided(s, powers, reals, wide, sums, totals, r, o, z)


@compiled
def cut(
    axis: int, start: int, size: int, s: "Ints", a: "Words", x: "Floats", r: "Ints", o: "Words", z: "Floats"
) -> bool:
    """Copy a part along an axis; zeros where it lies outside."""
    if size < 1:
        return False
    for other in range(3):
        r[other] = s[other]
    r[axis] = size
    if r[0] * r[1] * r[2] > MOST:
        return False
    place = np.zeros(3, np.int64)
    at = 0
    for i in range(r[0]):
        for j in range(r[1]):
            for k in range(r[2]):
                place[0], place[1], place[2] = i, j, k
                place[axis] += start
                if 0 <= place[axis] < s[axis]:
                    copied(a, x, (place[0] * s[1] + place[1]) * s[2] + place[2], o, z, at)
                else:
                    o[at, 0], o[at, 1], z[at] = np.uint64(0), np.uint64(0), 0.0
                at += 1
    return True


@compiled
def gathered(
    axis: int, index: "Ints", s: "Ints", a: "Words", x: "Floats", r: "Ints", o: "Words", z: "Floats"
) -> bool:
    """Copy the places that an index names along an axis."""
    for other in range(3):
        r[other] = s[other]
    r[axis] = len(index)
    if r[0] * r[1] * r[2] > MOST or index.max() >= s[axis]:
        return False
    place = np.zeros(3, np.int64)
    at = 0
    for i in range(r[0]):
        for j in range(r[1]):
            for k in range(r[2]):
                place[0], place[1], place[2] = i, j, k
                place[axis] = index[place[axis]]
                copied(a, x, (place[0] * s[1] + place[1]) * s[2] + place[2], o, z, at)
                at += 1
    return True


@compiled
def pooled(
    op: int, kernel: int, stride: int, s: "Ints", a: "Words", x: "Floats", r: "Ints", o: "Words", z: "Floats"
) -> bool:
    """Pool along the last axis, padded to the same size."""
    length = (s[2] - 1) // stride + 1
    r[0], r[1], r[2] = s[0], s[1], length
    share, share_q = SHARES[kernel, 0], SHARES[kernel, 1]
    for row in range(s[0] * s[1]):
        for k in range(length):
            n = row * length + k
            o[n, 0], o[n, 1], z[n] = np.uint64(0), np.uint64(0), -np.inf if op == MAXPOOL else 0.0
            for d in range(kernel):
                at = k * stride + d - (kernel - 1) // 2
                if not 0 <= at < s[2]:
                    continue
                m = row * s[2] + at
                if op == MAXPOOL:
                    if x[m] > z[n]:
                        copied(a, x, m, o, z, n)
                else:
                    o[n, 0] = (o[n, 0] + a[m, 0] * share) % np.uint64(P)
                    o[n, 1] = (o[n, 1] + a[m, 1] * share_q) % np.uint64(Q)
                    z[n] += x[m] / kernel
    return True


@compiled
def rectified(o: "Words", z: "Floats", n: int) -> None:
    """Replace negative elements by 0."""
    for at in range(n):
        if z[at] <= 0:
            o[at, 0], o[at, 1], z[at] = np.uint64(0), np.uint64(0), 0.0


@compiled
def applied(
    op: int,
    first: int,
    second: int,
    spatial: bool,
    constant: "Words",
    real: "Floats",
    index: "Ints",
    parts: "Ints",
    s: "Ints",
    a: "Words",
    x: "Floats",
    t: "Ints",
    b: "Words",
    y: "Floats",
    r: "Ints",
    o: "Words",
    z: "Floats",
) -> bool:
    """Compute an operator in one world.

    ``first`` is the operator's axis, or its stride or kernel; ``second`` its dilation or stride, the part
    that is dropped or added, or the output; ``spatial`` whether tensors have three axes in this world, else
    two; ``constant`` and ``real`` are the symbolic constant; ``index`` is what is gathered; ``parts`` are
    the shapes that a split goes by; s, a, x are shape, residues and reals of the first operand, t, b, y of
    the second, r, o, z of the result.

    Returns:
        Whether the operands are legal and the result is defined.
    """
    axis = first if spatial else first + 1
    if op == DIV:
        return divided(s, a, x, t, b, y, r, o, z)
    if op == RECIPROCAL:
        r[0], r[1], r[2] = s[0], s[1], s[2]
        return inverted(s[0] * s[1] * s[2], a, x, o, z)
    if op <= MAXIMUM:
        return elementwise(op, s, a, x, t, b, y, r, o, z)
    if op == EXPAND:
        for other in range(3):
            if s[other] != t[other] and s[other] != 1:
                return False
        ok = elementwise(ADD, s, a, x, t, b, y, r, o, z)
        at = 0
        for i in range(r[0]):
            for j in range(r[1]):
                for k in range(r[2]):
                    copied(a, x, ((i % s[0]) * s[1] + j % s[1]) * s[2] + k % s[2], o, z, at)
                    at += 1
        return ok
    if op == MATMUL:
        return product(s, a, x, t, b, y, r, o, z)
    if op == CONCAT:
        return joined(axis, s, a, x, t, b, y, r, o, z)
    if op in (CONV, CONV_RELU):
        ok = spatial and convolved(first, second, s, a, x, t, b, y, r, o, z)
        if ok and op == CONV_RELU:
            rectified(o, z, r[0] * r[1] * r[2])
        return ok
    if op == SCALE:
        one = np.ones(3, np.int64)
        return elementwise(MUL, s, a, x, one, constant, real, r, o, z)
    if op <= SCALE:
        return elementwise(op, s, a, x, s, a, x, r, o, z)
    if op == TRANSPOSE:
        r[0], r[1], r[2] = s[0], s[2], s[1]
        for i in range(s[0]):
            for j in range(s[1]):
                for k in range(s[2]):
                    copied(a, x, (i * s[1] + j) * s[2] + k, o, z, (i * s[2] + k) * s[1] + j)
        return True
    if op <= MAX:
        return reduced(op, axis, s, a, x, r, o, z)
    if op == SOFTMAX:
        return softmax(axis, s, a, x, r, o, z)
    if op == SLICE:
        return cut(axis, second, s[axis] - second, s, a, x, r, o, z)
    if op == PAD:
        return cut(axis, -second, s[axis] + second, s, a, x, r, o, z)
    if op == GATHER:
        return gathered(axis, index, s, a, x, r, o, z)
    if op == SPLIT:
        one, two = parts[0, axis], parts[1, axis]
        if s[axis] != one + two:
            return False
        return cut(axis, one if second else 0, two if second else one, s, a, x, r, o, z)
    return spatial and pooled(op, first, second, s, a, x, r, o, z)
