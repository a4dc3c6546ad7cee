"""The proof of what was found: against eager, whole or in part, now or before."""

from dataclasses import replace

from peakfold.bridge.runtime.verify import Observed
from peakfold.pipeline import proof_cache, prove
from peakfold.pipeline.machine import ROOM, free_bytes
from peakfold.pipeline.proof_cache import Proof
from peakfold.pipeline.run import Run
from peakfold.pipeline.tried import Tried
from peakfold.report.model import Equality

FLOAT64 = 2
COPIES = 3


def proved(run: Run, tried: Tried, seen: Observed | None) -> Tried:
    """Compare with eager: at the full batch where eager fits in float64, else at a part of it."""
    if tried.known is not None:
        day = tried.known.times.day
        run.note(f"times are as measured on {day}: same program, weights, batch and machine")
    if not run.asked.verify or not run.runnable:
        return tried
    needed = FLOAT64 * (tried.facts.eager.peak_bytes or 0) + COPIES * run.task.resident()
    share = ROOM * free_bytes(run.task.device) / max(needed, 1)
    with run.stages("verify", "comparing with eager"):
        if share >= 1 and seen is not None and tried.seen is not None:
            return replace(tried, equality=_equal(run, tried, seen, tried.seen))
        found = prove.equal_in_part(run.task, tried.program, share)
    if found.ok is None:
        run.note("eager does not fit, and neither does the plan a smaller batch: not compared")
    return replace(tried, equality=found)


def _equal(run: Run, tried: Tried, eager: Observed, found: Observed) -> Equality:
    """Compare with eager; what float64 came to before, for the very same program and tensors, is kept."""
    equality = prove.equal(run.task, tried.program, eager, found, known=tried.known)
    why = prove.one_side(run.task, tried.program)
    if why:
        run.note(f"only the sides of branches that this batch leads to were compared: {why}")
    if tried.known is not None:
        run.note("the comparison in float64 is from before: same program, weights, batch and machine")
    elif equality.ok and tried.times and equality.max_error is not None and equality.bound is not None:
        proof = Proof(equality.max_error, equality.bound, tried.times, equality.widened, equality.undecided)
        fault = proof_cache.store(run.proofs, tried.key, proof)
        run.note(*([] if fault is None else [fault]))
    return equality
