"""The first run of a program in its arena, on a device whose allocator nobody has tried with it."""

from peakfold.bridge.runtime.verify import Observed, judge
from peakfold.errors import PeakfoldError
from peakfold.pipeline import prove
from peakfold.pipeline.program import Program
from peakfold.pipeline.task import Task


def is_due(task: Task) -> bool:
    """Whether a program is not taken for what it was planned to be before it was run."""
    return task.device != "cpu"


def why_not(task: Task, program: Program) -> str:
    """Run a program in its arena and without, on copies; return what is not as planned, or nothing.

    All that it asks for is to be served from the arena, up to its highest byte, and the results are to have
    the same bits. Where the program itself gives other bits from run to run, that is left to the comparison
    with eager.
    """
    try:
        inside = prove.watch(task, program)
    except (PeakfoldError, RuntimeError) as error:
        return str(error).partition("\n")[0]
    return _why_other_bytes(program, inside) or _why_other_bits(task, program, inside)


def _why_other_bytes(program: Program, inside: Observed) -> str:
    layout, use, measured = program.layout, inside.use, inside.measured
    assert layout is not None
    if use is None:
        return "there was no room for it"
    if use.ordinary or use.elsewhere:
        named = ", ".join(use.named) or "on other streams or threads"
        return f"{use.ordinary + use.elsewhere} requests were not as planned: {named}"
    if use.high_water != layout.own:
        return f"{use.high_water} bytes of it were used instead of {layout.own}"
    more = 0 if measured is None else measured.peak_bytes - measured.before_bytes
    return f"{more} bytes were taken beside it" if more else ""


def _why_other_bits(task: Task, program: Program, inside: Observed) -> str:
    plain = program.planned_only()
    outside = prove.watch(task, plain)
    found = judge(outside, inside)
    if found.bit_equal or not judge(outside, prove.watch(task, plain)).bit_equal:
        return ""
    return f"{found.worst} has other bits there than without it"
