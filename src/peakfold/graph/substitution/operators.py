"""The operators of rules: how many operands and outputs they have, and what they promise.

What they compute is in `shapes` (sizes), `values` (exact arithmetic) and `normal` (index notation).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from peakfold.graph.rule import Apply, Term, subterms


@dataclass(frozen=True, slots=True)
class Operator:
    """An operator of rules.

    Attributes:
        name: as written in rules.
        arity: number of operands.
        attrs: its attributes and their defaults; None where one must be given.
        outputs: number of outputs.
        commutative: whether the two operands may be swapped.
        elementwise: whether each output element depends on the operands' elements at its own place.
        zero: whether an elementwise operator of one operand keeps zero.
        ordered: whether it compares numbers.
        uninterpreted: whether exact arithmetic knows nothing of it but that it is a function.
        linear: whether it is linear in every operand on its own.
    """

    name: str
    arity: int
    attrs: Mapping[str, int | None]
    outputs: int = 1
    commutative: bool = False
    elementwise: bool = False
    ordered: bool = False
    uninterpreted: bool = False
    linear: bool = False


def _pointwise(name: str, arity: int, **flags: bool) -> Operator:
    return Operator(name, arity, {}, elementwise=True, **flags)


_WINDOW = {"stride": 1, "dilation": 1}
_TABLE: Final = (
    _pointwise("add", 2, commutative=True),
    _pointwise("sub", 2),
    _pointwise("mul", 2, commutative=True, linear=True),
    _pointwise("div", 2),
    _pointwise("maximum", 2, commutative=True, ordered=True),
    _pointwise("neg", 1, linear=True),
    _pointwise("reciprocal", 1),
    _pointwise("relu", 1, ordered=True),
    _pointwise("exp", 1),
    _pointwise("log", 1, uninterpreted=True),
    _pointwise("tanh", 1, uninterpreted=True),
    Operator("scale", 1, {"by": None}, elementwise=True, linear=True),
    Operator("expand", 2, {}),
    Operator("transpose", 1, {}, linear=True),
    Operator("matmul", 2, {}, linear=True),
    Operator("sum", 1, {"axis": None}, linear=True),
    Operator("mean", 1, {"axis": None}, linear=True),
    Operator("max", 1, {"axis": None}, ordered=True),
    Operator("softmax", 1, {"axis": None}),
    Operator("concat", 2, {"axis": None}),
    Operator("split", 3, {"axis": None, "of": -1}, outputs=2),
    Operator("slice", 1, {"axis": None, "low": 0, "high": 0}, linear=True),
    Operator("pad", 1, {"axis": None, "low": 0, "high": 0}, linear=True),
    Operator("gather", 2, {"axis": None}),
    Operator("conv", 2, _WINDOW, linear=True),
    Operator("conv_relu", 2, _WINDOW, ordered=True),
    Operator("avgpool", 1, {"kernel": None, "stride": 1}, linear=True),
    Operator("maxpool", 1, {"kernel": None, "stride": 1}, ordered=True),
)
OPERATORS: Final[Mapping[str, Operator]] = {operator.name: operator for operator in _TABLE}

SPATIAL: Final = frozenset({"conv", "conv_relu", "avgpool", "maxpool"})
MATRIX: Final = frozenset({"matmul", "transpose"})
EXPONENTIAL: Final = frozenset({"exp", "softmax"})
DIVIDING: Final = frozenset({"div", "reciprocal"})


def operators_of(terms: tuple[Term, ...]) -> frozenset[str]:
    """Return the names of the operators that terms apply.

    Example:
        >>> from peakfold.graph.rule import parse_rule
        >>> sorted(operators_of(parse_rule("r: add(exp(a), b) => b").lhs))
        ['add', 'exp']
    """
    return frozenset(term.op for term in subterms(terms) if isinstance(term, Apply))
