"""Dynamic tensor rematerialization: run, and evict what is cheap, large and long unused.

Kirisame et al., "Dynamic Tensor Rematerialization", ICLR 2021, section 3: where an allocation does not fit,
the resident tensor of the least ``h = cost / (bytes * staleness)`` goes; the cost is that of its own operator
and of all evicted ones that would have to run again for it. Time is the simulated clock. What no operator
reads any more is evicted at once, and may come back.
"""

from collections.abc import Iterable

from peakfold.plan.literature.subject import Baseline, Subject, best


def dtr(subject: Subject, memory: int) -> Baseline:
    """Return what DTR runs within a budget in bytes; where it gives up, the plan that drops nothing."""
    runs = _Machine(subject, memory).run()
    kept = subject.from_modes("dtr", subject.kept())
    return kept if runs is None else best((kept, subject.from_runs("dtr", runs)), memory)


class _Machine:
    """What is resident while the program runs under DTR."""

    def __init__(self, subject: Subject, memory: int) -> None:
        tables = subject.tables
        self.subject = subject
        self.memory = memory
        self.runs: list[int] = []
        self.clock = 0.0
        self.live = tables.resident
        self.at_hand: set[int] = set()
        self.used: dict[int, float] = {}
        self.place = 0
        self.seconds: list[float] = tables.seconds.tolist()
        self.nbytes: list[int] = tables.nbytes.tolist()
        self.workspace = tables.workspace.tolist()
        self.producer = tables.producer.tolist()
        self.last = [max(places, default=-1) for places in subject.readers]
        late = subject.frame.late
        self.kept = {v for v in range(len(tables.storages)) if tables.is_output[v]}
        self.kept |= {v for step in late.nonzero()[0].tolist() for v in subject.needs[step]}

    def run(self) -> list[int] | None:
        """Return the runs; None where the budget is too small."""
        most = 24 * len(self.subject.steps) + 64
        for place, step in enumerate(self.subject.steps):
            self.place = place
            if not self._compute(step) or len(self.runs) > most:
                return None
            self._release(self.subject.needs[step])
        return self.runs

    def _compute(self, step: int) -> bool:
        """Run a step, and first what it lacks; False where nothing is left to evict."""
        stack, locked = [step], set(self.subject.needs[step])
        while stack:
            top = stack[-1]
            lacks = [v for v in self.subject.needs[top] if v not in self.at_hand]
            if lacks:
                stack.append(self.producer[lacks[0]])
                locked.update(self.subject.needs[stack[-1]])
                continue
            if not self._allocate(top, locked):
                return False
            self._execute(stack.pop())
        return True

    def _allocate(self, step: int, locked: set[int]) -> bool:
        asked = self.workspace[step] + sum(
            self.nbytes[v] for v in self.subject.makes[step] if v not in self.at_hand
        )
        while self.live + asked > self.memory:
            victim = self._victim(locked)
            if victim is None:
                return False
            self._evict(victim)
        return True

    def _execute(self, step: int) -> None:
        self.runs.append(step)
        self.clock += self.seconds[step]
        for v in self.subject.makes[step]:
            if v not in self.at_hand:
                self.at_hand.add(v)
                self.live += self.nbytes[v]
        for v in (*self.subject.makes[step], *self.subject.needs[step]):
            self.used[v] = self.clock
        self._release(v for v in self.subject.makes[step] if not self.subject.readers[v])

    def _release(self, storages: Iterable[int]) -> None:
        for v in storages:
            if v in self.at_hand and self.last[v] <= self.place and v not in self.kept:
                self._evict(v)

    def _evict(self, v: int) -> None:
        self.at_hand.discard(v)
        self.live -= self.nbytes[v]

    def _victim(self, locked: set[int]) -> int | None:
        """Return what goes: the least h, the first among equals."""
        droppable = self.subject.frame.droppable
        found = [
            v
            for v in sorted(self.at_hand)
            if v not in locked and v not in self.kept and self.nbytes[v] and droppable[self.producer[v]]
        ]
        return min(found, key=self._h) if found else None

    def _h(self, v: int) -> float:
        staleness = max(self.clock - self.used[v], 1e-9)
        return self._cost(self.producer[v]) / (self.nbytes[v] * staleness)

    def _cost(self, step: int) -> float:
        """Seconds of a step and of the evicted ones that it would need again."""
        seen, stack, seconds = {step}, [step], 0.0
        while stack:
            top = stack.pop()
            seconds += self.seconds[top]
            for v in self.subject.needs[top]:
                maker = self.producer[v]
                if v not in self.at_hand and maker not in seen:
                    seen.add(maker)
                    stack.append(maker)
        return seconds
