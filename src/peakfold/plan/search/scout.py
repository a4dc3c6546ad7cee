"""Looks at thousands of states by their sketches, and says which are worth planning.

States are expanded best first; what a planned state came to corrects the hopes of all that split the same
candidates, so that others are tried next where the sketch promised too much.
"""

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from statistics import fmean, median

from peakfold.plan.schedule.deadline import Deadline
from peakfold.plan.schedule.goal import Goal
from peakfold.plan.search.clock import Clock
from peakfold.plan.search.sketch import Estimate, Sketch
from peakfold.plan.search.states import State

OVER = 4.0
"""Eager steps that a budget's worth of bytes above the budget costs."""

MEASURES = 12
"""Regions of which the graph of a part is made, at most, before states are taken: what is left is a guess."""

Enabled = tuple[int, ...]
Hopes = tuple[float, ...]
"""What a state promises: for each time where a whole front is searched, else one value."""


def worth(goal: Goal, peak: float, seconds: float, eager: float, top: int) -> float:
    """Return what a state is worth, in seconds; less is better.

    Bytes above the budget, and time above its limit, cost a multiple of eager's step.

    Args:
        goal: what is asked.
        peak: most bytes at once.
        seconds: of a step.
        eager: seconds of eager's step.
        top: bytes of the plan that splits and drops nothing; what bytes are measured by where they are to
        be least.
    """
    late = max(seconds / goal.seconds - 1, 0.0) if goal.latency else 0.0
    penalty = OVER * eager * (1 + late) if late else 0.0
    if goal.by_bytes:
        return peak / max(top, 1) * eager + penalty
    if goal.memory is not None and peak > goal.memory:
        return OVER * eager * (1 + (peak - goal.memory) / max(goal.memory, 1)) + penalty
    return seconds + penalty


