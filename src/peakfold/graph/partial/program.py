"""Multi-linear programs: each output element is a sum of products of input elements.

Wang et al., "PET: Optimizing Tensor Programs with Partially Equivalent Transformations and Automated
Corrections" (OSDI 2021): ``P(I1..In)[v] = sum over r in R(v) of prod_j Ij[Lj(v, r)]``.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product

import numpy as np
import numpy.typing as npt

Shape = tuple[int, ...]
Array = npt.NDArray[np.int64]
Number = int | Shape

PRIME = 2**31 - 1
"""Arithmetic is in the field of so many elements."""


class IllegalProgram(Exception):
    """An operator does not take operands of these shapes."""


@dataclass(frozen=True)
class Program:
    """An operator on programs, or an input where ``op`` is ``"input"``.

    Attributes:
        op: a key of `OPERATORS`.
        args: its operands.
        attrs: its attributes.
    """

    op: str
    args: tuple["Program", ...] = ()
    attrs: tuple[tuple[str, Number | str], ...] = ()

    @cached_property
    def shape(self) -> Shape:
        """Shape of the result."""
        return OPERATORS[self.op].shape(self)

    def __hash__(self) -> int:
        return self._hash

    @cached_property
    def _hash(self) -> int:
        return hash((self.op, self.args, self.attrs))

    def number(self, name: str) -> int:
        """Return an attribute that is a whole number."""
        found = dict(self.attrs)[name]
        assert isinstance(found, int)
        return found

    def numbers(self, name: str) -> Shape:
        """Return an attribute that is a list of whole numbers."""
        found = dict(self.attrs)[name]
        assert isinstance(found, tuple)
        return found

    @property
    def inputs(self) -> tuple["Program", ...]:
        """The inputs that it reads, in order of first use."""
        found: dict[Program, None] = {}
        stack = [self]
        while stack:
            one = stack.pop()
            if one.op == "input":
                found[one] = None
            stack.extend(reversed(one.args))
        return tuple(found)

    @property
    def steps(self) -> int:
        """How many operators it applies, each once."""
        seen: set[Program] = set()
        stack = [self]
        while stack:
            one = stack.pop()
            if one not in seen and one.op != "input":
                seen.add(one)
                stack.extend(one.args)
        return len(seen)

    def __str__(self) -> str:
        if self.op == "input":
            return str(dict(self.attrs)["name"])
        attrs = ", ".join(f"{name}={value}" for name, value in self.attrs)
        return f"{self.op}{f'[{attrs}]' if attrs else ''}({', '.join(map(str, self.args))})"


def given(name: str, *shape: int) -> Program:
    """Return an input."""
    return Program("input", (), (("name", name), ("shape", shape)))


def apply(op: str, *args: Program, **attrs: Number) -> Program:
    """Return an operator on programs.

    Raises:
        IllegalProgram: it does not take them.

    Example:
        >>> x, w = given("x", 2, 3, 8, 8), given("w", 4, 3, 3, 3)
        >>> apply("conv", x, w, pad=(1, 1, 1, 1), stride=(1, 1), dilation=(1, 1)).shape
        (2, 4, 8, 8)
    """
    made = Program(op, args, tuple(sorted(attrs.items())))
    assert made.shape is not None
    return made


@dataclass(frozen=True)
class Operator:
    """What an operator is.

    Attributes:
        shape: of its result.
        compute: in the field, from the values of its operands.
        degree: how the degree of the result follows from those of the operands.
    """

    shape: Callable[[Program], Shape]
    compute: Callable[..., Array]
    degree: Callable[..., int] = max


def evaluate(program: Program, values: Mapping[Program, Array]) -> Array:
    """Return the result over the field.

    Args:
        program: what is computed.
        values: one an input.
    """
    memo: dict[Program, Array] = dict(values)
    stack = [program]
    while stack:
        one = stack[-1]
        missing = [arg for arg in one.args if arg not in memo]
        stack.extend(missing)
        if not missing:
            stack.pop()
            if one not in memo:
                memo[one] = OPERATORS[one.op].compute(one, *(memo[arg] for arg in one.args))
    return memo[program]


def degree(program: Program) -> int:
    """Return the total degree of a program in its inputs."""
    if program.op == "input":
        return 1
    return OPERATORS[program.op].degree(*(degree(arg) for arg in program.args))


# --- operators -------------------------------------------------------------------------------------


def _require(holds: bool, what: str) -> None:
    if not holds:
        raise IllegalProgram(what)


def _conv_shape(term: Program) -> Shape:
    x, w = (arg.shape for arg in term.args)
    _require(len(x) == len(w) == 4 and x[1] == w[1], f"a convolution of {x} by {w}")
    pad, stride, dilation = (term.numbers(name) for name in ("pad", "stride", "dilation"))
    spatial = tuple(
        (x[2 + i] + pad[2 * i] + pad[2 * i + 1] - dilation[i] * (w[2 + i] - 1) - 1) // stride[i] + 1
        for i in (0, 1)
    )
    _require(min(spatial) > 0, "a window larger than the image")
    return (x[0], w[0], *spatial)


def product_of(a: Array, b: Array) -> Array:
    """Return the matrix product over the field, batched over leading dimensions."""
    total = np.zeros((*np.broadcast_shapes(a.shape[:-2], b.shape[:-2]), a.shape[-2], b.shape[-1]), np.int64)
    for k in range(a.shape[-1]):
        total += a[..., :, k, None] * b[..., k, None, :] % PRIME
    return total % PRIME


def _conv(term: Program, x: Array, w: Array) -> Array:
    pad, stride, dilation = (term.numbers(name) for name in ("pad", "stride", "dilation"))
    wide = np.pad(x, ((0, 0), (0, 0), pad[:2], pad[2:]))
    rows, columns = term.shape[2:]
    total = np.zeros((x.shape[0], w.shape[0], rows * columns), np.int64)
    for i, j in product(range(w.shape[2]), range(w.shape[3])):
        top, start = i * dilation[0], j * dilation[1]
        window = wide[:, :, top : top + stride[0] * (rows - 1) + 1 : stride[0]]
        window = window[:, :, :, start : start + stride[1] * (columns - 1) + 1 : stride[1]]
        total += product_of(w[None, :, :, i, j], window.reshape(x.shape[0], x.shape[1], -1))
    return (total % PRIME).reshape(term.shape)


def _matmul_shape(term: Program) -> Shape:
    a, b = (arg.shape for arg in term.args)
    _require(len(a) == len(b) == 2 and a[1] == b[0], f"a product of {a} and {b}")
    return (a[0], b[1])


def _add_shape(term: Program) -> Shape:
    a, b = (arg.shape for arg in term.args)
    _require(a == b, f"a sum of {a} and {b}")
    return a


def _transpose_shape(term: Program) -> Shape:
    shape, order = term.args[0].shape, term.numbers("order")
    _require(sorted(order) == list(range(len(shape))), f"{order} of {shape}")
    return tuple(shape[i] for i in order)


def _fold_shape(term: Program) -> Shape:
    shape, axis = list(term.args[0].shape), term.number("axis")
    _require(0 < axis < len(shape), "an axis that is there")
    shape[axis] *= shape[0]
    shape[0] = 1
    return tuple(shape)


def _fold(term: Program, x: Array) -> Array:
    axis = term.number("axis")
    return np.moveaxis(x, 0, axis - 1).reshape(term.shape)


def _unfold_shape(term: Program) -> Shape:
    shape, axis, parts = list(term.args[0].shape), term.number("axis"), term.number("parts")
    _require(0 < axis < len(shape) and shape[0] == 1 and shape[axis] % parts == 0, f"{shape} in {parts}")
    shape[0] = parts
    shape[axis] //= parts
    return tuple(shape)


def _unfold(term: Program, x: Array) -> Array:
    axis, parts = term.number("axis"), term.number("parts")
    shape = (*x.shape[1:axis], parts, x.shape[axis] // parts, *x.shape[axis + 1 :])
    return np.moveaxis(x.reshape(shape), axis - 1, 0)


def _to_batch_shape(term: Program) -> Shape:
    (n, c, h, w), by = term.args[0].shape, term.number("by")
    _require(h % by == 0 and w % by == 0, f"{h} x {w} in steps of {by}")
    return (n * by * by, c, h // by, w // by)


def _to_batch(term: Program, x: Array) -> Array:
    (n, c, h, w), by = x.shape, term.number("by")
    cells = x.reshape(n, c, h // by, by, w // by, by)
    return cells.transpose(0, 3, 5, 1, 2, 4).reshape(term.shape)


def _to_space_shape(term: Program) -> Shape:
    (n, c, h, w), by = term.args[0].shape, term.number("by")
    _require(n % (by * by) == 0, f"{n} images for {by} x {by}")
    return (n // (by * by), c, h * by, w * by)


def _to_space(term: Program, x: Array) -> Array:
    (n, c, h, w), by = x.shape, term.number("by")
    cells = x.reshape(n // (by * by), by, by, c, h, w)
    return cells.transpose(0, 3, 4, 1, 5, 2).reshape(term.shape)


def _slice_shape(term: Program) -> Shape:
    shape, axis = list(term.args[0].shape), term.number("axis")
    start, stop, step = (term.number(name) for name in ("start", "stop", "step"))
    _require(0 <= start < stop <= shape[axis], f"{start} to {stop} of {shape[axis]}")
    shape[axis] = -(-(stop - start) // step)
    return tuple(shape)


def _slice(term: Program, x: Array) -> Array:
    cut = slice(term.number("start"), term.number("stop"), term.number("step"))
    return x[(slice(None),) * term.number("axis") + (cut,)]


def _pad_shape(term: Program) -> Shape:
    shape, axis = list(term.args[0].shape), term.number("axis")
    shape[axis] += term.number("low") + term.number("high")
    return tuple(shape)


def _pad(term: Program, x: Array) -> Array:
    widths = [(0, 0)] * x.ndim
    widths[term.number("axis")] = (term.number("low"), term.number("high"))
    return np.pad(x, widths)


def _concat_shape(term: Program) -> Shape:
    axis, shapes = term.number("axis"), [arg.shape for arg in term.args]
    rest = {(*shape[:axis], *shape[axis + 1 :]) for shape in shapes}
    _require(len(rest) == 1, f"{shapes} joined")
    return (*shapes[0][:axis], sum(shape[axis] for shape in shapes), *shapes[0][axis + 1 :])


def _concat(term: Program, *parts: Array) -> Array:
    return np.concatenate(parts, term.number("axis"))


def _place_shape(term: Program) -> Shape:
    return term.args[0].shape


def _place(term: Program, whole: Array, *parts: Array) -> Array:
    """Write parts over a whole, each from its lowest corner on."""
    result, corners = whole.copy(), term.numbers("corners")
    rank = whole.ndim
    for i, part in enumerate(parts):
        corner = corners[i * rank : (i + 1) * rank]
        result[tuple(slice(c, c + n) for c, n in zip(corner, part.shape, strict=True))] = part
    return result


def _sum(*degrees: int) -> int:
    return sum(degrees)


def _input_shape(term: Program) -> Shape:
    return term.numbers("shape")


def _input(term: Program) -> Array:
    raise KeyError(f"no value for {term}")


OPERATORS: Mapping[str, Operator] = {
    "input": Operator(_input_shape, _input),
    "conv": Operator(_conv_shape, _conv, _sum),
    "matmul": Operator(_matmul_shape, lambda term, a, b: product_of(a, b), _sum),
    "add": Operator(_add_shape, lambda term, a, b: (a + b) % PRIME),
    "transpose": Operator(_transpose_shape, lambda term, x: x.transpose(term.numbers("order"))),
    "fold": Operator(_fold_shape, _fold),
    "unfold": Operator(_unfold_shape, _unfold),
    "to_batch": Operator(_to_batch_shape, _to_batch),
    "to_space": Operator(_to_space_shape, _to_space),
    "slice": Operator(_slice_shape, _slice),
    "pad": Operator(_pad_shape, _pad),
    "concat": Operator(_concat_shape, _concat),
    "place": Operator(_place_shape, _place),
}
"""Operators by name."""


def drawn(program: Sequence[Program], seed: int) -> dict[Program, Array]:
    """Return random elements of the field for the inputs of programs."""
    generator = np.random.default_rng(seed)
    inputs = dict.fromkeys(one for each in program for one in each.inputs)
    return {one: generator.integers(0, PRIME, one.shape, np.int64) for one in inputs}
