"""The optimal persistent schedule of a chain: which stages keep all, which keep their input.

Beaumont, Eyraud-Dubois, Herrmann, Joly and Shilova, "Optimal checkpointing for heterogeneous chains: how to
train deep neural networks with limited memory", 2019, section 4 (rotor): dynamic programming over stages and
slots of memory. A stage is what lies between two cuts of the forward pass; a cut holds all that crosses it.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from peakfold.plan.literature.cuts import crossing, cuts
from peakfold.plan.literature.subject import Baseline, Subject, best
from peakfold.plan.schedule.arrays import Floats

Choices = npt.NDArray[np.int16]

SLOTS = 300
"""Slots of memory in the dynamic program."""
BUDGETS = 12
"""Budgets of the dynamic program that are tried: its model of a stage is coarser than the simulator."""


@dataclass(frozen=True)
class Chain:
    """A program as a chain of stages.

    Attributes:
        forward, backward: base steps of each stage.
        forward_seconds, backward_seconds: of each.
        border: bytes that cross into each stage.
        saved: bytes that each stage keeps for its backward pass when it keeps all.
    """

    forward: tuple[tuple[int, ...], ...]
    backward: tuple[tuple[int, ...], ...]
    forward_seconds: tuple[float, ...]
    backward_seconds: tuple[float, ...]
    border: tuple[int, ...]
    saved: tuple[int, ...]


def rotor(subject: Subject, memory: int) -> Baseline:
    """Return the best chain schedule for a budget in bytes."""
    kept = subject.from_modes("rotor", subject.kept())
    stages = chain(subject)
    if len(stages.forward) < 2:
        return kept
    room = max(sum(stages.saved), 1)
    table, choice = _solve(stages, room)
    found = [kept]
    seen: set[tuple[int, ...]] = set()
    for slots in np.unique(np.linspace(1, SLOTS, SLOTS // BUDGETS).astype(int)).tolist():
        if not np.isfinite(table[0, len(stages.forward) - 1, slots]):
            continue
        runs = tuple(_runs(stages, subject, choice, slots, room))
        if runs not in seen:
            seen.add(runs)
            found.append(subject.from_runs("rotor", runs))
    return best(found, memory)


def chain(subject: Subject) -> Chain:
    """Return the chain of a program: its forward pass between cuts, each with its backward steps."""
    crosses = crossing(subject)
    ends = [*cuts(subject), subject.turn - 1]
    begins = [0, *(end + 1 for end in ends[:-1])]
    forward = [subject.steps[b : e + 1] for b, e in zip(begins, ends, strict=True)]
    stage_of = {v: i for i, row in enumerate(forward) for step in row for v in subject.makes[step]}
    backward: list[list[int]] = [[] for _ in forward]
    lowest = len(forward) - 1
    for step in subject.steps[subject.turn :]:
        lowest = min(lowest, *(stage_of.get(v, lowest) for v in subject.needs[step]), lowest)
        backward[lowest].append(step)
    seconds = subject.tables.seconds

    def total(rows: list[list[int]]) -> tuple[float, ...]:
        return tuple(float(seconds[row].sum()) for row in rows)

    def nbytes(storages: Sequence[int]) -> int:
        return sum(int(subject.tables.nbytes[v]) for v in storages)

    later = [max(places, default=-1) >= subject.turn for places in subject.readers]
    return Chain(
        tuple(map(tuple, forward)),
        tuple(map(tuple, backward)),
        total(forward),
        total(backward),
        (0, *(nbytes(crosses[end]) for end in ends[:-1])),
        tuple(nbytes([v for step in row for v in subject.makes[step] if later[v]]) for row in forward),
    )


def _solve(stages: Chain, room: int) -> tuple[Floats, Choices]:
    """Return the least seconds of stages s..t within each number of slots, and the choice that gives them.

    A choice of -1 keeps all of stage s; k > 0 keeps the input of stage s + k only, and runs s..s+k-1 twice.
    """
    count = len(stages.forward)
    border = [-(-nbytes * SLOTS // room) for nbytes in stages.border]
    saved = [-(-nbytes * SLOTS // room) for nbytes in stages.saved]
    table = np.full((count, count, SLOTS + 1), np.inf)
    choice = np.zeros((count, count, SLOTS + 1), np.int16)
    passed = np.concatenate([[0.0], np.cumsum(stages.forward_seconds)])
    for width in range(count):
        for s in range(count - width):
            t = s + width
            own = stages.forward_seconds[s] + stages.backward_seconds[s]
            rest = table[s + 1, t] if s < t else np.zeros(SLOTS + 1)
            _take(table[s, t], choice[s, t], own + _within(rest, saved[s]), -1)
            for k in range(1, width + 1):
                again = (
                    passed[s + k] - passed[s] + _within(table[s + k, t], border[s + k]) + table[s, s + k - 1]
                )
                _take(table[s, t], choice[s, t], again, k)
    return table, choice


def _within(seconds: Floats, slots: int) -> Floats:
    """Shift a row: what is reached with that many slots less."""
    found = np.full(SLOTS + 1, np.inf)
    if slots <= SLOTS:
        found[slots:] = seconds[: SLOTS + 1 - slots]
    return found


def _take(row: Floats, choice: Choices, offered: Floats, kind: int) -> None:
    better = offered < row
    row[better] = offered[better]
    choice[better] = kind


def _runs(stages: Chain, subject: Subject, choice: Choices, slots: int, room: int) -> Iterator[int]:
    """Yield the runs of a solution; a step that cannot run again runs once."""
    done: set[int] = set()
    stack: list[tuple[str, int, int, int]] = [("solve", 0, len(stages.forward) - 1, slots)]
    while stack:
        kind, s, t, left = stack.pop()
        if kind == "backward":
            yield from stages.backward[s]
        elif kind == "forward":
            for stage in range(s, t + 1):
                yield from (i for i in stages.forward[stage] if i not in done or subject.frame.droppable[i])
                done.update(stages.forward[stage])
        elif (k := int(choice[s, t, left])) < 0:
            stack.append(("backward", s, s, 0))
            if s < t:
                stack.append(("solve", s + 1, t, left + (-stages.saved[s] * SLOTS // room)))
            stack.append(("forward", s, s, 0))
        else:
            stack.append(("solve", s, s + k - 1, left))
            stack.append(("solve", s + k, t, left + (-stages.border[s + k] * SLOTS // room)))
            stack.append(("forward", s, s + k - 1, 0))
