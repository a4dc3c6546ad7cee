"""Points of a front, run: their bytes, their times and whether they compute the same."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from peakfold.pipeline import prove
from peakfold.pipeline.exact import Precise
from peakfold.pipeline.in_place import Shares, corrected
from peakfold.pipeline.program import Program
from peakfold.pipeline.task import Task
from peakfold.report.progress import Progress

PLAIN = "plain"


@dataclass(frozen=True, slots=True)
class Measured:
    """What a program came to; ratios are to eager.

    Attributes:
        memory_ratio, latency_ratio: by running it.
        corrected_latency_ratio: predicted from what operators took in other programs.
        equal: whether it computes the same.
    """

    memory_ratio: float
    latency_ratio: float
    corrected_latency_ratio: float
    equal: bool | None


def measured(
    task: Task,
    programs: Mapping[str, tuple[Precise, Program]],
    plain: Program,
    progress: Progress,
    others: Mapping[str, Callable[[], object]],
    clocks: Mapping[str, Shares],
) -> tuple[dict[str, Measured], dict[str, float]]:
    """Measure each program; return what it came to, and the latency ratios of all that ran.

    Bytes are measured first, then all times in one run.

    Args:
        task: what is optimized.
        programs: by name.
        plain: the program that drops nothing.
        progress: told where the work is.
        others: steps that are timed in turn with the programs.
        clocks: what the steps of some programs took where they ran.
    """
    progress("verify", 0.0, "running eager")
    eager = prove.watch(task, None)
    assert eager.measured is not None
    peaks, equal = {}, {}
    for count, (text, (mine, program)) in enumerate(programs.items()):
        progress("verify", count / len(programs), f"point {count + 1} of {len(programs)}")
        seen = prove.watch(mine.task, program)
        assert seen.measured is not None
        peaks[text] = seen.measured.peak_bytes / eager.measured.peak_bytes
        equal[text] = prove.equal(mine.task, program, eager, seen, precise=mine).ok
    timed = {**{text: program for text, (_, program) in programs.items()}, PLAIN: plain}
    progress("verify", 1.0, f"{len(timed) + len(others) + 1} programs in turn")
    taken = prove.seconds(task, timed, others)
    tasks = {**{text: mine.task for text, (mine, _) in programs.items()}, PLAIN: task}
    subjects = {text: (tasks[text], program) for text, program in timed.items()}
    foretold = corrected(subjects, taken, PLAIN, lambda _: clocks)
    ratios = {text: seconds / taken["eager"] for text, seconds in taken.items()}
    ran = {
        text: Measured(peaks[text], ratios[text], foretold[text] / taken["eager"], equal[text])
        for text in programs
    }
    return ran, ratios
