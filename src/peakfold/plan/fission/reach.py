"""What depends on what: sets of nodes as bits of an integer."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from peakfold.ir.graph import Graph


@dataclass(frozen=True)
class Reach:
    """Ancestors and descendants of every node, themselves left out.

    Attributes:
        place: position of each node, by id; the bit that stands for it.
        ids: ids by position.
        before: ancestors, by position.
        after: descendants, by position.
    """

    place: dict[int, int]
    ids: tuple[int, ...]
    before: tuple[int, ...]
    after: tuple[int, ...]

    @staticmethod
    def of(graph: Graph) -> "Reach":
        """Return the reach of a graph.

        Example:
            >>> from peakfold.ir.graph import Input, Node, Op, Value
            >>> from peakfold.ir.types import tensor
            >>> t = tensor(2)
            >>> relu = Op("aten.relu.default")
            >>> nodes = tuple(Node(i, f"n{i}", relu, (Value(i - 1),), (), (t,), (None,)) for i in (1, 2, 3))
            >>> reach = Reach.of(Graph((Input(0, "x", "batch", t),), nodes, ()))
            >>> bin(reach.before[2]), bin(reach.after[0])
            ('0b11', '0b110')
        """
        place = {node.id: index for index, node in enumerate(graph.nodes)}
        reads = [[place[value.node] for value in node.inputs if value.node in place] for node in graph.nodes]
        before = [0] * len(reads)
        for index, makers in enumerate(reads):
            for maker in makers:
                before[index] |= before[maker] | (1 << maker)
        after = [0] * len(reads)
        for index in reversed(range(len(reads))):
            for maker in reads[index]:
                after[maker] |= after[index] | (1 << index)
        return Reach(place, tuple(node.id for node in graph.nodes), tuple(before), tuple(after))

    def mask(self, ids: Iterable[int]) -> int:
        """Return a set of nodes."""
        found = 0
        for ident in ids:
            found |= 1 << self.place[ident]
        return found

    def members(self, mask: int) -> list[int]:
        """Return the ids of a set, in program order."""
        return [self.ids[index] for index in bits(mask)]

    def descendants(self, ids: Iterable[int]) -> int:
        """Return all that depends on some node of a set."""
        found = 0
        for ident in ids:
            found |= self.after[self.place[ident]]
        return found


def bits(mask: int) -> Iterator[int]:
    """Yield the positions of the bits that are set, in order.

    Example:
        >>> list(bits(0b1011))
        [0, 1, 3]
    """
    while mask:
        low = mask & -mask
        yield low.bit_length() - 1
        mask ^= low
