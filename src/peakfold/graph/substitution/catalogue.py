"""The operators that the enumerator applies: each with the attributes that it is tried with."""

from dataclasses import dataclass
from typing import Final

from peakfold.errors import UsageError
from peakfold.graph.substitution import kernel


@dataclass(frozen=True, slots=True)
class Instance:
    """An operator with its attributes.

    Attributes:
        op: its name in rules.
        attrs: its attributes.
        code: its number in the kernel.
        first, second: its attributes in the kernel.
        arity: operands that are enumerated.
        commutative: whether operands may be swapped.
        output: which output.
        parts: the inputs that a split goes by.
    """

    op: str
    attrs: tuple[tuple[str, int | str], ...]
    code: int
    first: int = 0
    second: int = 0
    arity: int = 1
    commutative: bool = False
    output: int = 0
    parts: tuple[int, int] = (0, 0)


def _axis(op: str, code: int, axis: int, arity: int = 1) -> Instance:
    return Instance(op, (("axis", axis),), code, axis, 0, arity)


def _conv(op: str, code: int, stride: int, dilation: int) -> Instance:
    given = (("dilation", dilation), ("stride", stride))
    return Instance(op, tuple(pair for pair in given if pair[1] != 1), code, stride, dilation, 2)


def _split(first: int, second: int, output: int) -> Instance:
    return Instance("split", (("axis", 1),), kernel.SPLIT, 1, output, 1, False, output, (first, second))


_PAIRS = ((0, 1), (1, 0), (0, 2), (2, 0), (1, 2), (2, 1))

INSTANCES: Final[tuple[Instance, ...]] = (
    Instance("neg", (), kernel.NEG),
    Instance("relu", (), kernel.RELU),
    Instance("transpose", (), kernel.TRANSPOSE),
    Instance("scale", (("by", "s"),), kernel.SCALE),
    Instance("exp", (), kernel.EXP),
    Instance("log", (), kernel.LOG),
    Instance("reciprocal", (), kernel.RECIPROCAL),
    _axis("sum", kernel.SUM, 0),
    _axis("sum", kernel.SUM, 1),
    _axis("mean", kernel.MEAN, 1),
    _axis("max", kernel.MAX, 1),
    _axis("softmax", kernel.SOFTMAX, 1),
    Instance("slice", (("axis", 1), ("high", 0), ("low", 1)), kernel.SLICE, 1, 1),
    Instance("pad", (("axis", 1), ("high", 0), ("low", 1)), kernel.PAD, 1, 1),
    Instance("gather", (("axis", 0),), kernel.GATHER, 0),
    Instance("avgpool", (("kernel", 3),), kernel.AVGPOOL, 3, 1),
    Instance("maxpool", (("kernel", 3),), kernel.MAXPOOL, 3, 1),
    *(_split(first, second, output) for first, second in _PAIRS for output in (0, 1)),
    Instance("add", (), kernel.ADD, arity=2, commutative=True),
    Instance("mul", (), kernel.MUL, arity=2, commutative=True),
    Instance("maximum", (), kernel.MAXIMUM, arity=2, commutative=True),
    Instance("sub", (), kernel.SUB, arity=2),
    Instance("div", (), kernel.DIV, arity=2),
    Instance("expand", (), kernel.EXPAND, arity=2),
    Instance("matmul", (), kernel.MATMUL, arity=2),
    _axis("concat", kernel.CONCAT, 0, 2),
    _axis("concat", kernel.CONCAT, 1, 2),
    _conv("conv", kernel.CONV, 1, 1),
    _conv("conv", kernel.CONV, 2, 1),
    _conv("conv", kernel.CONV, 1, 2),
    _conv("conv_relu", kernel.CONV_RELU, 1, 1),
)
CORE: Final = (
    "add", "mul", "matmul", "concat", "transpose", "relu", "scale", "neg", "sum", "maximum", "sub", "max",
)  # fmt: skip
"""The operators of terms of five."""


def chosen(operators: tuple[str, ...]) -> tuple[Instance, ...]:
    """Return the instances of operators, in the catalogue's order; of all where none are named.

    Raises:
        UsageError: one is not in the catalogue.
    """
    known = dict.fromkeys(instance.op for instance in INSTANCES)
    unknown = [name for name in operators if name not in known]
    if unknown:
        raise UsageError(
            stage="rules",
            what=f"the generator has no operator {unknown[0]}",
            expected=", ".join(known),
            got=", ".join(operators),
        )
    return tuple(instance for instance in INSTANCES if not operators or instance.op in operators)
