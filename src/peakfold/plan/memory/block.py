"""One block for several layouts that are used in turn.

What passes lies at the bottom, as every layout has it. What outlives a program begins above what passes
in any of them, as far as there is room, so that results of one program lie beside what passes in another.
What is held for the caller lies above.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

from peakfold.plan.memory.layout import Held, Layout


@dataclass(frozen=True)
class Block:
    """Bytes that layouts use in turn.

    Attributes:
        own: bytes for what programs allocate.
        results: where what outlives a program begins, unless there is too little room above.
        held: places above what programs allocate.
    """

    own: int = 0
    results: int = 0
    held: tuple[Held, ...] = ()

    @property
    def size(self) -> int:
        """Bytes of all of it."""
        return self.own + sum(one.room for one in self.held)

    def lift(self, layout: Layout) -> int:
        """Return by how much higher results lie here than in a layout."""
        return max(0, min(self.results - layout.passing, self.own - layout.own))


def block_of(layouts: Sequence[Layout]) -> Block:
    """Return the block in which each of some layouts has room.

    Example:
        >>> from peakfold.plan.memory.layout import lay_out
        >>> from peakfold.plan.memory.trace import Request, Trace
        >>> one, two = (lay_out(Trace((Request(size, 0, None),), length=1)) for size in (64, 640))
        >>> block_of([one, two]).size, block_of([one, two]).lift(one)
        (640, 0)
    """
    own = max((layout.own for layout in layouts), default=0)
    return Block(
        own, _passing(layouts), placed_from(own, most(one for layout in layouts for one in layout.held))
    )


def block_beside(layouts: Sequence[Layout]) -> Block:
    """Return a block in which no result of one layout lies where something passes in another.

    What the layouts hold has no place in it.
    """
    results = _passing(layouts)
    return Block(results + max((layout.own - layout.passing for layout in layouts), default=0), results)


def together(layouts: Sequence[Layout]) -> list[Layout]:
    """Return those of some layouts that have room in a block no larger than the largest of them needs.

    The first one is always among them, the others as far as they fit.
    """
    found: list[Layout] = []
    for layout in layouts:
        more = [*found, layout]
        if block_of(more).size <= max(one.arena for one in more):
            found = more
    return found


def most(held: Iterable[Held]) -> tuple[Held, ...]:
    """Return the largest place of each name."""
    found: dict[str, Held] = {}
    for one in held:
        if one.name not in found or one.size > found[one.name].size:
            found[one.name] = one
    return tuple(found.values())


def placed_from(start: int, held: Sequence[Held]) -> tuple[Held, ...]:
    """Return places one after the other."""
    tops = accumulate((one.room for one in held), initial=start)
    return tuple(replace(one, offset=top) for one, top in zip(held, tops, strict=False))


def _passing(layouts: Sequence[Layout]) -> int:
    return max((layout.passing for layout in layouts), default=0)
