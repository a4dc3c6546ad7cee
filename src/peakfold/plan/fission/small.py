"""Small nodes at the border of a region, which are cheaper whole than in parts.

Every part pays for a kernel that hardly works: repeating a scale for each sample, summing its gradients.
Where such a node reads nothing that the region makes, it runs once, before it, and a part reads its rows;
where nothing of the region reads what it makes, what it reads is placed, and it runs once, behind it.
"""

from collections.abc import Iterable, Iterator, Sequence

from peakfold.ir.graph import Graph, Node
from peakfold.ir.plan import Run
from peakfold.ops.links import Factor
from peakfold.plan.fission.readers import readers
from peakfold.plan.fission.states import Assignment

SMALL = 4096
"""A small tensor has at most one in so many of the bytes of the largest one of its region."""


def outside(graph: Graph, loops: Sequence[tuple[Sequence[Run], Assignment]]) -> frozenset[Run]:
    """Return the runs that regions which are split together are better without.

    Args:
        graph: the program, prepared.
        loops: runs and states of each of them.
    """
    found: set[Run] = set()
    left = [set(runs) for runs, _ in loops]
    for first in (True, False):
        for own, (runs, states) in zip(left, loops, strict=True):
            kept = {run.node for other in left for run in other if not run.k}
            may = [run for run in runs if (not run.k if first else run.k and run.node not in kept)]
            found.update(_at_border(graph, own, may, states))
    return frozenset(found)


def _at_border(graph: Graph, own: set[Run], may: Iterable[Run], states: Assignment) -> Iterator[Run]:
    """Take small runs at its border out of a region, one after the other, and yield them."""
    ids = {run.node for run in own}
    sizes = [graph.nbytes(value) for ident in ids for value in graph.node[ident].outputs]
    most = max(sizes, default=0) // SMALL
    waiting = [run for run in may if _is_small(graph, graph.node[run.node], most)]
    while waiting:
        run = next((one for one in waiting if _stands_apart(graph, one, ids, states)), None)
        if run is None:
            return
        waiting.remove(run)
        own.remove(run)
        ids.remove(run.node)
        yield run


def _is_small(graph: Graph, node: Node, most: int) -> bool:
    return all(graph.nbytes(value) <= most for value in (*node.inputs, *node.outputs))


def _stands_apart(graph: Graph, run: Run, ids: set[int], states: Assignment) -> bool:
    """Whether a node can run before or behind the rest of its region, for no more borders."""
    node = graph.node[run.node]
    made = {owner for value in node.inputs if (owner := graph.storage(value)).node in ids}
    if not made:
        return all(_is_read_in_place(states.get(value)) for value in node.outputs)
    read = any(reader.id in ids for value in node.outputs for reader in readers(graph, value))
    return not run.k and not read and len(made) <= len(node.outputs)


def _is_read_in_place(state: object) -> bool:
    """Whether a part reads its rows where they are, without a copy."""
    return state is None or (isinstance(state, Factor) and state.dim == 0 and state.outer == 1)
