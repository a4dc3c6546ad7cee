"""Search, run what was found, and search again with tighter bounds until what was asked for holds."""

from dataclasses import dataclass, replace
from datetime import date

from peakfold.bridge.runtime.verify import Observed
from peakfold.errors import InfeasibleError
from peakfold.pipeline import proof_cache, prove
from peakfold.pipeline.arena import over
from peakfold.pipeline.arena_attempts import try_in_arena
from peakfold.pipeline.program import Program, emit_plan
from peakfold.pipeline.proof_cache import Calibration, Proof, Times
from peakfold.pipeline.reporting import Facts
from peakfold.pipeline.repriced import Repriced, repriced
from peakfold.pipeline.run import Run
from peakfold.pipeline.search import Bounds
from peakfold.pipeline.tried import Tried, try_once
from peakfold.report.words import asked

ATTEMPTS = 4
MARGIN = 0.995
SLACK = 0.98
SLACK_TRIES = 2


def within(run: Run, facts: Facts, plain: Program) -> Tried:
    """Search, run, and search again with tighter bounds until what was measured is within what was asked."""
    bounds = Bounds(facts.budget, _seconds_limit(run, plain, _calibration(run, facts, plain)))
    ruler = Ruler(run, facts, plain)
    tries: list[Tried] = []
    good: list[Tried] = []
    for attempt in range(ATTEMPTS if run.asked.plan is None else 1):
        if attempt:
            run.stages.progress("search", 0.0, f"{attempt} measured, once more with corrected times")
        try:
            tried = (
                try_in_arena(run, facts, bounds)
                if facts.in_arena
                else try_once(run, facts, bounds, ruler.prices)
            )
        except InfeasibleError:
            if not tries:
                raise
            break
        if not run.runnable or not (run.asked.verify or run.asked.latency):
            return _kept_to(run, tried)
        tried = _measure(run, tried, plain)
        tries.append(tried)
        bounds, fits, slack = _corrected(run, tried, ruler, bounds)
        if fits:
            good.append(tried)
        if fits and not (slack and len(good) < SLACK_TRIES):
            break
    if not good:
        raise _not_within(run, tries[0])
    return min(good, key=lambda tried: tried.cost(run.asked))


def _calibration(run: Run, facts: Facts, plain: Program) -> float:
    """Return measured seconds of the program without recomputation over eager's, where a limit needs it."""
    if run.asked.latency is None or not facts.eager.measured:
        return 1.0
    key = proof_cache.key_of(run.numbers, plain)
    known = run.kept(f"{key}-plain", Calibration)
    if known is not None:
        run.note(f"the limit of time was set by times of {known.day}: same step, weights, batch and machine")
        return known.plain_over_eager
    with run.stages("verify", "timing eager"):
        taken = prove.seconds(run.task, {"plain": plain})
    found = taken["plain"] / taken["eager"]
    run.keep(f"{key}-plain", Calibration(found, f"{date.today()}"))
    return found


def _kept_to(run: Run, tried: Tried) -> Tried:
    """Refuse a given plan whose predicted peak is over the budget; the search keeps to it by itself."""
    budget = tried.facts.budget
    if budget is None or tried.program.peak <= budget:
        return tried
    raise _not_within(run, tried)


def _seconds_limit(run: Run, plain: Program, correction: float) -> float | None:
    """Return the latency limit in seconds as the simulator counts them.

    Args:
        run: the optimization.
        plain: the program without recomputation, whose predicted seconds stand for eager's.
        correction: what the measured ratio of a plan was over the predicted one.
    """
    if run.asked.latency is None:
        return None
    return run.asked.latency * plain.timeline.seconds / correction


def _measure(run: Run, tried: Tried, plain: Program) -> Tried:
    """Run a program, unless the very same one was run before; one in an arena is always run."""
    with run.stages("verify", "measuring"):
        key = proof_cache.key_of(run.numbers, tried.program)
        known = _known(run, tried, key)
        seen = (
            None if known is not None and not tried.program.in_arena else prove.watch(run.task, tried.program)
        )
        nbytes = _peak(seen, known)
        tried = replace(tried, seen=seen, figures=prove.Figures(nbytes))
        if not tried.facts.eager.measured:
            return tried
        times = _timed(run, tried.program, plain) if known is None else known.times
    facts = replace(tried.facts, eager=replace(tried.facts.eager, cpu_seconds=times.eager))
    figures = prove.Figures(nbytes, times.plan)
    return replace(tried, facts=facts, figures=figures, times=times, key=key, known=known)


