"""A proven lower bound of the peak of every program that computes a graph.

**Claim.** Let a *program* be any sequence of runs of steps, each step run at least once and any
number of times, in any order that respects data, where a run needs its operands live, makes its
outputs beside them (an output may be written into an operand that the operator can overwrite and
that is not needed afterwards, or into the state input that it replaces), and takes its workspace.
Graph inputs are live throughout. Then its peak is at least `peak_bound`.

**Proof.** Take the moment at which some run of step ``v`` begins. The set ``S`` of its operands that
are no graph inputs is live. Of the live instances of ``S``, one set was made last, by a run of a
step ``u`` that makes some of ``S``. At that run all of ``S`` that ``u`` does not make was live
already, for it is live later and was made earlier; so were the operands of ``u``; its outputs and
workspace were taken. That run therefore held at least ::

    cost(S, u) = inputs + |(S - out(u)) + in(u) + out(u)| + workspace(u) - overwritten(S, u)

where ``overwritten`` is the size of the largest output of ``u`` that may have been written into an
operand outside ``S - out(u)``, and a new value that may be written over the state input that it
replaces, with what lies between the two (`chain`), counts no bytes. And at its beginning the set
``S' = (S - out(u)) + in(u)`` was live, of which the same can be said. Going back so, every program
spells a path of sets from ``S`` to the empty set, and its peak is at least the largest cost on that
path. The least largest cost over *all* paths is thus a lower bound. A best-first search over sets
finds it: the cost at which a set is taken from the queue never falls, and every path that is not
finished passes through the queue, so that the search may stop at any time and the last cost taken is
still a bound. The maximum over all ``v`` of such bounds is one too. Nothing is assumed about which
values a planner may or may not compute again, so the bound holds for all plans.
"""

import heapq
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from peakfold.plan.schedule.arrays import Flags, Tables
from peakfold.plan.schedule.chains import chain

Live = frozenset[int]


def peak_bound(tables: Tables, effort: int = 20_000) -> int:
    """Return bytes that no program for the graph can stay below.

    Args:
        tables: the graph; workspace counts, seconds do not.
        effort: how many sets to look at in all; more gives a higher bound, never a wrong one.
    """
    game = _Game(tables)
    end = tables.resident + sum(game.sizes[v] for v in game.returned)
    if not tables.steps:
        return end
    share = max(1, effort // (2 * tables.steps))
    rough = sorted(((game.reach(v, share), v) for v in range(tables.steps)), reverse=True)
    best = max(end, rough[0][0])
    for _, step in rough[:DEEP]:
        best = max(best, game.reach(step, effort // (2 * DEEP)))
    return best


def offload_bound(tables: Tables, moved: Flags) -> int:
    """Return bytes that no program stays below where some graph inputs may wait on the host meanwhile.

    Before the first step and after the last all inputs are there, with what is returned. While a step
    runs, its operands, its outputs and its workspace are, and the inputs that never move.

    Args:
        tables: the graph.
        moved: the storages of inputs that may be away.
    """
    game = _Game(tables)
    away = int(tables.nbytes[moved].sum())
    begin = tables.operand_begin
    best = tables.resident + sum(game.sizes[v] for v in game.returned)
    for step in range(tables.steps):
        reads = tables.operands[begin[step] : begin[step + 1]]
        there = int(tables.nbytes[reads][moved[reads]].sum())
        best = max(best, game.cost(frozenset(), step) - away + there)
    return best


DEEP = 8
"""How many of the steps that look worst are looked at closely."""


@dataclass(frozen=True)
class _Game:
    """The backward walk over sets of live storages."""

    tables: Tables

    @cached_property
    def sizes(self) -> list[int]:
        """Bytes that each storage takes beyond the inputs; none where it may lie in a state's bytes."""
        tables = self.tables
        found: list[int] = tables.nbytes.tolist()
        for old, new in zip(tables.state_input.tolist(), tables.state_output.tolist(), strict=True):
            for v in chain(tables, old, new):
                found[v] = 0
        return found

    @cached_property
    def makers(self) -> list[int]:
        found: list[int] = self.tables.producer.tolist()
        return found

    @cached_property
    def returned(self) -> list[int]:
        """Returned storages that are no graph inputs."""
        found: list[int] = (self.tables.is_output & (self.tables.producer >= 0)).nonzero()[0].tolist()
        return found

    @cached_property
    def reads(self) -> list[Live]:
        """Operands of each step that steps make, numbers apart."""
        tables = self.tables
        apart = ((tables.producer >= 0) & ~tables.host_number).tolist()
        rows = _rows(tables.operand_begin.tolist(), tables.operands.tolist())
        return [frozenset(v for v in row if apart[v]) for row in rows]

    @cached_property
    def makes(self) -> list[Live]:
        return [
            frozenset(row) for row in _rows(self.tables.output_begin.tolist(), self.tables.outputs.tolist())
        ]

    @cached_property
    def ways(self) -> list[list[tuple[int, int]]]:
        """Pairs (output, operand) of each step: the operand may be overwritten by the output."""
        tables = self.tables
        begin = tables.reuse_begin.tolist()
        pairs = list(zip(tables.reuse_output.tolist(), tables.reuse_operand.tolist(), strict=True))
        return [pairs[begin[s] : begin[s + 1]] for s in range(tables.steps)]

    def reach(self, step: int, effort: int) -> int:
        """Return a bound on the peak of computing one step, from a search over that many sets."""
        start = self.reads[step]
        queue = [(self.cost(frozenset(), step), 0, start)]
        known: dict[Live, int] = {}
        count = 0
        bound = self.tables.resident
        for _ in range(effort):
            cost, _, live = heapq.heappop(queue)
            bound = cost
            if not live:
                break
            for maker in sorted({self.makers[v] for v in live}):
                rest = live - self.makes[maker]
                before = rest | self.reads[maker]
                reached = max(cost, self.cost(rest, maker))
                if reached < known.get(before, reached + 1):
                    known[before] = reached
                    count += 1
                    heapq.heappush(queue, (reached, -count, before))
        return bound

    def cost(self, rest: Live, step: int) -> int:
        """Bytes that a run of a step holds at least while ``rest`` stays live."""
        tables = self.tables
        held = sum(self.sizes[v] for v in rest | self.reads[step] | self.makes[step])
        spared = max(self._spared(rest, step), default=0)
        return tables.resident + held + int(tables.workspace[step]) - spared

    def _spared(self, rest: Live, step: int) -> Iterator[int]:
        for new, old in self.ways[step]:
            if self.makers[old] >= 0 and old not in rest:
                yield self.sizes[new]


def _rows(begin: Sequence[int], items: Sequence[int]) -> Iterator[Sequence[int]]:
    for low, high in itertools.pairwise(begin):
        yield items[low:high]
