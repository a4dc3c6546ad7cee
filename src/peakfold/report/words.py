"""Sentences that every face says the same way."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from peakfold.report.arena import Arena
from peakfold.report.model import Decision, Equality, Limits, Report
from peakfold.report.units import bytes_text, error_text, ratio_text, seconds_text

Mood = Literal["good", "bad", "open"]


@dataclass(frozen=True)
class Verdict:
    """One thing that was asked, and whether it holds; ``open`` where it was not checked."""

    mood: Mood
    topic: str
    text: str


def verdicts(report: Report) -> tuple[Verdict, ...]:
    """Return the answers that a reader wants first: memory, time, equality, and the arena if there is one."""
    arena = () if report.arena is None else (arena_verdict(report.arena),)
    return (_memory(report), _time(report), equality(report.equal), *arena)


def arena_verdict(arena: Arena) -> Verdict:
    """Return in words what an arena takes, and whether the program ran in it."""
    text = f"{bytes_text(arena.nbytes)}, {100 * arena.gap:.2f} % above the bound"
    held = arena.budget_bytes is None or arena.nbytes <= arena.budget_bytes
    if arena.budget_bytes is not None:
        text += f"; {'within' if held else 'OVER'} {bytes_text(arena.budget_bytes)}"
    if not arena.runs:
        return Verdict("open" if held else "bad", "Arena", f"{text}; planned, not run")
    if arena.served is not None:
        text += f"; {arena.served} allocations served, {arena.ordinary} by the ordinary allocator"
    return Verdict("good" if held and not arena.ordinary else "bad", "Arena", text)


def asked(limits: Limits) -> str:
    """Return in words what was asked for.

    Example:
        >>> asked(Limits(193_500_000, 1.1, "50%"))
        'at most 193.5 MB (50%), at most 1.10x the time of eager'
        >>> asked(Limits())
        'no limits'
    """
    parts = []
    if limits.memory_bytes is not None:
        note = f" ({limits.text})" if limits.text else ""
        parts.append(f"at most {bytes_text(limits.memory_bytes)}{note}")
    if limits.latency is not None:
        parts.append(f"at most {ratio_text(limits.latency)} the time of eager")
    return ", ".join(parts) or "no limits"


def first_decisions(decisions: Sequence[Decision], count: int) -> tuple[Decision, ...]:
    """Return the first recomputations, and every decision of another kind."""
    again = [decision for decision in decisions if decision.action == "recompute"]
    return (*again[:count], *(decision for decision in decisions if decision.action != "recompute"))


def peak_words(report: Report) -> str:
    """Return in words where the peak is, what it is made of and what could be freed."""
    line = report.timelines.after
    if line is None or not line.steps:
        return f"{report.target}: nothing was planned, so there is no peak to explain"
    step, kinds = line.peak_step, sorted(line.at_peak.items(), key=lambda item: -item[1])
    parts = ", ".join(f"{bytes_text(nbytes)} of {kind}" for kind, nbytes in kinds)
    free = sum(tensor.nbytes for tensor in report.live_at_peak if tensor.recompute_seconds is not None)
    return (
        f"{report.target}: the predicted peak is {bytes_text(line.peak_bytes)}, while {line.steps[step]} "
        f"runs (operator {step + 1} of {len(line.steps)}).\nIt is made of {parts}.\n{bytes_text(free)} of it "
        "could be computed again instead of being kept; the rest cannot be freed there."
    )


def equality(equal: Equality) -> Verdict:
    """Return in words whether both programs compute the same."""
    if equal.ok is None:
        return Verdict("open", "Equality", "not checked")
    over = f" over {equal.steps} steps" if equal.steps else ""
    batch = f", batch {equal.batch}" if equal.batch else ""
    errors = f"float64 error {error_text(equal.max_error)}, bound {error_text(equal.bound)}"
    if equal.widened:
        errors += ", the model's own casts widened in both"
    if equal.undecided:
        errors += f", {equal.undecided} numbers left out that rounding alone decides in eager itself"
    if not equal.bound:
        errors = f"error {error_text(equal.max_error)}, not compared in float64: its program differs"
    if not equal.ok:
        return Verdict("bad", "Equality", f"NOT equal{over}: {errors}{batch}")
    how = "every bit" if equal.bit_equal else "equal"
    when = f"; proved on {equal.proved_before}, not again now" if equal.proved_before else ""
    return Verdict("good", "Equality", f"{how}{over}; {errors}{batch}{when}")


def _memory(report: Report) -> Verdict:
    peak, limit = report.peak_bytes, report.limits.memory_bytes
    if peak is None:
        return Verdict("open", "Memory", "not planned")
    how = "predicted" if report.optimized.peak_bytes is None else "measured"
    eager = "eager" if report.eager.measured else "eager (predicted)"
    text = f"{bytes_text(peak)} {how}, {ratio_text(report.memory_ratio)} {eager}"
    if limit is None:
        return Verdict("good", "Memory", text)
    held = peak <= limit
    return Verdict(
        "good" if held else "bad", "Memory", f"{text}; {'within' if held else 'OVER'} {bytes_text(limit)}"
    )


def _time(report: Report) -> Verdict:
    measured, limit = report.latency_ratio, report.limits.latency
    ratio = report.optimized.predicted_latency_ratio if measured is None else measured
    if ratio is None:
        return Verdict("open", "Time", "not known")
    how = "predicted" if measured is None else "measured"
    text = f"{ratio_text(ratio)} eager, {how}"
    if measured is not None:
        spent, eager = report.optimized.cpu_seconds, report.eager.cpu_seconds
        text += f" ({seconds_text(spent)} against {seconds_text(eager)})"
    if limit is None:
        return Verdict("good", "Time", text)
    held = ratio <= limit
    return Verdict("good" if held else "bad", "Time", f"{text}; {'within' if held else 'OVER'} {limit:g}x")
