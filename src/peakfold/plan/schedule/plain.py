"""The simulator's twin in plain Python: slow, short, and the oracle of `kernel.run`.

It keeps sets and dictionaries where the kernel keeps arrays, and follows the same order of
floating-point operations, so that the two agree to the last bit.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from peakfold.cost.costs import Link
from peakfold.plan.schedule.kernel import (
    ARRIVE,
    COMMIT,
    COMPUTE,
    FREE,
    LOOP,
    OFFLOAD,
    PACK,
    PASSES,
    PREFETCH,
    RELEASE,
    UNPACK,
)


@dataclass
class _Loop:
    row: int
    parts: int
    clock: float
    busy: "tuple[float, float, float]"
    host: int


@dataclass
class Trace:
    """What `run` found; the names are those of `kernel.run`."""

    live: list[int] = field(default_factory=list)
    during: list[int] = field(default_factory=list)
    begin: list[float] = field(default_factory=list)
    end: list[float] = field(default_factory=list)
    peak: int = 0
    peak_row: int = -1
    seconds: float = 0.0
    busy: float = 0.0
    out_busy: float = 0.0
    in_busy: float = 0.0
    host_peak: int = 0


class _Machine:
    """Three queues and one memory."""

    def __init__(self, resident: int, link: Link) -> None:
        self.link = link
        self.trace = Trace(peak=resident)
        self.now = resident
        self.clock = self.out_free = self.in_free = 0.0
        self.host = 0
        self.ready: dict[int, tuple[float, int]] = {}
        self.gone: dict[int, tuple[float, int]] = {}
        self.loops: list[_Loop] = []

    def record(self, row: int, most: int, begin: float, end: float) -> None:
        trace = self.trace
        if most > trace.peak:
            trace.peak, trace.peak_row = most, row
        trace.live.append(self.now)
        trace.during.append(most)
        trace.begin.append(begin)
        trace.end.append(end)

    def compute(self, row: int, nbytes: int, seconds: float, hidden: int) -> None:
        start = self.clock
        self.now += nbytes
        self.clock = start + seconds
        self.trace.busy += seconds
        self.record(row, self.now + hidden, start, self.clock)

    def free(self, row: int, nbytes: int) -> None:
        most = self.now
        self.now -= nbytes
        self.record(row, most, self.clock, self.clock)

    def commit(self, row: int, nbytes: int) -> None:
        start = self.clock
        self.clock = start + nbytes / self.link.copy
        self.trace.busy += self.clock - start
        self.record(row, self.now, start, self.clock)

    def pack(self, row: int, taken: int, given: int, whole: int) -> None:
        start = self.clock
        self.clock = start + PASSES * whole / self.link.copy
        self.trace.busy += self.clock - start
        most = self.now + taken
        self.now += taken - given
        self.record(row, most, start, self.clock)

    def offload(self, row: int, item: int, nbytes: int) -> None:
        start = max(self.clock, self.out_free)
        stop = start + (self.link.latency + nbytes / self.link.bandwidth)
        self.trace.out_busy += stop - start
        self.out_free = stop
        self.gone[item] = (stop, row)
        self.host += nbytes
        self.trace.host_peak = max(self.trace.host_peak, self.host)
        self.record(row, self.now, start, stop)

    def release(self, row: int, item: int, nbytes: int) -> None:
        self.clock = max(self.clock, self.gone[item][0] if item in self.gone else 0.0)
        most = self.now
        self.now -= nbytes
        self.record(row, most, self.clock, self.clock)

    def prefetch(self, row: int, item: int, nbytes: int) -> None:
        gone = self.gone[item][0] if item in self.gone else 0.0
        start = max(self.clock, self.in_free, gone)
        stop = start + (self.link.latency + nbytes / self.link.bandwidth)
        self.trace.in_busy += stop - start
        self.in_free = stop
        self.ready[item] = (stop, row)
        self.now += nbytes
        self.record(row, self.now, start, stop)

    def arrive(self, row: int, item: int, nbytes: int) -> None:
        self.clock = max(self.clock, self.ready[item][0] if item in self.ready else 0.0)
        self.host -= nbytes
        self.record(row, self.now, self.clock, self.clock)

    def loop(self, row: int, parts: int, nbytes: int) -> None:
        trace = self.trace
        self.now += nbytes
        busy = (trace.busy, trace.out_busy, trace.in_busy)
        self.loops.append(_Loop(row, parts, self.clock, busy, self.host))
        self.record(row, self.now, self.clock, self.clock)

    def finish(self, row: int, nbytes: int) -> None:
        trace, loop, start = self.trace, self.loops.pop(), self.clock
        part_out, part_in = trace.out_busy - loop.busy[1], trace.in_busy - loop.busy[2]
        more = loop.parts - 1
        shift = more * max(self.clock - loop.clock, part_out, part_in)
        self.clock += shift
        trace.busy += more * (trace.busy - loop.busy[0])
        trace.out_busy += more * part_out
        trace.in_busy += more * part_in
        self.host += more * (self.host - loop.host)
        trace.host_peak = max(trace.host_peak, self.host)
        self.out_free += shift if part_out > 0 else 0.0
        self.in_free += shift if part_in > 0 else 0.0
        for times in (self.ready, self.gone):
            times.update({i: (t + shift, r) for i, (t, r) in times.items() if r > loop.row})
        most = self.now
        self.now -= nbytes
        self.record(row, most, start, self.clock)


def run(
    kind: Sequence[int],
    index: Sequence[int],
    amount: Sequence[int],
    *,
    seconds: Sequence[float],
    workspace: Sequence[int],
    nbytes_of: Sequence[int],
    resident: int,
    link: Link,
) -> Trace:
    """Simulate a tape (its columns are described in `kernel`).

    Args:
        kind: what each row does.
        index: the step, storage or number of parts of each row.
        amount: the bytes of each row.
        seconds: of one run of each step.
        workspace: hidden bytes of each step.
        nbytes_of: bytes of each storage.
        resident: bytes that live all the time.
        link: transfers and copies.
    """
    machine = _Machine(resident, link)
    for row, (what, item, nbytes) in enumerate(zip(kind, index, amount, strict=True)):
        if what == COMPUTE:
            machine.compute(row, nbytes, seconds[item], workspace[item])
        elif what == FREE:
            machine.free(row, nbytes)
        elif what == COMMIT:
            machine.commit(row, nbytes)
        elif what == PACK:
            machine.pack(row, nbytes, nbytes_of[item], nbytes_of[item])
        elif what == UNPACK:
            machine.pack(row, nbytes_of[item], nbytes, nbytes_of[item])
        elif what == RELEASE:
            machine.release(row, item, nbytes)
        elif what == ARRIVE:
            machine.arrive(row, item, nbytes)
        elif what == OFFLOAD:
            machine.offload(row, item, nbytes)
        elif what == PREFETCH:
            machine.prefetch(row, item, nbytes)
        elif what == LOOP:
            machine.loop(row, item, nbytes)
        else:
            machine.finish(row, nbytes)
    trace = machine.trace
    trace.seconds = max(machine.clock, machine.out_free, machine.in_free)
    return trace