def _known(run: Run, tried: Tried, key: str) -> Proof | None:
    """Return the proof that was made before; none where a plan is given, or a proof anew is asked for."""
    if run.asked.plan is not None or run.asked.again or not tried.facts.eager.measured:
        return None
    return run.kept(key, Proof)


def _peak(seen: Observed | None, known: Proof | None) -> int:
    if seen is not None and seen.measured is not None:
        return seen.measured.peak_bytes
    assert known is not None
    return known.peak_bytes


def _timed(run: Run, program: Program, plain: Program) -> Times:
    taken = prove.seconds(run.task, {"plan": program, "plain": plain})
    return Times(taken["eager"], taken["plan"], taken["plain"] / taken["eager"], f"{date.today()}")


@dataclass
class Ruler:
    """What times are predicted by: the profile, and once a plan missed its time, what operators took in it.

    Attributes:
        run: the optimization.
        facts: what is known of it.
        plain: the program without recomputation, whose predicted seconds stand for eager's.
        prices: what operators took where they ran; None while the profile is all that is known.
    """

    run: Run
    facts: Facts
    plain: Program
    prices: Repriced | None = None

    def learn(self, tried: Tried) -> bool:
        """Take the prices of a plan that missed its time, once; whether times are predicted otherwise now."""
        if self.prices is not None or not self._learns or tried.times is None:
            return False
        programs = {"plain": (self.run.task, self.plain), "plan": (self.run.task, tried.program)}
        times = tried.times
        seconds = {"plain": times.plain_over_eager * times.eager, "plan": times.plan}
        with self.run.stages("verify", "timing operators where they run"):
            self.prices = repriced(programs, seconds)
        return self.prices is not None

    @property
    def _learns(self) -> bool:
        asked = self.run.asked
        searched = asked.plan is None and not asked.resume and not asked.save_search
        return searched and asked.fission and not self.facts.in_arena and self.facts.known is None

    def seconds(self, program: Program) -> float:
        """Return the predicted seconds of a program."""
        if self.prices is None:
            return program.timeline.seconds
        costs_of = self.prices.over(self.run.costs)
        captured = self.facts.captured
        costs = self.prices.costs(captured.graph, self.facts.costs)
        return emit_plan(captured, program.plan, costs, costs_of=costs_of).timeline.seconds


def _corrected(run: Run, tried: Tried, ruler: Ruler, bounds: Bounds) -> tuple[Bounds, bool, bool]:
    """Return bounds that make up for what prediction missed, whether all fits, and whether time is left."""
    figures, budget = tried.figures, tried.facts.budget
    assert figures.peak_bytes is not None
    over_memory = budget is not None and figures.peak_bytes > budget
    ratio, latency = _ratio(figures.cpu_seconds, tried.facts.eager.cpu_seconds), run.asked.latency
    memory, seconds = bounds.memory, bounds.seconds
    if over_memory and memory is not None:
        memory -= figures.peak_bytes - tried.program.peak
    if ratio is None or latency is None:
        return Bounds(memory, seconds), not over_memory, False
    over_time, slack = ratio > latency, memory is None and ratio < SLACK * latency
    if over_time or slack:
        known = None if ruler.learn(tried) else seconds
        corrected = latency * ruler.seconds(tried.program) / ratio
        seconds = MARGIN * (min(corrected, known or corrected) if over_time else corrected)
    return Bounds(memory, seconds), not (over_memory or over_time), slack


def _not_within(run: Run, tried: Tried) -> InfeasibleError:
    figures, layout = tried.figures, tried.program.layout
    peak = figures.peak_bytes or tried.program.peak
    if layout is not None and tried.facts.budget is not None and peak > tried.facts.budget:
        bound = max(tried.kept.lower_bound_bytes - tried.facts.resident, 0)
        beside, given = peak - tried.program.peak, run.asked.plan is not None
        return over(layout, tried.facts.arena_budget, bound, proved=False, given=given, beside=beside)
    ratio = _ratio(figures.cpu_seconds, tried.facts.eager.cpu_seconds)
    time = "" if ratio is None else f" at {ratio:.3f}x eager's time"
    error = InfeasibleError(
        stage="search",
        what="no plan measured within the limits"
        if run.asked.plan is None
        else "the plan is over the limits",
        expected=asked(replace(run.asked.limits, memory_bytes=tried.facts.budget)),
        got=f"{peak:,} bytes{time}",
        hint="allow more memory or more time" if run.asked.plan is None else "change the plan, or its limits",
    )
    error.lowest_peak_bytes = peak
    error.lower_bound_bytes = tried.kept.lower_bound_bytes
    return error


def _ratio(part: float | None, whole: float | None) -> float | None:
    return part / whole if part is not None and whole else None
