"""Decoding on arrays: from the modes of gaps and tails to runs, peak and seconds, in microseconds.

The same as `sequence` and `lower` followed by the simulator, compiled by numba; the tests hold them
equal. The order of work: base runs (with repeated ones before them), updates put between, one pass
backwards over all runs that finds each death and sums the live bytes.
"""

from peakfold.plan.schedule.code import Code, Modes, Outcome, Scratch
from peakfold.plan.schedule.kernel import compiled
from peakfold.plan.schedule.profile import profile
from peakfold.plan.schedule.runs import base_runs, with_updates


@compiled
def decode(code: Code, scratch: Scratch, modes: Modes, target: float, limit: float) -> Outcome:
    """Return the Outcome of a vector of modes.

    Args:
        code: the graph.
        scratch: where to work; holds the runs and the bytes during each afterwards.
        modes: of each gap and tail; see `frame`.
        target: bytes above which ``excess`` counts.
        limit: seconds at which to stop.
    """
    length, seconds = base_runs(code, scratch, modes, limit)
    if length < 0:
        return Outcome(-1, 0, seconds, 0.0, 0)
    length = with_updates(code, scratch, length)
    for i in range(len(code.late)):
        seconds += code.seconds[code.late[i]]
    peak, excess, at = profile(code, scratch, length, target)
    return Outcome(length, peak, seconds, excess, at)
