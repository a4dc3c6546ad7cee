"""Recurrent layers of oneDNN: the forward kernel keeps a workspace that only the backward one can read."""

from peakfold.ir.graph import Node
from peakfold.ir.types import TensorType

FORWARD = "aten.mkldnn_rnn_layer.default"
"""Its kernel keeps a workspace for the backward pass, and computes otherwise, where grad mode is on."""

BACKWARD = "aten.mkldnn_rnn_layer_backward.default"


def keeps_workspace(node: Node) -> bool:
    """Return whether a node's kernel must see grad mode on: what it keeps has bytes in the graph.

    Example:
        >>> from peakfold.ir.graph import Op
        >>> from peakfold.ir.types import tensor
        >>> kinds = (tensor(5, 3, 16), tensor(3, 16), tensor(3, 16), tensor(0, dtype="uint8"))
        >>> keeps_workspace(Node(1, "lstm", Op(FORWARD), (), (), kinds, (None,) * 4))
        False
    """
    if node.op.name != FORWARD:
        return False
    kept = node.types[3]
    return isinstance(kept, TensorType) and kept.nbytes > 0
