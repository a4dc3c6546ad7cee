"""Eager as it was measured: now, or before, of the very same step on the same machine."""

from datetime import date

from peakfold.bridge.capture import Captured
from peakfold.bridge.runtime.verify import Observed
from peakfold.errors import CaptureError
from peakfold.pipeline import proof_cache, prove
from peakfold.pipeline.machine import ROOM, free_bytes
from peakfold.pipeline.proof_cache import Original
from peakfold.pipeline.run import Run
from peakfold.report.model import Eager, Timeline


def original(run: Run, captured: Captured, before: Timeline) -> tuple[Eager, Observed | None]:
    """Return eager's peak, and what it left: measured where it may be run, else predicted.

    Where it was measured before, it is not run: what it left is None then, and `observed` gives it.

    Args:
        run: the optimization.
        captured: from the user's objects, before any rewrite.
        before: eager's memory, predicted.
    """
    predicted = Eager(peak_bytes=before.peak_bytes)
    share = run.asked.memory is not None and run.asked.memory.share is not None
    if not run.runnable or not (run.asked.verify or share or run.asked.latency):
        return predicted, None
    key = proof_cache.key_of_eager(run.numbers, captured, before)
    known = None if run.asked.again else run.kept(key, Original)
    if known is not None:
        run.note(f"eager was measured on {known.day}: same step, weights, batch and machine")
        _say_what_is_not_finite(run, known.is_finite)
        return Eager(peak_bytes=known.peak_bytes, measured=True), None
    needed = (predicted.peak_bytes or 0) + run.task.resident()
    if needed > ROOM * free_bytes(run.task.device):
        run.note("eager does not fit on this device: its figures are predicted")
        return predicted, None
    seen = observed(run)
    assert seen.measured is not None
    _say_what_is_not_finite(run, seen.is_finite)
    run.keep(key, Original(seen.measured.peak_bytes, seen.is_finite, f"{date.today()}"))
    return Eager(peak_bytes=seen.measured.peak_bytes, measured=True), seen


def observed(run: Run) -> Observed:
    """Run eager and return what it left.

    Raises:
        CaptureError: it fails; fake tensors do not look at all that eager does, at types for example.
    """
    try:
        with run.stages("verify", "running eager"):
            return prove.watch(run.task, None)
    except (RuntimeError, TypeError, ValueError, LookupError, AttributeError) as error:
        raise CaptureError(
            stage="verify",
            what="the original fails when it is run",
            got=f"{type(error).__name__}: {error}",
            hint="run the step without peakfold: it has to work there first",
        ) from error


def _say_what_is_not_finite(run: Run, is_finite: bool) -> None:
    if not is_finite:
        run.note("the loss is not finite: NaN or infinite in eager, and as it is in the program")
