"""View canonicalization: each view is made from its storage in as few steps as can be.

Two views of one storage with the same shape, strides and offset are one value, however they were made.
Neither a value, a bit nor a stride changes, and views take no memory.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import ClassVar

from peakfold.graph.rewrite.change import Change, Refusal, Rewritten, apply
from peakfold.graph.rewrite.strides import expanded, viewed
from peakfold.ir.graph import Arg, Graph, Node, Op, Value
from peakfold.ir.types import TensorType

SAME_PLACE = frozenset(
    f"aten.{name}"
    for name in ("view.default", "_unsafe_view.default", "reshape.default", "t.default", "transpose.int",
                 "permute.default", "expand.default", "unsqueeze.default", "squeeze.default", "squeeze.dim",
                 "squeeze.dims", "alias.default", "detach.default", "_reshape_alias.default")
)  # fmt: skip
"""Views that start where their operand starts."""

Key = tuple[Value, int, TensorType]
"""Storage, offset in elements, and type: what a view is."""


@dataclass(frozen=True)
class CanonicalViews:
    """Views that are the same become one, chains of views become short ones.

    Keeps every bit. Bytes, and the lifetimes of storages, stay as they are.
    """

    name: ClassVar[str] = "views"

    def __call__(self, graph: Graph) -> Rewritten:
        """Return the graph with canonical views."""
        keys = _keys(graph)
        found: dict[Key, Value] = {}
        values: dict[Value, Value] = {}
        changed: list[Node] = []
        for given in graph.inputs:
            if isinstance(given.type, TensorType):
                found[(Value(given.id), 0, given.type)] = Value(given.id)
        for node in graph.nodes:
            for value in node.outputs:
                key = keys.get(value)
                if key is None:
                    continue
                if key in found and node.is_view:
                    values[value] = found[key]
                    continue
                found.setdefault(key, value)
            if node.is_view and node.outputs[0] not in values:
                short = _shortened(graph, node, keys, values)
                changed += [short] if short is not None else []
        result = apply(graph, Change(values=values, nodes=tuple(changed)))
        assert not isinstance(result, Refusal), result
        return result


def _keys(graph: Graph) -> dict[Value, Key]:
    """Return what each value is as a view; those whose offset is not known are their own storage."""
    keys: dict[Value, Key] = {}
    for given in graph.inputs:
        if isinstance(given.type, TensorType):
            keys[Value(given.id)] = (Value(given.id), 0, given.type)
    for node in graph.nodes:
        for value, kind, alias in zip(node.outputs, node.types, node.aliases, strict=True):
            if not isinstance(kind, TensorType):
                continue
            offset = _offset(graph, node, alias)
            if alias is None or offset is None or alias not in keys:
                keys[value] = (value, 0, kind)
            else:
                root, before, _ = keys[alias]
                keys[value] = (root, before + offset, kind)
    return keys


def _offset(graph: Graph, node: Node, alias: Value | None) -> int | None:
    """Return how far behind its operand a view starts, in elements; None where that is not known."""
    if alias is None or len(node.types) != 1:
        return None
    kind, made = graph.tensor_type(alias), node.types[0]
    if not isinstance(made, TensorType) or made.dtype != kind.dtype:
        return None
    if node.op.name in SAME_PLACE:
        return 0
    if node.op.name in ("aten.slice.Tensor", "aten.select.int"):
        return _start(node, kind)
    return None


def _start(node: Node, kind: TensorType) -> int | None:
    dim, at = (*node.args[1:3], None, None)[:2]
    dim, at = 0 if dim is None else dim, 0 if at is None else at
    if not isinstance(dim, int) or not isinstance(at, int):
        return None
    length, stride = kind.shape[dim], kind.strides[dim]
    return min(at + length if at < 0 else at, length) * stride


def _shortened(graph: Graph, node: Node, keys: dict[Value, Key], values: dict[Value, Value]) -> Node | None:
    """Return the view made from the earliest value that one operator makes it from, None where it is so."""
    source = node.aliases[0]
    assert source is not None
    if keys.get(node.outputs[0], (node.outputs[0],))[0] == node.outputs[0]:
        return None
    for early in _sources(graph, source, keys):
        if early == source:
            return None
        made = _one_step(graph, node, values.get(early, early), keys[node.outputs[0]], keys[early])
        if made is not None:
            return made
    return None


def _sources(graph: Graph, source: Value, keys: dict[Value, Key]) -> Iterator[Value]:
    """Yield the values that a view is made from, the storage first."""
    chain = [source]
    while True:
        maker = graph.node.get(chain[-1].node)
        alias = None if maker is None else maker.aliases[chain[-1].index]
        if alias is None or keys[chain[-1]][0] == chain[-1]:
            break
        chain.append(alias)
    yield from reversed(chain)


def _one_step(graph: Graph, node: Node, source: Value, wanted: Key, given: Key) -> Node | None:
    if wanted[1] != given[1]:
        return None
    call = _call(given[2], wanted[2])
    if call is None:
        return None
    op, *args = call
    assert isinstance(op, str)
    return replace(node, op=Op(op), args=(source, *args), kwargs=(), aliases=(source,))


def _call(given: TensorType, wanted: TensorType) -> tuple[Arg, ...] | None:
    """Return the operator and arguments that make a view from another in the same place."""
    if viewed(given, wanted.shape) == wanted.strides and given.shape != wanted.shape:
        return "aten.view.default", wanted.shape
    order = _order(given, wanted)
    if order is not None:
        return _transposed(order)
    fits = len(given.shape) <= len(wanted.shape) and _expands(given.shape, wanted.shape)
    if fits and expanded(given, wanted.shape) == wanted.strides:
        return "aten.expand.default", wanted.shape
    return None


def _expands(shape: tuple[int, ...], wanted: tuple[int, ...]) -> bool:
    lead = len(wanted) - len(shape)
    return all(n in (1, m) for n, m in zip(shape, wanted[lead:], strict=True))


def _order(given: TensorType, wanted: TensorType) -> list[int] | None:
    """Return the order of dimensions that makes one type from another, None where none does."""
    left = list(enumerate(zip(given.shape, given.strides, strict=True)))
    order: list[int] = []
    for pair in zip(wanted.shape, wanted.strides, strict=True):
        at = next((i for i, (_, other) in enumerate(left) if other == pair), None)
        if at is None:
            return None
        order.append(left.pop(at)[0])
    return order if not left else None


def _transposed(order: list[int]) -> tuple[Arg, ...]:
    moved = [i for i, at in enumerate(order) if i != at]
    if order == [1, 0]:
        return ("aten.t.default",)
    if len(moved) == 2:
        return "aten.transpose.int", moved[0], moved[1]
    return "aten.permute.default", tuple(order)
