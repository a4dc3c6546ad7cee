"""A node as it stands in one part: the same operator, with the sizes of the part in arguments and types."""

from collections.abc import Callable, Mapping
from dataclasses import replace

from peakfold.ir.graph import Arg, Graph, Node, Value
from peakfold.ir.types import TensorType, Type, contiguous_strides
from peakfold.plan.fission.states import Assignment, Factor, Part, State

VIEWS = frozenset({"view", "reshape", "_unsafe_view", "_reshape_copy"})
"""Take -1 for the one dimension that is split."""

SIZED: Mapping[str, int] = {
    "expand": 1,
    "new_zeros": 1,
    "new_ones": 1,
    "new_full": 1,
    "new_empty": 1,
    "new_empty_strided": 1,
    "full": 0,
    "zeros": 0,
    "ones": 0,
    "empty": 0,
    "empty_strided": 0,
    "empty_permuted": 0,
    "select_backward": 1,
    "slice_backward": 1,
    "upsample_bilinear2d_backward": 2,
    "upsample_nearest2d_backward": 2,
}
"""Position of the argument that is the shape of the output."""

COUNTED: Mapping[str, int] = {"native_group_norm": 3, "native_group_norm_backward": 5}
"""Position of the argument that is the length of dimension 0."""

STRIDED: Mapping[str, int] = {"new_empty_strided": 2, "empty_strided": 1}
"""Position of the argument that is its strides."""


def part_of(graph: Graph, node: Node, assignment: Assignment, part: Part) -> Node:
    """Return a node as it stands in one part: same id and operands; arguments and types of the part's size.

    Types are those of the largest part. Where parts are not equal (``part.extent`` is a Value), a size that
    is several times the extent is read from ``part.scaled``; `multiples` says which are needed.

    Args:
        graph: the program.
        node: one of its nodes.
        assignment: the state of every value that the region reads or makes.
        part: its size.
    """
    states = [assignment.get(value) for value in node.outputs]
    sized = zip(node.types, states, strict=True)
    types = tuple(part_type(kind, state, part.size, part.more) for kind, state in sized)
    state = states[0] if states else None
    if not isinstance(state, Factor):
        return replace(node, types=types)
    return replace(node, args=_args(graph, node, state, part), types=types)


def multiples(graph: Graph, node: Node, assignment: Assignment) -> frozenset[int]:
    """Return the multiples of the extent, other than 1, that a node's arguments need in unequal parts."""
    state = assignment.get(Value(node.id))
    packet = node.op.packet
    if packet == "repeat" and isinstance(state, Factor):
        inner = _repeated_inner(graph, node, state)
        return frozenset({state.outer * inner} - {1}) if inner is not None else frozenset()
    if not isinstance(state, Factor) or (packet not in SIZED and packet not in COUNTED):
        return frozenset()
    sizes = {state.outer * state.inner}
    kind = node.types[0]
    if packet in STRIDED and isinstance(kind, TensorType):
        sizes |= {stride // state.length for stride in _outer_strides(kind, state)}
    return frozenset(sizes - {1})


def part_type(kind: Type, state: State, size: int, more: int = 0) -> Type:
    """Return the type of a part of a value.

    Its strides are those of a tensor of the part's own, laid out as the whole is.

    Args:
        kind: type of the whole.
        state: how it is split.
        size: places of the factor in the part.
        more: places of the dimension beyond them.

    Example:
        >>> from peakfold.ir.types import tensor
        >>> part_type(tensor(8, 6, 4), Factor(1, 2, 3, 1), 1)
        TensorType(shape=(8, 2, 4), dtype='float32', device='cpu', strides=(8, 4, 1))
    """
    if not isinstance(state, Factor) or not isinstance(kind, TensorType):
        return kind
    rows, total = state.outer * size * state.inner + more, kind.shape[state.dim]
    shape = (*kind.shape[: state.dim], rows, *kind.shape[state.dim + 1 :])
    strides = tuple(
        stride * rows // total if _is_outer(kind, state, dim) else stride
        for dim, stride in enumerate(kind.strides)
    )
    fits = all(
        not stride * rows % total for dim, stride in enumerate(kind.strides) if _is_outer(kind, state, dim)
    )
    return replace(kind, shape=shape, strides=strides if fits else contiguous_strides(shape))


def _is_outer(kind: TensorType, state: Factor, dim: int) -> bool:
    """Whether a dimension steps over all of the split one in memory."""
    own = kind.strides[state.dim]
    return dim != state.dim and own > 0 and kind.strides[dim] >= own * kind.shape[state.dim]


def _outer_strides(kind: TensorType, state: Factor) -> list[int]:
    return [stride for dim, stride in enumerate(kind.strides) if _is_outer(kind, state, dim)]


def _args(graph: Graph, node: Node, state: Factor, part: Part) -> tuple[Arg, ...]:
    packet = node.op.packet
    if packet in VIEWS:
        return _sized(node, 1, state, lambda dim: -1)
    if packet in SIZED:
        size = _scaled(part, state.outer * state.inner)
        args = _sized(node, SIZED[packet], state, lambda dim: size)
        return _restrided(node, args, state, part) if packet in STRIDED else args
    if packet in COUNTED and state.dim == 0:
        position = COUNTED[packet]
        count = _scaled(part, state.outer * state.inner)
        return (*node.args[:position], count, *node.args[position + 1 :])
    return _repeats(graph, node, state, part) if packet == "repeat" else node.args


def _repeats(graph: Graph, node: Node, state: Factor, part: Part) -> tuple[Arg, ...]:
    """Arguments of ``repeat``: times of the split dimension, where what is split is the repeating."""
    inner = _repeated_inner(graph, node, state)
    times = node.args[1]
    if inner is None or not isinstance(times, tuple):
        return node.args
    new = tuple(
        _scaled(part, state.outer * inner) if dim == state.dim else item for dim, item in enumerate(times)
    )
    return (node.args[0], new, *node.args[2:])


def _repeated_inner(graph: Graph, node: Node, state: Factor) -> int | None:
    """Times that each place of a split of the repeating is repeated; None where the operand is split."""
    own, out = graph.tensor_type(node.inputs[0]).shape, node.types[0]
    assert isinstance(out, TensorType)
    source = state.dim - (len(out.shape) - len(own))
    length = own[source] if source >= 0 else 1
    return None if state.inner < length else state.inner // length


def _sized(node: Node, position: int, state: Factor, size: Callable[[int], Arg]) -> tuple[Arg, ...]:
    """Arguments with the split dimension's size replaced in a shape; other sizes are written out."""
    kind = node.types[0]
    assert isinstance(kind, TensorType)
    shape = tuple(size(dim) if dim == state.dim else length for dim, length in enumerate(kind.shape))
    return (*node.args[:position], shape, *node.args[position + 1 :])


def _restrided(node: Node, args: tuple[Arg, ...], state: Factor, part: Part) -> tuple[Arg, ...]:
    kind = node.types[0]
    assert isinstance(kind, TensorType)
    position = STRIDED[node.op.packet]
    strides = tuple(
        _scaled(part, stride // state.length) if _is_outer(kind, state, dim) else stride
        for dim, stride in enumerate(kind.strides)
    )
    return (*args[:position], strides, *args[position + 1 :])


def _scaled(part: Part, times: int) -> Arg:
    """The part's extent times a number, as an argument."""
    if part.rows is not None:
        return part.rows
    if times == 1:
        return part.extent
    return part.extent * times if isinstance(part.extent, int) else part.scaled[times]
