"""States that may be faster than the step as a whole: on a CPU, small parts stay in its caches.

What a part costs there is known only by running its operators. So where costs are measured, the region with
most of the work is looked at in every usual number of parts before anything else is. Gradient accumulation,
and checkpointing inside it, are such states.
"""

from collections.abc import Iterator

import numpy as np

from peakfold.plan.fission.tree import choices
from peakfold.plan.schedule.deadline import Deadline
from peakfold.plan.schedule.goal import Goal
from peakfold.plan.search.sketch import Sketch
from peakfold.plan.search.starts import WIDE
from peakfold.plan.search.states import State

MOST_WORK = 0.5
"""Part of the step's seconds that the region is to have."""
FASTER = 0.98
"""Part of a time that the fastest state takes at most, where bytes are searched at its own time too."""
BESIDE = 1.01
"""That time, over what the fastest state is sketched to take."""
AHEAD = 2
"""Ways to split layer by layer that are planned before others."""


def quickest(sketch: Sketch, start: State, deadline: Deadline) -> dict[State, float]:
    """Return states that split the region with most of the work, and their seconds, the fastest first.

    Args:
        sketch: measures them.
        start: the state that splits nothing.
        deadline: after it, none is measured any more.
    """
    work = [_work(sketch, index) for index in range(len(sketch.tree.candidates))]
    if not work or max(work) < MOST_WORK * float(sketch.ground.seconds.sum()):
        return {}
    index = int(np.argmax(work))
    found: dict[State, float] = {}
    for parts in _counts(sketch.tree.candidates[index].length):
        if deadline.is_over:
            break
        state = start.to((*start.parts[:index], parts, *start.parts[index + 1 :]))
        sketch.measure(index, parts)
        came = sketch.estimate(state.parts, Goal(None, None))
        if came is not None:
            found[state] = came.seconds
    return dict(sorted(found.items(), key=lambda item: item[1]))


def leading(
    sketch: Sketch, start: State, times: tuple[float, ...], deadline: Deadline
) -> tuple[list[State], tuple[float, ...]]:
    """Return states that are planned first where a whole front is searched, and the times of the front.

    They are the fastest state, that of most parts which takes little longer than the whole, and those that
    split the program, and the first layers of it alone, layer by layer in as many parts.

    Args:
        sketch: measures states.
        start: the state that splits nothing.
        times: at which bytes are to be least: the first two are the whole's, and a little more.
        deadline: after it, nothing is measured any more.
    """
    found = quickest(sketch, start, deadline)
    if not times:
        return [], ()
    within = [state for state, seconds in found.items() if seconds <= max(times[:2])]
    finest = sorted(within, key=lambda state: -max(state.parts))
    by_layer = list(_layered(sketch, start, finest[0], deadline)) if finest else []
    return list(dict.fromkeys([*list(found)[:1], *finest[:1], *by_layer[:AHEAD]])), with_fastest(times, found)


def _layered(sketch: Sketch, start: State, finest: State, deadline: Deadline) -> Iterator[State]:
    """Yield the states that split all that the forward makes layer by layer, in as many parts, once measured.

    Those that leave the head out are measured too; what is split beside them is chosen later.
    """
    most = max(finest.parts)
    axis = sketch.tree.candidates[finest.parts.index(most)].axis
    widest = 0
    for index, one in enumerate(sketch.tree.candidates):
        possible = [parts for parts in _counts(one.length) if parts <= most]
        if one.source != "layers" or one.axis != axis or not possible or deadline.is_over:
            continue
        sketch.measure(index, max(possible))
        once = sum(not run.k for run in one.every)
        widest = max(widest, once)
        if once == widest:
            yield start.to((*start.parts[:index], max(possible), *start.parts[index + 1 :]))


def with_fastest(times: tuple[float, ...], found: dict[State, float]) -> tuple[float, ...]:
    """Return times at which bytes are to be least, that of the fastest state too where it is clearly less.

    Example:
        >>> from peakfold.plan.search.states import State
        >>> with_fastest((1.0, 1.1), {State((4,), 0): 0.9}), with_fastest((1.0, 1.1), {State((4,), 0): 0.99})
        ((0.909, 1.0, 1.1), (1.0, 1.1))
    """
    fastest = min(found.values(), default=times[0])
    return (round(BESIDE * fastest, 6), *times) if fastest < FASTER * times[0] else times


def _counts(length: int) -> list[int]:
    possible = choices(length)
    return list(dict.fromkeys(n for n in (*WIDE, length) if n in possible and n <= max(WIDE)))


def _work(sketch: Sketch, index: int) -> float:
    """Seconds of a candidate that is one loop."""
    prints = sketch.footprints(index)
    return prints[0].seconds if len(prints) == 1 else 0.0
