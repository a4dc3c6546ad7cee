"""XLA's greedy rematerialization: walk the schedule; over the limit, compute the cheapest value again.

OpenXLA, ``HloRematerialization``: at each step whose bytes exceed the limit, the live value of the least cost
per byte saved, not used there and used later, is dropped and computed again right before its next use.
What a value saves is its own bytes, less those of what it is computed from that nothing else keeps alive
there (``MemoryReducedIfRematerialized``). The walk never goes back; where nothing saves any, it goes on.
"""

from peakfold.plan.literature.subject import Baseline, Subject, best
from peakfold.plan.schedule.code import Code, Scratch, encode, scratch
from peakfold.plan.schedule.profile import profile
from peakfold.plan.schedule.runs import with_updates


def xla(subject: Subject, memory: int) -> Baseline:
    """Return the greedy plan for a budget in bytes."""
    code = encode(subject.frame)
    work, runs, at = scratch(code), list(subject.steps), 0
    room = code.capacity - len(code.late)
    while at < len(runs) < room:
        at = _next_over(code, work, runs, at, memory)
        found = _cheapest(subject, runs, at) if at < len(runs) else None
        if found is None:
            at += 1
        else:
            runs.insert(found[1], found[0])
    kept = subject.from_modes("xla", subject.kept())
    return best((kept, subject.from_runs("xla", runs)), memory)


def _next_over(code: Code, work: Scratch, runs: list[int], at: int, memory: int) -> int:
    """Return the first run, from one on, whose bytes exceed the limit; their number where none does."""
    work.base_runs[: len(runs)] = runs
    length = with_updates(code, work, len(runs))
    profile(code, work, length, float(memory))
    late = set(code.late.tolist())
    during = [
        most
        for step, most in zip(work.runs[:length].tolist(), work.during[:length].tolist(), strict=True)
        if step not in late
    ]
    return next((i for i in range(at, len(runs)) if during[i] > memory), len(runs))


def _cheapest(subject: Subject, runs: list[int], at: int) -> tuple[int, int] | None:
    """Return the step of the least cost per byte saved at a run, and where it runs again."""
    nbytes, seconds = subject.tables.nbytes, subject.tables.seconds
    reads = _next_reads(subject, runs, at)
    used = {*subject.needs[runs[at]], *subject.makes[runs[at]]}
    best_rate, found = float("inf"), None
    for step in dict.fromkeys(runs[:at]):
        alive = [v for v in subject.makes[step] if v in reads]
        if not alive or not subject.frame.droppable[step] or not used.isdisjoint(subject.makes[step]):
            continue
        lost = (v for v in subject.needs[step] if v not in reads and v not in used)
        saved = int(sum(nbytes[v] for v in alive) - sum(nbytes[v] for v in lost))
        if saved > 0 and (rate := float(seconds[step]) / saved) < best_rate:
            best_rate, found = rate, (step, min(reads[v] for v in alive))
    return found


def _next_reads(subject: Subject, runs: list[int], at: int) -> dict[int, int]:
    """Return the next run that reads each storage alive after a run."""
    reads: dict[int, int] = {}
    for i in range(len(runs) - 1, at, -1):
        for v in subject.makes[runs[i]]:
            reads.pop(v, None)
        reads.update(dict.fromkeys(subject.needs[runs[i]], i))
    return reads
