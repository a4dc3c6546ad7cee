"""The enumerator's exact arithmetic, compiled by numba: elements and elementwise operators.

A *world* is a shape and a value for each of three inputs; worlds come in groups of six, one for each order
in which the inputs stand for the tensors of a base. A tensor has three axes, the first of size 1 for
matrices. Elements are kept modulo a prime p, modulo a prime q with p = 2 q + 1 (exponents), and as a float
that decides comparisons, as in `field`, which is the tests' oracle.
"""

from typing import TYPE_CHECKING, TypeVar

import numba
import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy.typing as npt

    Ints = npt.NDArray[np.integer]
    Words = npt.NDArray[np.unsignedinteger]
    Floats = npt.NDArray[np.floating]
    Word = np.uint64 | int

P = 2147483579
Q = 1073741789
G = 4
MOST = 48
"""Elements of a tensor at most."""

(ADD, SUB, MUL, DIV, MAXIMUM, EXPAND, MATMUL, CONCAT, CONV, CONV_RELU) = range(10)
(NEG, RELU, EXP, LOG, RECIPROCAL, SCALE, TRANSPOSE, SUM, MEAN, MAX, SOFTMAX) = range(10, 21)
(SLICE, PAD, GATHER, AVGPOOL, MAXPOOL, SPLIT) = range(21, 27)

_P, _Q = np.uint64(P), np.uint64(Q)


def _steps(step: int) -> "Words":
    found, at = np.ones(1024, np.uint64), 1
    base = pow(G, step, P)
    for exponent in range(1, 1024):
        at = at * base % P
        found[exponent] = at
    return found


SHARES = np.array([[pow(max(n, 1), -1, P), pow(max(n, 1), -1, Q)] for n in range(MOST + 1)], np.uint64)
"""1 / n modulo P and Q."""
_ONES, _THOUSANDS, _MILLIONS = _steps(1), _steps(1 << 10), _steps(1 << 20)

F = TypeVar("F", bound="Callable[..., object]")


def compiled(function: F) -> F:
    """Compile a function with numba at its first call; the machine code is kept on disk."""
    return numba.njit(cache=True, nogil=True, error_model="numpy")(function)  # type: ignore[no-any-return]


@compiled
def powered(base: "Word", exponent: "Word") -> np.uint64:
    """Return a power modulo P."""
    result = np.uint64(1)
    b = np.uint64(base)
    e = np.uint64(exponent)
    while e > np.uint64(0):
        if e & np.uint64(1):
            result = result * b % np.uint64(P)
        b = b * b % np.uint64(P)
        e >>= np.uint64(1)
    return result


@compiled
def mixed(word: "Word") -> np.uint64:
    """Return a fixed random function of a word (splitmix64)."""
    z = np.uint64(word) + np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


@compiled
def pointwise(op: int, a: "Words", x: "Floats", b: "Words", y: "Floats", o: "Words", z: "Floats") -> bool:
    """Compute one element of an elementwise operator; a, b, o hold residues modulo P and Q.

    Returns:
        Whether it is defined.
    """
    p, q = np.uint64(P), np.uint64(Q)
    if op == ADD:
        o[0], o[1], z[0] = (a[0] + b[0]) % p, (a[1] + b[1]) % q, x[0] + y[0]
    elif op == SUB:
        o[0], o[1], z[0] = (a[0] + p - b[0]) % p, (a[1] + q - b[1]) % q, x[0] - y[0]
    elif op in (MUL, SCALE):
        o[0], o[1], z[0] = a[0] * b[0] % p, a[1] * b[1] % q, x[0] * y[0]
    elif op == MAXIMUM:
        if x[0] >= y[0]:
            o[0], o[1], z[0] = a[0], a[1], x[0]
        else:
            o[0], o[1], z[0] = b[0], b[1], y[0]
    elif op == NEG:
        o[0], o[1], z[0] = (p - a[0]) % p, (q - a[1]) % q, -x[0]
    elif op == RELU:
        if x[0] > 0:
            o[0], o[1], z[0] = a[0], a[1], x[0]
        else:
            o[0], o[1], z[0] = np.uint64(0), np.uint64(0), 0.0
    elif op == EXP:
        u = a[1]
        low, middle = _ONES[u & np.uint64(1023)], _THOUSANDS[(u >> np.uint64(10)) & np.uint64(1023)]
        o[0] = low * middle % p * _MILLIONS[u >> np.uint64(20)] % p
        o[1] = mixed(o[0]) % q
        z[0] = np.exp(min(max(x[0], -300.0), 300.0))
    elif op == LOG:
        o[0] = mixed(a[0] + np.uint64(7 << 40)) % p
        o[1] = mixed(o[0]) % q
        z[0] = np.log(abs(x[0]) + 1e-30)
    return True


@compiled
def inverted(n: int, b: "Words", y: "Floats", o: "Words", z: "Floats") -> bool:
    """Invert elements, all with one power; as exponents the inverses are random functions."""
    total = np.uint64(1)
    for at in range(n):
        o[at, 0] = total
        total = total * b[at, 0] % _P
    if total == np.uint64(0):
        return False
    total = powered(total, P - 2)
    for at in range(n - 1, -1, -1):
        o[at, 0] = o[at, 0] * total % _P
        total = total * b[at, 0] % _P
        o[at, 1] = mixed(o[at, 0] + np.uint64(9 << 40)) % _Q
        z[at] = 1.0 / y[at]
    return True


@compiled
def divided(
    s: "Ints", a: "Words", x: "Floats", t: "Ints", b: "Words", y: "Floats", r: "Ints", o: "Words", z: "Floats"
) -> bool:
    """Compute a quotient of stretched operands."""
    inverses, reals = np.empty((MOST, 2), np.uint64), np.empty(MOST)
    if not inverted(t[0] * t[1] * t[2], b, y, inverses, reals):
        return False
    return elementwise(MUL, s, a, x, t, inverses, reals, r, o, z)


@compiled
def elementwise(
    op: int,
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
    """Compute an elementwise operator of stretched operands."""
    for axis in range(3):
        if s[axis] != t[axis] and s[axis] != 1 and t[axis] != 1:
            return False
        r[axis] = max(s[axis], t[axis])
    if r[0] * r[1] * r[2] > MOST:
        return False
    at = 0
    for i in range(r[0]):
        for j in range(r[1]):
            for k in range(r[2]):
                m = ((i % s[0]) * s[1] + j % s[1]) * s[2] + k % s[2]
                n = ((i % t[0]) * t[1] + j % t[1]) * t[2] + k % t[2]
                if not pointwise(op, a[m], x[m : m + 1], b[n], y[n : n + 1], o[at], z[at : at + 1]):
                    return False
                at += 1
    return True
