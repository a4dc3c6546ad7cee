"""Tensors that hold one number everywhere, the same in every run."""

from collections.abc import Callable, Mapping

from peakfold.ir.graph import Graph, Node, Value
from peakfold.ir.types import TensorType
from peakfold.ops.comparisons import COMPARISONS

LARGEST = 127
"""Whole numbers up to here are the same in every dtype."""

_FILLED: Mapping[str, float] = {"zeros": 0, "zeros_like": 0, "ones": 1, "ones_like": 1}
_FILLING: Mapping[str, int] = {"full": 1, "full_like": 1, "scalar_tensor": 0}
"""Operators that fill with a number, and which argument it is."""

_SAME = frozenset(
    ("clone", "_to_copy", "alias", "detach", "view", "reshape", "expand", "unsqueeze", "squeeze", "t",
     "permute", "transpose", "select", "slice", "_unsafe_view", "lift_fresh_copy")
)  # fmt: skip

_COMPARED: Mapping[str, Callable[[float, float], bool]] = {
    **COMPARISONS,
    "logical_and": lambda a, b: bool(a) and bool(b),
    "logical_or": lambda a, b: bool(a) or bool(b),
}


def constant(graph: Graph, value: Value) -> float | None:
    """Return the number that all elements of a tensor are, in every run; None where it is not known.

    Only small whole numbers are followed, which every dtype holds exactly.

    Example:
        >>> from peakfold.ir.graph import Op
        >>> from peakfold.ir.types import tensor
        >>> ones = Node(1, "ones", Op("aten.ones.default"), ((2,),), (), (tensor(2),), (None,))
        >>> more = Node(2, "gt", Op("aten.gt.Scalar"), (Value(1), 0), (), (tensor(2, dtype="bool"),), (None,))
        >>> constant(Graph((), (ones, more), ()), Value(2))
        1
    """
    known: dict[Value, float | None] = {Value(given.id): None for given in graph.inputs}
    stack = [value]
    while stack:
        top = stack[-1]
        node = graph.node.get(top.node)
        waiting = [one for one in node.inputs if one not in known] if node is not None else []
        if waiting and node is not None and _follows(node):
            stack.extend(waiting)
            continue
        stack.pop()
        if top not in known:
            known[top] = None if node is None else _exact(_found(node, known), node)
    return known[value]


def _follows(node: Node) -> bool:
    packet = node.op.packet
    return node.op.name.startswith("aten.") and (
        packet in _SAME or packet in _COMPARED or packet == "logical_not"
    )


def _exact(number: float | None, node: Node) -> float | None:
    kind = node.types[0]
    if number is None or len(node.types) != 1 or not isinstance(kind, TensorType):
        return None
    if kind.dtype == "bool":
        return int(bool(number))
    low = 0 if kind.dtype == "uint8" else -LARGEST
    return number if number == int(number) and low <= number <= LARGEST else None


def _found(node: Node, known: Mapping[Value, float | None]) -> float | None:
    packet = node.op.packet
    if not node.op.name.startswith("aten."):
        return None
    if packet in _FILLED:
        return _FILLED[packet]
    if packet in _FILLING:
        return _number(node.args[_FILLING[packet]], known)
    if packet in _SAME:
        return _number(node.args[0], known)
    if packet == "logical_not":
        number = _number(node.args[0], known)
        return None if number is None else int(not number)
    if packet in _COMPARED:
        left, right = (_number(arg, known) for arg in node.args[:2])
        return None if left is None or right is None else int(_COMPARED[packet](left, right))
    return None


def _number(arg: object, known: Mapping[Value, float | None]) -> float | None:
    if isinstance(arg, Value):
        return known.get(arg)
    finite = isinstance(arg, bool | int | float) and abs(arg) <= LARGEST and arg == int(arg)
    return float(arg) if finite else None  # type: ignore[arg-type]
