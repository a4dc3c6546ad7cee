"""From decisions to the runs of every node, in order.

The base steps run in their order. Before one runs, every step whose outputs it lacks is run again,
and before that what those lack, chains of any depth; each at most once before one base run, in base
order. An output is *at hand* after its first run, and after a base reader of it, where the mode of
the gap that begins there is KEEP; after a run again, where that mode is not DROP. A value at hand
stays so to the end of its gap, and in a tail to its last reader in the whole sequence.

Update steps are put in where their operands are complete and nothing later, a repeated run
included, reads the value that they replace.

This is the reference; `decode` does the same on arrays, and the tests hold the two equal.
"""

from collections.abc import Iterator, Sequence
from typing import Literal

from peakfold.plan.schedule.frame import DROP, HOLD, KEEP, SINCE, Frame


def sequence(frame: Frame, modes: Sequence[int], updates: Literal["early", "last"] = "early") -> list[int]:
    """Return the steps in the order in which they run; a step that is there twice is computed twice."""
    runs = base_runs(frame, modes)
    late = [int(s) for s in sorted(frame.late.nonzero()[0], key=lambda s: int(frame.rank[s]))]
    if updates == "last":
        return [*runs, *late]
    return list(with_updates(frame, runs, late))


def base_runs(frame: Frame, modes: Sequence[int]) -> list[int]:
    """Return the runs of base steps, repeated ones included."""
    walk = Walk(frame, modes)
    for step in frame.base.tolist():
        walk.run(step)
    return walk.runs


class Walk:
    """What is at hand while the base steps run."""

    def __init__(self, frame: Frame, modes: Sequence[int]) -> None:
        self.frame = frame
        self.modes = modes
        self.runs: list[int] = []
        self.at_hand = [False] * len(frame.tables.storages)
        self.next_use = frame.use_begin[:-1].tolist()

    def run(self, step: int) -> None:
        """Run a base step, and before it what it lacks."""
        again = self.missing(step)
        self.runs += again
        for maker in again:
            for v in self.made(maker):
                self.at_hand[v] = self._holds(v, int(self.frame.rank[step]))
        self.runs.append(step)
        for v in self._needs(step):
            self.next_use[v] += 1
            self.at_hand[v] = self._mode(v) == KEEP
        for v in self.made(step):
            self.at_hand[v] = self._mode(v) == KEEP

    def missing(self, step: int) -> list[int]:
        """Return the steps that must run again before a step, in base order."""
        found: set[int] = set()
        stack = [step]
        while stack:
            for v in self._needs(stack.pop()):
                maker = int(self.frame.tables.producer[v])
                if not self.at_hand[v] and maker not in found:
                    found.add(maker)
                    stack.append(maker)
        return sorted(found, key=lambda s: int(self.frame.rank[s]))

    def slot(self, v: int) -> int:
        """Return the gap or tail that a storage is in."""
        use = self.next_use[v]
        if use < self.frame.use_begin[v + 1]:
            return int(self.frame.use_gap[use])
        return self.frame.gaps + int(self.frame.tables.producer[v])

    def _holds(self, v: int, place: int) -> bool:
        """Whether a storage that was computed again for the base step at a place stays."""
        mode = self._mode(v)
        return mode in (KEEP, HOLD) or (mode != DROP and place >= mode - SINCE)

    def _mode(self, v: int) -> int:
        return self.modes[self.slot(v)]

    def _needs(self, step: int) -> list[int]:
        begin = self.frame.need_begin
        found: list[int] = self.frame.need[begin[step] : begin[step + 1]].tolist()
        return found

    def made(self, step: int) -> list[int]:
        """Return the storages that a step makes, numbers apart."""
        tables = self.frame.tables
        made = tables.outputs[tables.output_begin[step] : tables.output_begin[step + 1]]
        return [v for v in made.tolist() if not tables.host_number[v]]


def with_updates(frame: Frame, runs: Sequence[int], late: Sequence[int]) -> Iterator[int]:
    """Put each update cone after the run that makes it ready; what is in no cone comes last.

    Args:
        frame: the graph.
        runs: runs of base steps.
        late: all update steps, in order.
    """
    tables = frame.tables
    first: dict[int, int] = {}
    last_read: dict[int, int] = {}
    for at, step in enumerate(runs):
        first.setdefault(step, at)
        for v in tables.operands[tables.operand_begin[step] : tables.operand_begin[step + 1]].tolist():
            last_read[v] = at
    ready: dict[int, list[tuple[int, ...]]] = {}
    for target in frame.targets:
        at = max([last_read.get(target.old, -1), *(first[step] for step in target.producers)])
        ready.setdefault(at, []).append(target.cone)
    done: set[int] = set()
    for at in range(-1, len(runs)):
        if at >= 0:
            yield runs[at]
        for cone in ready.get(at, ()):
            yield from (step for step in cone if step not in done)
            done.update(cone)
    yield from (step for step in late if step not in done)
