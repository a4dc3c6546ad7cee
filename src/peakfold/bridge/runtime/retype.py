"""Types of a rewritten graph, as torch itself gives them: shapes, dtypes and strides, on fake tensors."""

from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils import _pytree as pytree

from peakfold.bridge.codegen.operators import overload
from peakfold.bridge.runtime.interpret import symbol
from peakfold.errors import PlanError
from peakfold.ir.graph import Arg, Graph, Node, Symbol, Value
from peakfold.ir.types import ScalarType, TensorType, Type

_REFUSES = (RuntimeError, TypeError, ValueError, IndexError, NotImplementedError, PlanError)
_NUMBERS: Mapping[str, float] = {"float": 0.5, "int": 3, "bool": True}

Types = tuple[Type, ...]


def retyped(graph: Graph, changed: frozenset[int], any_results: bool = False) -> Graph | None:
    """Return a graph in which every type is what its operator gives for its operands.

    Only nodes that changed, and those that read another type than before, are looked at.

    Args:
        graph: after a rewrite.
        changed: ids of the nodes that are new or say something else, or read what they did not read.
        any_results: what the program returns may change its type.

    Returns:
        None where an operator does not take its operands, or a result of the program would change.
    """
    types: dict[Value, Type] = {Value(given.id): given.type for given in graph.inputs}
    before = {
        value: kind for node in graph.nodes for value, kind in zip(node.outputs, node.types, strict=True)
    }
    nodes: list[Node] = []
    other: set[Value] = set()
    for node in graph.nodes:
        made: Types | None = node.types
        if node.id in changed or not other.isdisjoint(node.inputs):
            made = types_of(node, types)
            if made is None or len(made) != len(node.types):
                return None
        assert made is not None
        types.update(zip(node.outputs, made, strict=True))
        other.update(value for value in node.outputs if types[value] != before[value])
        nodes.append(node if made == node.types else replace(node, types=made))
    if not any_results and any(types[v] != before.get(v, types[v]) for v in graph.results):
        return None
    return replace(graph, nodes=tuple(nodes))


def types_of(node: Node, types: Mapping[Value, Type]) -> Types | None:
    """Return the types of a node's outputs; None where its operator does not take its operands."""
    if node.is_host:
        return node.types
    args = tuple(_typed(arg, types) for arg in node.args)
    kwargs = tuple((name, _typed(arg, types)) for name, arg in node.kwargs)
    return _asked(node.op.name, args, kwargs)


def _typed(arg: Arg, types: Mapping[Value, Type]) -> object:
    if isinstance(arg, Value):
        return types[arg]
    return tuple(_typed(item, types) for item in arg) if isinstance(arg, tuple) else arg


@lru_cache(maxsize=1 << 14, typed=True)
def _asked(op: str, args: tuple[object, ...], kwargs: tuple[tuple[str, object], ...]) -> Types | None:
    try:
        with FakeTensorMode(), torch.no_grad():
            given = [_fake(arg) for arg in args]
            named = {name: _fake(arg) for name, arg in kwargs}
            found = pytree.tree_leaves(overload(op)(*given, **named))
            return tuple(_type(one) for one in found)
    except _REFUSES:
        return None


def _fake(arg: object) -> Any:
    if isinstance(arg, TensorType):
        dtype = getattr(torch, arg.dtype)
        return torch.empty_strided(arg.shape, arg.strides, dtype=dtype, device=arg.device)
    if isinstance(arg, ScalarType):
        return _NUMBERS[arg.kind]
    if isinstance(arg, Symbol):
        return symbol(arg)
    return [_fake(item) for item in arg] if isinstance(arg, tuple) else arg


def _type(found: object) -> Type:
    if isinstance(found, torch.Tensor):
        dtype = str(found.dtype).removeprefix("torch.")
        return TensorType(tuple(found.shape), dtype, str(found.device), tuple(found.stride()))
    kind = "bool" if isinstance(found, bool) else "int" if isinstance(found, int) else "float"
    return ScalarType(kind)  # type: ignore[arg-type]
