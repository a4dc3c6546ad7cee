"""What a word of a rule is: how it is read from a node, and how it is made."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from peakfold.graph.rewrite.maker import Maker
from peakfold.ir.graph import Arg, Graph, Node, Value
from peakfold.ir.types import TensorType

Attrs = Mapping[str, Arg]


@dataclass(frozen=True)
class Reading:
    """What a node says in the words of rules.

    Attributes:
        op: the word.
        args: its operands.
        attrs: its attributes.
        through: ids of further nodes that the word takes in.
    """

    op: str
    args: tuple[Value, ...]
    attrs: Attrs = field(default_factory=dict)
    through: tuple[int, ...] = ()


Reader = Callable[[Graph, Node], Reading | None]
Writer = Callable[[Maker, Sequence[Value], Attrs], Value]


def kinds_of(graph: Graph, node: Node, count: int) -> list[TensorType] | None:
    """Return the types of the first operands; None where one is no tensor."""
    kinds = [graph.type(arg) if isinstance(arg, Value) else None for arg in node.args[:count]]
    tensors = [kind for kind in kinds if isinstance(kind, TensorType)]
    return tensors if len(tensors) == count else None


def values_of(node: Node, count: int) -> tuple[Value, ...]:
    """Return those of the first arguments that are Values."""
    return tuple(arg for arg in node.args[:count] if isinstance(arg, Value))
