"""Exact numbers: arrays of field elements that know their exponent and their place on the real line.

A number is kept three times: modulo a prime p, modulo a prime q that divides p - 1, and as a float. Sums,
products and quotients are exact in both fields. ``exp`` is g to the number modulo q, modulo p, for a g
of order q, so that exp(a + b) = exp(a) exp(b) holds exactly, once on each path; what is exponentiated
twice is a fixed random function of the field element. Comparisons read the float, which decides only which
of two exact elements is taken: where the floats are equal up to rounding the elements are too.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

Words = npt.NDArray[np.uint64]
Floats = npt.NDArray[np.float64]

M61: Final = 2**61 - 1
_ONE, _30, _31 = np.uint64(1), np.uint64(30), np.uint64(31)
_MASK30, _MASK31, _MASK61 = np.uint64(2**30 - 1), np.uint64(2**31 - 1), np.uint64(M61)
_61 = np.uint64(61)


class Undefined(Exception):
    """A quotient by zero."""


@dataclass(frozen=True, slots=True)
class Field:
    """A prime p, and a prime q that divides p - 1 where exponentials are exact.

    Attributes:
        p: the modulus of values.
        q: the modulus of exponents.
        g: of order q modulo p.
    """

    p: int
    q: int
    g: int


MERSENNE_61 = Field(M61, 2**31 - 1, 1)
MERSENNE_31 = Field(2**31 - 1, 2**31 - 1, 1)
# p = 2 q + 1, both prime; any square has order q
PAIRS: Final = (
    Field(2147483579, 1073741789, 4),
    Field(2147483123, 1073741561, 9),
    Field(2147482763, 1073741381, 25),
)


@dataclass(frozen=True, slots=True)
class Number:
    """An array of exact numbers.

    Attributes:
        v: modulo p.
        u: modulo q.
        f: on the real line.
    """

    v: Words
    u: Words
    f: Floats

    @property
    def shape(self) -> tuple[int, ...]:
        """Sizes of the axes."""
        return self.v.shape

    def take(self, key: object) -> "Number":
        """Return the elements at a numpy index."""
        return Number(self.v[key], self.u[key], self.f[key])  # type: ignore[call-overload]


def product(a: Words, b: Words, p: int) -> Words:
    """Return products modulo p, which is below 2**32 or 2**61 - 1.

    Example:
        >>> int(product(_word(M61 - 1), _word(M61 - 1), M61)[0])
        1
    """
    if p != M61:
        return a * b % np.uint64(p)
    au, ad, bu, bd = a >> _31, a & _MASK31, b >> _31, b & _MASK31
    middle = ad * bu + au * bd
    total = (au * bu << _ONE) + (middle >> _30) + ((middle & _MASK30) << _31) + ad * bd
    total = (total >> _61) + (total & _MASK61)
    return np.asarray(np.where(total >= _MASK61, total - _MASK61, total), np.uint64)


def _word(value: int) -> Words:
    return np.array([value], np.uint64)


def power(base: Words, exponent: Words, p: int) -> Words:
    """Return powers modulo p, elementwise.

    Example:
        >>> power(_word(3), _word(4), 7)
        array([4], dtype=uint64)
    """
    bases, exponents = np.broadcast_arrays(base, exponent)
    pairs = zip(bases.ravel().tolist(), exponents.ravel().tolist(), strict=True)
    return np.array([pow(b, e, p) for b, e in pairs], np.uint64).reshape(bases.shape)


def scramble(v: Words, seed: int) -> Words:
    """Return a fixed random function of the words (splitmix64)."""
    with np.errstate(over="ignore"):
        z = v + np.uint64(0x9E3779B97F4A7C15 * (seed + 1) % 2**64)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return np.asarray(z ^ (z >> _31), np.uint64)


@dataclass(frozen=True)
class Arithmetic:
    """Operations on numbers over one field."""

    field: Field

    def rational(self, numerators: npt.NDArray[np.int64], denominator: int) -> Number:
        """Return whole numbers over one denominator."""
        p, q = self.field.p, self.field.q
        flat = [int(n) for n in numerators.ravel()]
        in_p, in_q = pow(denominator, -1, p), pow(denominator, -1, q)
        v = np.array([n * in_p % p for n in flat], np.uint64)
        u = np.array([n * in_q % q for n in flat], np.uint64)
        shape = numerators.shape
        return Number(v.reshape(shape), u.reshape(shape), numerators / denominator)

    def constant(self, value: int, like: Number) -> Number:
        """Return an array of one whole number."""
        return self.rational(np.full(like.shape, value, np.int64), 1)

    def add(self, a: Number, b: Number) -> Number:
        """Return sums, stretched to one shape."""
        p, q = np.uint64(self.field.p), np.uint64(self.field.q)
        return Number((a.v + b.v) % p, (a.u + b.u) % q, a.f + b.f)

    def neg(self, a: Number) -> Number:
        """Return negatives."""
        p, q = np.uint64(self.field.p), np.uint64(self.field.q)
        return Number((p - a.v) % p, (q - a.u) % q, -a.f)

    def mul(self, a: Number, b: Number) -> Number:
        """Return products, stretched to one shape."""
        p, q = self.field.p, self.field.q
        return Number(product(a.v, b.v, p), product(a.u, b.u, q), a.f * b.f)

    def reciprocal(self, a: Number) -> Number:
        """Return reciprocals.

        Raises:
            Undefined: of zero.
        """
        if (a.v == 0).any():
            raise Undefined
        p, q = self.field.p, self.field.q
        with np.errstate(divide="ignore"):
            return Number(power(a.v, _word(p - 2), p), power(a.u, _word(q - 2), q), 1 / a.f)

    def exp(self, a: Number) -> Number:
        """Return exponentials; what they are as exponents is random."""
        v = power(_word(self.field.g), a.u, self.field.p)
        return Number(v, scramble(v, 1) % np.uint64(self.field.q), np.exp(np.clip(a.f, -300, 300)))

    def function(self, a: Number, seed: int, f: Floats) -> Number:
        """Return a fixed random function of the elements, with the floats that are given."""
        p, q = np.uint64(self.field.p), np.uint64(self.field.q)
        return Number(scramble(a.v, seed) % p, scramble(a.v, seed + 1) % q, f)

    def larger(self, a: Number, b: Number) -> Number:
        """Return the larger ones."""
        left, right = np.broadcast_arrays(a.f, b.f)
        first = left >= right
        return Number(np.where(first, a.v, b.v), np.where(first, a.u, b.u), np.where(first, left, right))

    def sum(self, a: Number, axis: int) -> Number:
        """Return sums along an axis, which stays with size 1."""
        total = a.take(_at(axis, slice(0, 1)))
        for k in range(1, a.shape[axis]):
            total = self.add(total, a.take(_at(axis, slice(k, k + 1))))
        return total


def _at(axis: int, part: slice) -> tuple[slice, ...]:
    return (*(slice(None),) * axis, part)
