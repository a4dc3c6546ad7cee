"""What terms compute, in exact arithmetic."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import product as tuples
from typing import Final

import numpy as np

from peakfold.graph.rule import Apply, Term, Var
from peakfold.graph.substitution.field import Arithmetic, Number
from peakfold.graph.substitution.shapes import parts_axis

Values = Mapping[str, Number]


@dataclass
class Evaluator:
    """Computes terms over given inputs; shapes have been found legal.

    Attributes:
        math: the field.
        inputs: value of each variable; an index variable's entries are its floats.
        constants: value of each symbolic constant, of shape ().
    """

    math: Arithmetic
    inputs: Values
    constants: Values
    _memo: dict[Term, Number] = field(default_factory=dict)

    def value(self, term: Term) -> Number:
        """Return the value of a term.

        Raises:
            Undefined: it divides by zero.
            IndexError: an index is outside of what it reads.
        """
        if term not in self._memo:
            self._memo[term] = self._computed(term)
        return self._memo[term]

    def _computed(self, term: Term) -> Number:
        if isinstance(term, Var):
            return self.inputs[term.name]
        return _MEANING[term.op](self, term, *(self.value(arg) for arg in term.args))


def _pieces(x: Number, axis: int, start: int, stop: int) -> Number:
    return x.take((*(slice(None),) * axis, slice(start, stop)))


def _join(a: Number, b: Number, axis: int) -> Number:
    return Number(
        np.concatenate((a.v, b.v), axis),
        np.concatenate((a.u, b.u), axis),
        np.concatenate((a.f, b.f), axis),
    )


def _padded(x: Number, widths: list[tuple[int, int]], fill: float = 0.0) -> Number:
    return Number(np.pad(x.v, widths), np.pad(x.u, widths), np.pad(x.f, widths, constant_values=fill))


def _turned(x: Number) -> Number:
    return Number(x.v.swapaxes(-1, -2), x.u.swapaxes(-1, -2), x.f.swapaxes(-1, -2))


def _sub(ev: Evaluator, term: Apply, a: Number, b: Number) -> Number:
    return ev.math.add(a, ev.math.neg(b))


def _relu(ev: Evaluator, term: Apply, a: Number) -> Number:
    return ev.math.larger(a, ev.math.constant(0, a))


def _opaque(seed: int, real: Callable[..., object]) -> Callable[[Evaluator, Apply, Number], Number]:
    def meaning(ev: Evaluator, term: Apply, a: Number) -> Number:
        with np.errstate(all="ignore"):
            return ev.math.function(a, seed, np.asarray(real(a.f), np.float64))

    return meaning


def _scale(ev: Evaluator, term: Apply, a: Number) -> Number:
    by = dict(term.attrs)["by"]
    one = a.take((slice(0, 1),) * len(a.shape))
    factor = ev.math.constant(by, one) if isinstance(by, int) else ev.constants[by]
    return ev.math.mul(a, factor)


def _expand(ev: Evaluator, term: Apply, a: Number, like: Number) -> Number:
    shape = like.shape
    return Number(np.broadcast_to(a.v, shape), np.broadcast_to(a.u, shape), np.broadcast_to(a.f, shape))


def _matmul(ev: Evaluator, term: Apply, a: Number, b: Number) -> Number:
    left, right = a.take((..., None)), b.take((..., None, slice(None), slice(None)))
    total = ev.math.sum(ev.math.mul(left, right), len(a.shape) - 1)
    return total.take((*(slice(None),) * (len(a.shape) - 1), 0))


def _mean(ev: Evaluator, term: Apply, a: Number) -> Number:
    axis = term.attr("axis")
    total = ev.math.sum(a, axis)
    part = ev.math.rational(np.ones((1,) * len(a.shape), np.int64), a.shape[axis])
    return ev.math.mul(total, part)


def _max(ev: Evaluator, term: Apply, a: Number) -> Number:
    axis = term.attr("axis")
    best = _pieces(a, axis, 0, 1)
    for k in range(1, a.shape[axis]):
        best = ev.math.larger(best, _pieces(a, axis, k, k + 1))
    return best


def _softmax(ev: Evaluator, term: Apply, a: Number) -> Number:
    powers = ev.math.exp(a)
    return ev.math.mul(powers, ev.math.reciprocal(ev.math.sum(powers, term.attr("axis"))))


def _split(ev: Evaluator, term: Apply, x: Number, first: Number, second: Number) -> Number:
    axis = term.attr("axis")
    border = first.shape[parts_axis(term)]
    return _pieces(x, axis, 0, border) if term.output == 0 else _pieces(x, axis, border, x.shape[axis])


def _slice(ev: Evaluator, term: Apply, x: Number) -> Number:
    axis = term.attr("axis")
    return _pieces(x, axis, term.attr("low"), x.shape[axis] - term.attr("high"))


def _pad(ev: Evaluator, term: Apply, x: Number) -> Number:
    widths = [(0, 0)] * len(x.shape)
    widths[term.attr("axis")] = (term.attr("low"), term.attr("high"))
    return _padded(x, widths)


def _gather(ev: Evaluator, term: Apply, x: Number, index: Number) -> Number:
    axis, places = term.attr("axis"), index.f.astype(np.int64)
    if places.size and places.max() >= x.shape[axis]:
        raise IndexError
    return x.take((*(slice(None),) * axis, places))


def _windows(x: Number, sizes: tuple[int, ...], stride: int, dilation: int, fill: float) -> list[Number]:
    """Return for each place in a window what stands there, for all windows."""
    borders = [dilation * (size - 1) // 2 for size in sizes]
    wide = _padded(x, [(0, 0), (0, 0), *((b, b) for b in borders)], fill)
    found = []
    for places in tuples(*map(range, sizes)):
        cuts = (
            slice(t * dilation, t * dilation + length, stride)
            for t, length in zip(places, x.shape[2:], strict=True)
        )
        found.append(wide.take((slice(None), slice(None), *cuts)))
    return found


def _conv(ev: Evaluator, term: Apply, x: Number, w: Number) -> Number:
    channels, groups = w.shape[1], x.shape[1] // w.shape[1]
    each = w.shape[0] // groups
    windows = _windows(x, w.shape[2:], term.attr("stride", 1), term.attr("dilation", 1), 0.0)
    outputs = []
    for group in range(groups):
        kernels = w.take(slice(group * each, (group + 1) * each))
        parts = [_pieces(part, 1, group * channels, (group + 1) * channels) for part in windows]
        outputs.append(_convolved(ev, parts, kernels))
    total = outputs[0]
    for other in outputs[1:]:
        total = _join(total, other, 1)
    return total


def _convolved(ev: Evaluator, parts: list[Number], w: Number) -> Number:
    spatial = len(w.shape) - 2
    total: Number | None = None
    for place, part in zip(tuples(*map(range, w.shape[2:])), parts, strict=True):
        kernel = w.take((slice(None), slice(None), *place)).take((None, ..., *(None,) * spatial))
        products = ev.math.mul(part.take((slice(None), None)), kernel)
        here = ev.math.sum(products, 2).take((slice(None), slice(None), 0))
        total = here if total is None else ev.math.add(total, here)
    assert total is not None
    return total


def _conv_relu(ev: Evaluator, term: Apply, x: Number, w: Number) -> Number:
    return _relu(ev, term, _conv(ev, term, x, w))


def _avgpool(ev: Evaluator, term: Apply, x: Number) -> Number:
    sizes = (term.attr("kernel"),) * (len(x.shape) - 2)
    parts = _windows(x, sizes, term.attr("stride", 1), 1, 0.0)
    total = parts[0]
    for part in parts[1:]:
        total = ev.math.add(total, part)
    share = ev.math.rational(np.ones((1,) * len(x.shape), np.int64), len(parts))
    return ev.math.mul(total, share)


def _maxpool(ev: Evaluator, term: Apply, x: Number) -> Number:
    sizes = (term.attr("kernel"),) * (len(x.shape) - 2)
    parts = _windows(x, sizes, term.attr("stride", 1), 1, -np.inf)
    best = parts[0]
    for part in parts[1:]:
        best = ev.math.larger(best, part)
    return best


_MEANING: Final[Mapping[str, Callable[..., Number]]] = {
    "add": lambda ev, term, a, b: ev.math.add(a, b),
    "sub": _sub,
    "mul": lambda ev, term, a, b: ev.math.mul(a, b),
    "div": lambda ev, term, a, b: ev.math.mul(a, ev.math.reciprocal(b)),
    "maximum": lambda ev, term, a, b: ev.math.larger(a, b),
    "neg": lambda ev, term, a: ev.math.neg(a),
    "reciprocal": lambda ev, term, a: ev.math.reciprocal(a),
    "relu": _relu,
    "exp": lambda ev, term, a: ev.math.exp(a),
    "log": _opaque(10, np.log),
    "tanh": _opaque(12, np.tanh),
    "scale": _scale,
    "expand": _expand,
    "transpose": lambda ev, term, a: _turned(a),
    "matmul": _matmul,
    "sum": lambda ev, term, a: ev.math.sum(a, term.attr("axis")),
    "mean": _mean,
    "max": _max,
    "softmax": _softmax,
    "concat": lambda ev, term, a, b: _join(a, b, term.attr("axis")),
    "split": _split,
    "slice": _slice,
    "pad": _pad,
    "gather": _gather,
    "conv": _conv,
    "conv_relu": _conv_relu,
    "avgpool": _avgpool,
    "maxpool": _maxpool,
}
