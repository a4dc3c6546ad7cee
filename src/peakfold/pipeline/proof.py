"""The proof of what was found: against eager, whole or in part, now or before."""

from dataclasses import replace

from peakfold.bridge.runtime.verify import Observed
from peakfold.pipeline import prove
from peakfold.pipeline.machine import ROOM, free_bytes
from peakfold.pipeline.original import observed
from peakfold.pipeline.proof_cache import Proof
from peakfold.pipeline.run import Run
from peakfold.pipeline.tried import Tried
from peakfold.report.model import Equality

SAME = "same program, weights, batch and machine"
FLOAT64 = 2
COPIES = 3


def proved(run: Run, tried: Tried, seen: Observed | None) -> Tried:
    """Compare with eager: at the full batch where eager fits in float64, else at a part of it."""
    known = tried.known
    if known is not None:
        run.note(f"times are as measured on {known.times.day}: same program, weights, batch and machine")
    if not run.asked.verify or not run.runnable:
        return tried
    if known is not None and tried.seen is None:
        run.note(f"proved equal on {known.times.day}, not run again: {SAME}", *_one_side(known.one_side))
        return replace(tried, equality=_as_before(known))
    if seen is None and tried.facts.eager.measured:
        seen = observed(run)
    needed = FLOAT64 * (tried.facts.eager.peak_bytes or 0) + COPIES * run.task.resident()
    share = ROOM * free_bytes(run.task.device) / max(needed, 1)
    with run.stages("verify", "comparing with eager"):
        if share >= 1 and seen is not None and tried.seen is not None:
            return replace(tried, equality=_equal(run, tried, seen, tried.seen))
        found = prove.equal_in_part(run.task, tried.program, share)
    if found.ok is None:
        run.note("eager does not fit, and neither does the plan a smaller batch: not compared")
    return replace(tried, equality=found)


def _as_before(known: Proof) -> Equality:
    return Equality(
        ok=True,
        max_error=known.max_error,
        bound=known.bound,
        batch="full",
        steps=prove.STEPS,
        bit_equal=known.bit_equal,
        widened=known.widened,
        undecided=known.undecided,
        proved_before=known.times.day,
    )


def _equal(run: Run, tried: Tried, eager: Observed, found: Observed) -> Equality:
    """Compare with eager; what float64 came to before, for the very same program and tensors, is kept."""
    equality = prove.equal(run.task, tried.program, eager, found, known=tried.known)
    why = prove.one_side(run.task, tried.program)
    run.note(*_one_side(why))
    if tried.known is not None:
        run.note(f"the comparison in float64 is from {tried.known.times.day}: {SAME}")
        return equality
    error, bound, peak = equality.max_error, equality.bound, tried.figures.peak_bytes
    if equality.ok and tried.times and error is not None and bound is not None and peak is not None:
        seen = (bool(equality.bit_equal), equality.widened, equality.undecided, why)
        run.keep(tried.key, Proof(error, bound, tried.times, peak, *seen))
    return equality


def _one_side(why: str) -> tuple[str, ...]:
    return (f"only the sides of branches that this batch leads to were compared: {why}",) if why else ()
