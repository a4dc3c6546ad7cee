"""The same region in every layer: a program without a backward has its peak once in each of them."""

from collections.abc import Iterator

from peakfold.ir.graph import Graph, Node
from peakfold.ir.plan import Anchor, Run
from peakfold.ir.types import Type
from peakfold.plan.fission.dims import Component
from peakfold.plan.fission.pairs import Piece, splits

Word = tuple[str, tuple[Type, ...]]


def copies(graph: Graph, component: Component, piece: Piece) -> Iterator[Piece]:
    """Yield a region's copies elsewhere in the program, none of which overlap.

    A copy is a stretch of the program that runs the same operators on the same types in the same order as the
    stretch from the region's first step to its last.

    Args:
        graph: the program.
        component: the axis that the region is split along; copies are split along it too.
        piece: the region; each node runs once in it.
    """
    place = {node.id: at for at, node in enumerate(graph.nodes)}
    anchor = place.get(piece.anchor.value.node)
    if anchor is None:
        return
    for by in _shifts(graph, piece):
        made = _moved(graph, piece, by, anchor, place)
        if _is_on(component, made.anchor) and splits(graph, component, made):
            yield made


def places(graph: Graph, piece: Piece) -> int:
    """Return how many copies of a region a program has, whether they can be split or not."""
    return sum(1 for _ in _shifts(graph, piece))


def _shifts(graph: Graph, piece: Piece) -> Iterator[int]:
    """Yield how far, in nodes, each copy is from the region."""
    if any(run.k for run in piece.runs):
        return
    words = [_word(node) for node in graph.nodes]
    place = {node.id: at for at, node in enumerate(graph.nodes)}
    inside = sorted(place[run.node] for run in piece.runs)
    first, length = inside[0], inside[-1] - inside[0] + 1
    pattern, taken = words[first : first + length], [first]
    for begin in range(len(words) - length + 1):
        if words[begin : begin + length] == pattern and all(abs(begin - at) >= length for at in taken):
            taken.append(begin)
            yield begin - first


def _word(node: Node) -> Word:
    return node.op.name, node.types


def _moved(graph: Graph, piece: Piece, by: int, anchor: int, place: dict[int, int]) -> Piece:
    runs = tuple(sorted(Run(graph.nodes[place[run.node] + by].id, 0) for run in piece.runs))
    value = graph.nodes[anchor + by].outputs[piece.anchor.value.index]
    return Piece(runs, Anchor(value, piece.anchor.dim, piece.anchor.outer))


def _is_on(component: Component, anchor: Anchor) -> bool:
    return any(
        (value, factor.dim, factor.outer) == (anchor.value, anchor.dim, anchor.outer)
        for value, factor in component.members
    )
