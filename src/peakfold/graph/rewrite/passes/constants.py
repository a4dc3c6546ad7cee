"""Constant folding: what is known of tensors that hold one number everywhere, and what follows from it.

It never makes a tensor larger than the one it stands for, and rounds nothing: the number is computed in the
dtype of the tensor, by the same IEEE operation.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from peakfold.graph.rewrite.change import Change, Refusal, Rewritten, apply
from peakfold.graph.rewrite.liveness import peak
from peakfold.graph.rewrite.maker import first_free
from peakfold.ir.graph import Arg, Graph, Node, Op, Symbol, Value
from peakfold.ir.types import TensorType

Number = np.generic
Known = Mapping[Value, Number]

_DTYPES: Mapping[str, npt.DTypeLike] = {
    name: getattr(np, "bool_" if name == "bool" else name)
    for name in ("float64", "float32", "float16", "int64", "int32", "int16", "int8", "uint8", "bool")
}
_FILLS: Mapping[str, float | int] = {
    "zeros": 0, "zeros_like": 0, "new_zeros": 0, "ones": 1, "ones_like": 1, "new_ones": 1,
}  # fmt: skip
_FILLED_AT: Mapping[str, int] = {"full": 1, "full_like": 1, "new_full": 2, "scalar_tensor": 0}
_BINARY: Mapping[str, Callable[..., object]] = {
    "add": np.add, "sub": np.subtract, "mul": np.multiply, "maximum": np.maximum, "minimum": np.minimum,
    "eq": np.equal, "ne": np.not_equal, "lt": np.less, "le": np.less_equal, "gt": np.greater,
    "ge": np.greater_equal, "logical_and": np.logical_and, "logical_or": np.logical_or,
}  # fmt: skip
_UNARY: Mapping[str, Callable[..., object]] = {"neg": np.negative, "logical_not": np.logical_not}
_SAME = frozenset(("clone", "_to_copy"))


@dataclass(frozen=True)
class ConstantFolding:
    """Drops operators that change nothing, chooses where the condition is known, folds what is constant.

    Keeps every bit. A copy that nothing needs is dropped where that does not raise the peak.
    """

    name: ClassVar[str] = "constants"

    def __call__(self, graph: Graph) -> Rewritten:
        """Return the graph without what is known beforehand."""
        known = uniform(graph)
        values = dict(_replaced(graph, known))
        fills = [
            node for node in graph.nodes if _is_foldable(graph, node, known) and node.outputs[0] not in values
        ]
        new = [_fill(graph, node, known, first_free(graph) + i) for i, node in enumerate(fills)]
        values |= {old.outputs[0]: made.outputs[0] for old, made in zip(fills, new, strict=True)}
        if not values:
            return Rewritten(graph)
        found = apply(graph, Change(tuple(new), values))
        assert not isinstance(found, Refusal), found
        return found if peak(found.graph) <= peak(graph) else Rewritten(graph)


def uniform(graph: Graph) -> Known:
    """Return the number that each tensor holds everywhere, where it holds one and it is known."""
    known: dict[Value, Number] = {}
    for node in graph.nodes:
        if (
            len(node.types) == 1
            and isinstance(node.types[0], TensorType)
            and node.op.pure
            and not node.op.random
        ):
            number = _number(graph, node, node.types[0], known)
            if number is not None:
                known[node.outputs[0]] = number
    return known


def _number(graph: Graph, node: Node, kind: TensorType, known: Known) -> Number | None:
    word = node.op.packet
    if word in _FILLS:
        return _cast(_FILLS[word], kind)
    if word in _FILLED_AT:
        return _cast(node.args[_FILLED_AT[word]], kind)
    if node.is_view or word in _SAME:
        source = node.args[0]
        return _cast(known[source], kind) if isinstance(source, Value) and source in known else None
    function = (_BINARY if len(node.args) == 2 else _UNARY).get(word)
    if function is None or node.kwargs or len(node.args) > 2:
        return None
    operands = [_operand(graph, arg, node, known) for arg in node.args]
    if any(operand is None for operand in operands):
        return None
    with np.errstate(all="ignore"):
        return _cast(function(*operands), kind)


def _operand(graph: Graph, arg: Arg, node: Node, known: Known) -> Number | None:
    """Return an operand that is known; a plain number in the dtype of the tensor beside it."""
    if isinstance(arg, Value):
        return known.get(arg)
    beside = node.inputs[0] if node.inputs else None
    kind = None if beside is None else graph.type(beside)
    return _cast(arg, kind) if isinstance(kind, TensorType) else None


def _cast(number: object, kind: TensorType) -> Number | None:
    """Return a number in the dtype of a tensor; None where it is not exactly one of that dtype."""
    dtype = _DTYPES.get(kind.dtype)
    if dtype is None or not isinstance(number, int | float | bool | np.generic):
        return None
    try:
        with np.errstate(all="ignore"):
            made = np.dtype(dtype).type(number)  # type: ignore[arg-type]
    except OverflowError:
        return None
    is_rounded = isinstance(number, np.generic) and made != number
    is_whole = np.issubdtype(np.dtype(dtype), np.floating) or made == number
    return made if isinstance(made, np.generic) and is_whole and not is_rounded else None


def _replaced(graph: Graph, known: Known) -> Iterator[tuple[Value, Value]]:
    """Yield (result, operand) of each operator that gives an operand as it is."""
    for node in graph.nodes:
        if len(node.types) != 1 or node.outputs[0] in graph.results or node.is_view or not node.op.pure:
            continue
        same = _operand_given(graph, node, known)
        if same is not None and graph.type(same) == node.types[0]:
            yield node.outputs[0], same


def _operand_given(graph: Graph, node: Node, known: Known) -> Value | None:
    args = node.args
    first = args[0] if args and isinstance(args[0], Value) else None
    word = node.op.packet
    if word == "where" and isinstance(first, Value) and first in known and len(args) == 3:
        chosen = args[1] if known[first] else args[2]
        return chosen if isinstance(chosen, Value) else None
    if word == "masked_fill" and isinstance(mask := args[1], Value):
        return first if mask in known and not known[mask] else None
    if word in _SAME and all(value is None for _, value in _plain(node)):
        return first
    return None if first is None or len(args) != 2 or node.kwargs else _neutral(graph, node, first, known)


def _plain(node: Node) -> list[tuple[str, Arg]]:
    """Return keywords that may matter: not those that say what the type says already."""
    return [pair for pair in node.kwargs if pair[0] not in ("memory_format", "dtype", "device", "layout")]


def _neutral(graph: Graph, node: Node, first: Value, known: Known) -> Value | None:
    """Return what a neutral number leaves: x of x * 1, x / 1, x ** 1, x - 0; of x + 0, of integers."""
    word, second, kind = node.op.packet, node.args[1], graph.type(first)
    if not isinstance(kind, TensorType):
        return None
    number = _operand(graph, second, node, known)
    whole = not kind.dtype.startswith(("float", "bfloat", "complex"))
    if isinstance(number, np.number) and not np.signbit(number):
        if word in ("mul", "div", "pow") and number == 1 and (word != "div" or not whole):
            return first
        if number == 0 and (word == "sub" or (word == "add" and whole)):
            return first
    other = known.get(first)
    if not isinstance(second, Value) or other is None:
        return None
    return second if (word == "mul" and other == 1) or (word == "add" and whole and other == 0) else None


def _is_foldable(graph: Graph, node: Node, known: Known) -> bool:
    """Whether a node computes a known number from tensors, and is no view, copy or filling itself."""
    kind = node.types[0] if len(node.types) == 1 else None
    if node.outputs[0] not in known or node.is_view or not isinstance(kind, TensorType):
        return False
    computes = node.op.packet in _BINARY or node.op.packet in _UNARY
    return computes and kind.is_contiguous and np.isfinite(float(known[node.outputs[0]]))


def _fill(graph: Graph, node: Node, known: Known, ident: int) -> Node:
    kind = node.types[0]
    assert isinstance(kind, TensorType)
    number = known[node.outputs[0]].item()
    kwargs = (
        ("dtype", Symbol("dtype", kind.dtype)),
        ("layout", None),
        ("device", Symbol("device", kind.device)),
        ("pin_memory", False),
    )
    args: tuple[Arg, ...] = (kind.shape, number)
    made = Op("aten.full.default")
    return Node(ident, f"{node.name}.constant", made, args, kwargs, node.types, (None,), origin=node.origin)
