"""Copies and paddings that change nothing: what they copy stands for them."""

from peakfold.ir.graph import Node, Value
from peakfold.plan.fission.rebuild import Rebuild

PADS = frozenset({"replication_pad2d", "reflection_pad2d"})
COPIED = {"copy": 1, "clone": 0}
"""Position of what is copied."""


def dropped(build: Rebuild, node: Node) -> bool:
    """Let its operand stand for a node that only copies it; return False where it does more."""
    position = _position(node)
    source = None if position is None else node.args[position]
    if not isinstance(source, Value) or not _is_made_whole(build, source):
        return False
    result = Value(node.id)
    if result in build.graph.results or build.graph.type(source) != node.types[0]:
        return False
    build.new[result] = build.value(source)
    return True


def _position(node: Node) -> int | None:
    packet = node.op.packet
    if packet.removesuffix("_backward") in PADS:
        pads = node.args[2 if packet.endswith("_backward") else 1]
        return 0 if isinstance(pads, tuple) and not any(pads) else None
    return COPIED.get(packet)


def _is_made_whole(build: Rebuild, value: Value) -> bool:
    """Whether a node makes what is copied: an input may be written later, a piece keeps the rest alive."""
    graph = build.graph
    owner = graph.storage(value)
    return owner.node in graph.node and graph.nbytes(owner) == graph.tensor_type(value).nbytes
