"""The order of first runs of least peak, for graphs where order alone can matter."""

from peakfold.plan.reorder.condense import nearest
from peakfold.plan.reorder.incremental import in_parts
from peakfold.plan.reorder.problem import problem_of
from peakfold.plan.schedule.frame import Frame

SMALL = 400
"""Steps of a training graph up to which it is ordered: the peak of a large one is behind its loss."""
LIMIT = 4000
"""Downsets of each part between waists."""


def least_peak(frame: Frame) -> tuple[int, ...]:
    """Return the order in which the plan that drops nothing has the least peak that is found.

    Returns:
        Node ids of all steps; none where the order of the frame is as good, or none was found: where values
        take each other's places, no step that replaces one comes after all readers of the old value.
    """
    tables = frame.tables
    backward = any(tables.graph.node[int(node)].origin.phase == "backward" for node in tables.nodes)
    if backward and len(frame.base) > SMALL:
        return ()
    problem, steps = problem_of(frame)
    program = range(problem.size)
    known = nearest(problem, program)
    if len(known) < problem.size:
        return ()
    found = in_parts(problem, known, LIMIT)
    if found.peak >= problem.peak(program):
        return ()
    late = sorted(
        (step for step in range(tables.steps) if frame.late[step]), key=lambda s: int(frame.rank[s])
    )
    return tuple(int(tables.nodes[step]) for step in (*(steps[item] for item in found.order), *late))