@dataclass
class Scout:
    """States that were looked at, and what they promise.

    Attributes:
        sketch: gives estimates.
        goal: what is asked.
        eager: seconds of the step that splits and drops nothing.
        top: its peak in bytes.
        times: seconds at which bytes are to be least, where a whole front is searched.
        clock: told where the time goes.
        deadline: after it, nothing more is looked at.
        seen: hashes of all states that were looked at.
    """

    sketch: Sketch
    goal: Goal
    eager: float
    top: int
    times: tuple[float, ...] = ()
    clock: Clock = field(default_factory=Clock)
    deadline: Deadline = field(default_factory=Deadline)
    seen: set[int] = field(default_factory=set)
    _open: list[tuple[float, int, State]] = field(default_factory=list)
    _hopes: dict[int, tuple[Hopes, State]] = field(default_factory=dict)
    _taken: set[int] = field(default_factory=set)
    _stale: set[int] = field(default_factory=set)
    _bias: dict[Enabled, Hopes] = field(default_factory=dict)

    @property
    def states(self) -> int:
        """Number of distinct states that were estimated."""
        return self.clock.counts.get("sketch", 0)

    def add(self, states: Iterable[State]) -> None:
        """Look at states; those whose hash is known are left out."""
        clock = self.clock
        for state in states:
            if self._hopes and self.deadline.is_over:
                return
            if state.code in self.seen:
                clock.duplicates += 1
                continue
            self.seen.add(state.code)
            began = time.perf_counter()
            hopes = self._promised(state)
            clock.add("sketch", time.perf_counter() - began)
            if hopes:
                self._hopes[state.code] = (hopes, state)
                heappush(self._open, (fmean(hopes), state.code, state))

    def _promised(self, state: State) -> Hopes:
        """What a state promises; nothing where it cannot be split."""
        if not self.times:
            found = self.sketch.estimate(state.parts)
            return () if found is None else (self._worth(self.goal, found),)
        goals = [Goal(None, seconds) for seconds in self.times]
        known = [(goal, self.sketch.estimate(state.parts, goal)) for goal in goals]
        return tuple(min(self._worth(goal, one), self.eager) for goal, one in known if one is not None)

    def _worth(self, goal: Goal, found: Estimate) -> float:
        return worth(goal, found.peak, found.seconds, self.eager, self.top)

    def look(self, most: int) -> None:
        """Expand the most promising states until so many more were estimated, or none is left."""
        until = self.states + most
        while self._open and self.states < until and not self.deadline.is_over:
            self.expand(heappop(self._open)[2])

    def expand(self, state: State) -> None:
        """Look at what is one move away from a state."""
        began = time.perf_counter()
        moves = list(self.sketch.tree.moves(state.parts))
        between = time.perf_counter()
        after = [state.to(move.parts, move.changed) for move in moves]
        self.clock.add("moves", between - began)
        self.clock.add("hashing", time.perf_counter() - between, len(after))
        self.add(after)

    def take(self, count: int, so_far: Hopes = (), first: Sequence[State] = ()) -> list[State]:
        """Return the most promising states not taken yet, no two of which split the same candidates.

        Where seconds of regions were guessed, what those promise that would be taken is looked at again.

        Args:
            count: how many.
            so_far: what was found is worth, at each time where a whole front is searched: a state promises
                what it is better by.
            first: what is taken before all others.
        """
        left = (state for state in first if state.code not in self._taken)
        given = [state for state in left if state.code in self._hopes][:count]
        self._taken.update(state.code for state in given)
        if given:
            return given
        found = self._ranked(count, so_far)
        for _ in range(MEASURES):
            guessed = [pair for one in found for pair in self.sketch.unmeasured(one.parts)]
            if not guessed or self.deadline.is_over:
                break
            index = guessed[0][0]
            with self.clock.at("measure"):
                self.sketch.measure(*guessed[0])
            self._stale |= {code for code, (_, state) in self._hopes.items() if state.parts[index] > 1}
            found = self._ranked(count, so_far)
        self._taken.update(state.code for state in found)
        return found

    def _ranked(self, count: int, so_far: Hopes) -> list[State]:
        usual = tuple(max(median(row), 1.0) for row in zip(*self._bias.values(), strict=True))
        known: dict[int, tuple[Hopes, int, State, Enabled]] = {}
        for code, (hopes, state) in self._hopes.items():
            if code not in self._taken:
                known[code] = (self._corrected(hopes, state, usual), code, state, _enabled(state))
        found: dict[Enabled, State] = {}
        have = so_far or (float("inf"),) * max(len(self.times), 1)
        while len(found) < count:
            left = (
                (_over(have, hopes), code, hopes, state)
                for hopes, code, state, k in known.values()
                if k not in found
            )
            best = min(left, default=None)
            if best is None:
                break
            _, code, hopes, state = best
            if code in self._stale:
                del known[code]
                if self._again(state):
                    again = self._corrected(self._hopes[code][0], state, usual)
                    known[code] = (again, code, state, _enabled(state))
                continue
            found[_enabled(state)] = state
            have = tuple(min(pair) for pair in zip(have, hopes, strict=True))
        return list(found.values())

    def _corrected(self, hopes: Hopes, state: State, usual: Hopes) -> Hopes:
        """What a state promises, by what those came to that split the same, or the same but one."""
        split = _enabled(state)
        fewer = (split[:at] + split[at + 1 :] for at in reversed(range(len(split))))
        bias = next((self._bias[key] for key in (split, *fewer) if key in self._bias), usual)
        return tuple(of * hope for of, hope in zip(bias, hopes, strict=True)) if bias else hopes

    def _again(self, state: State) -> bool:
        """Estimate a state again, once more is known of its regions; False where it cannot be split."""
        self._stale.discard(state.code)
        hopes = self._promised(state)
        if not hopes:
            del self._hopes[state.code]
            return False
        self._hopes[state.code] = (hopes, state)
        return True

    def learn(self, state: State, values: Hopes | None) -> None:
        """Take in what a state came to when it was planned; None where it could not be split."""
        hopes, key = self._hopes[state.code][0], _enabled(state)
        came = values or tuple(OVER * OVER * hope for hope in hopes)
        bias = tuple(value / max(hope, 1e-12) for value, hope in zip(came, hopes, strict=True))
        self._bias[key] = tuple(map(min, bias, self._bias.get(key, bias)))


def _over(have: Hopes, hopes: Hopes) -> tuple[float, float]:
    """What there would be with a state, at all times together, and what decides among equals."""
    return sum(min(pair) for pair in zip(have, hopes, strict=True)), sum(hopes)


def _enabled(state: State) -> Enabled:
    return tuple(index for index, parts in enumerate(state.parts) if parts > 1)
