"""States that a search looks at first: those that reach furthest in one move."""

from collections.abc import Iterator, Sequence

from peakfold.plan.fission.tree import Tree, choices
from peakfold.plan.search.roots import FAR, WIDEST
from peakfold.plan.search.states import State

WIDE = (4, 2, 8, 16, 6, 3)
"""Parts that the regions that reach furthest are tried with first."""


def wide(tree: Tree, start: State) -> Iterator[State]:
    """Yield the states that split all that can be along one axis, reaching furthest, and bridges in them.

    In their parts, what is around the turn is in finer parts.
    """
    bridges = [index for index, one in enumerate(tree.candidates) if one.source == "bridge"]
    for index, candidate in enumerate(tree.candidates):
        if candidate.source not in FAR and index >= WIDEST and index not in bridges:
            continue
        possible = choices(candidate.length)
        for parts in (n for n in WIDE if n in possible):
            one = start.to((*start.parts[:index], parts, *start.parts[index + 1 :]))
            yield one
            finer = [k for k in tree.turns if tree.is_within(k, index) and tree.is_finer(k, index)]
            yield from _with_bridges(tree, one, [k for k in (*bridges, *finer) if k != index])


def _with_bridges(tree: Tree, state: State, bridges: Sequence[int]) -> Iterator[State]:
    for index in bridges:
        if not tree.fits(index, state.parts):
            continue
        possible = choices(tree.candidates[index].length)
        for parts in (n for n in WIDE if n in possible):
            after = (*state.parts[:index], parts, *state.parts[index + 1 :])
            if tree.fits(index, after):
                yield state.to(after)
