"""Ancestors and descendants of items, and how narrow the waist is at each."""

from collections.abc import Sequence
from dataclasses import dataclass

from peakfold.plan.reorder.problem import Problem


@dataclass(frozen=True)
class Reach:
    """What comes before and after each item, itself left out, as bits.

    Attributes:
        before: ancestors.
        after: descendants.
    """

    before: tuple[int, ...]
    after: tuple[int, ...]

    @staticmethod
    def of(problem: Problem, order: Sequence[int]) -> "Reach":
        """Return the reach of a problem, of which one order is known.

        Example:
            >>> chain = Problem(((), (0,), (1,)), ((0,), (1,), (2,)), (1, 1, 1), frozenset(), (0, 0, 0))
            >>> reach = Reach.of(chain, (0, 1, 2))
            >>> [bin(mask) for mask in reach.before], [reach.waist(item) for item in range(3)]
            (['0b0', '0b1', '0b11'], [0, 0, 0])
        """
        before, after = [0] * problem.size, [0] * problem.size
        for item in order:
            for later in problem.successors[item]:
                before[later] |= before[item] | (1 << item)
        for item in reversed(order):
            for later in problem.successors[item]:
                after[item] |= after[later] | (1 << later)
        return Reach(tuple(before), tuple(after))

    def waist(self, item: int) -> int:
        """Return nw: how many items come neither before nor after it."""
        return len(self.before) - self.before[item].bit_count() - self.after[item].bit_count() - 1
