"""A program for another call, in the middle of a training: which limits hold for it, and which give way."""

import warnings
from dataclasses import replace
from typing import Protocol, TypeVar

from peakfold.errors import InfeasibleError, PeakfoldError
from peakfold.pipeline.request import Request

Found = TypeVar("Found", covariant=True)
ANEW = "made anew for another call than the first: not compared with eager"
IN_BYTES = "no program keeps {} of eager's peak in this call: the {:,} bytes of the first call hold"
NO_TIME = "no program for this call was found within {:g}x eager's time: the fastest is used"


class LatencyWarning(RuntimeWarning):
    """A step goes on with a program that is over the limit of its time."""


class Optimized(Protocol[Found]):
    """Optimizes for one call."""

    def __call__(self, asked: Request, *, notes: tuple[str, ...]) -> Found:
        """Return what comes of a request, with notes for its report."""


def made_anew(optimized: Optimized[Found], asked: Request, first_bytes: int | None) -> Found:
    """Optimize for a call that no program of a step holds for, in the middle of a training.

    A budget in bytes is kept, or the call is refused before anything is changed. A share of eager's peak, of
    a smaller batch less than any program takes, is then the bytes that it was for the first call. A limit of
    the time that no program for this call was measured within is no reason to end a training: it is warned
    of, and the fastest program within the bytes is used.

    Args:
        optimized: optimizes for this call, with notes for the report.
        asked: what was asked of the step.
        first_bytes: the budget of the first call, where there was one.

    Raises:
        InfeasibleError: no program for this call keeps the budget of bytes.
    """
    notes = (ANEW,) if asked.verify else ()
    asked = replace(asked, verify=False, plan=None)
    budget = asked.memory
    try:
        return optimized(asked, notes=notes)
    except InfeasibleError as error:
        found = error
    if budget is not None and budget.share is not None and first_bytes is not None:
        asked = replace(asked, memory=replace(budget, nbytes=first_bytes, share=None))
        notes = (*notes, IN_BYTES.format(budget.text, first_bytes))
        try:
            return optimized(asked, notes=notes)
        except InfeasibleError as error:
            found = error
    if asked.latency is None:
        raise found
    said = NO_TIME.format(asked.latency)
    made = optimized(replace(asked, latency=None), notes=(*notes, said))
    warnings.warn(_warning(said, found), stacklevel=2)
    return made


def _warning(said: str, found: InfeasibleError) -> LatencyWarning:
    told = PeakfoldError(
        stage="step",
        what=said,
        expected=found.expected,
        got=found.got,
        hint="if that is too slow, make the step with more time or more memory",
    )
    return LatencyWarning(str(told))
