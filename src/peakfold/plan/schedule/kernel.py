"""The simulator's inner loop: a schedule as a tape of integers, run by numba.

A tape has three columns, one row a step: ``kind``, ``index`` and ``amount``.

    kind      index          amount
    COMPUTE   step           bytes of its outputs that are newly taken
    FREE      storage        bytes given back
    OFFLOAD   storage        bytes copied to the host, from here on taken there
    RELEASE   storage        bytes given back, once the storage's offload has ended: compute waits for it
    PREFETCH  storage        bytes copied to the device, taken from here on
    ARRIVE    storage        bytes given back on the host, once the prefetch has ended: compute waits for it
    COMMIT    storage        bytes copied within the device
    PACK      storage        bytes when it is packed: taken, its own given back
    UNPACK    storage        bytes when it is packed: given back, its own taken
    LOOP      parts          bytes that are made inside and outlive a part: held over the whole loop
    END       0              bytes from outside the loop that its parts give up

Three queues run at once: compute, device to host, host to device. A transfer starts once compute has
come to it; both transfer queues are first in, first out, and compute waits for them on RELEASE and ARRIVE
rows only, so that bytes depend on the rows alone and never on a clock. A loop is simulated for one part;
each further part takes as long as the busiest queue in it.

`run` is the compiled function; `peakfold.plan.schedule.plain.run` is its twin and its oracle.
"""

from typing import TYPE_CHECKING, TypeVar

import numba
import numpy as np

from peakfold.plan.schedule.arrays import Bytes, Floats, Ints

if TYPE_CHECKING:
    from collections.abc import Callable

COMPUTE, FREE, OFFLOAD, RELEASE, PREFETCH, ARRIVE, COMMIT, LOOP, PACK, UNPACK, END = range(11)
PASSES = 1.5
"""Copies within the device that packing takes as long as."""
MAX_LOOP_DEPTH = 16

F = TypeVar("F", bound="Callable[..., object]")


def compiled(function: F) -> F:
    """Compile a function with numba at its first call; the machine code is kept on disk."""
    return numba.njit(cache=True, nogil=True, error_model="numpy")(function)  # type: ignore[no-any-return]


@compiled
def run(
    kind: Ints,
    index: Ints,
    amount: Bytes,
    seconds: Floats,
    workspace: Bytes,
    nbytes_of: Bytes,
    resident: int,
    bandwidth: float,
    latency: float,
    copy: float,
    live: Bytes,
    during: Bytes,
    begin: Floats,
    end: Floats,
) -> tuple[int, int, float, float, float, float, int]:
    """Simulate a tape.

    Args:
        kind: what each row does.
        index: the step, storage or number of parts of each row.
        amount: the bytes of each row.
        seconds: of one run of each step.
        workspace: hidden bytes of each step.
        nbytes_of: bytes of each storage.
        resident: bytes that live all the time.
        bandwidth: bytes a second of a transfer.
        latency: seconds a transfer.
        copy: bytes a second within the device.
        live: filled: bytes that live after each row.
        during: filled: the most bytes at once while the row runs.
        begin: filled: when each row starts on its queue.
        end: filled: when it ends; in a loop, times are those of the first part.

    Returns:
        Peak bytes, its first row, seconds of the program, busy seconds of compute, device to host and
        host to device, and the most bytes on the host.
    """
    rows = len(kind)
    storages = len(nbytes_of)
    now = resident
    peak = resident
    peak_row = -1
    clock = 0.0
    busy = 0.0
    out_free = 0.0
    out_busy = 0.0
    in_free = 0.0
    in_busy = 0.0
    host = 0
    host_peak = 0
    transfers = False
    ready = np.zeros(storages)
    ready_row = np.full(storages, -1, np.int32)
    gone = np.zeros(storages)
    gone_row = np.full(storages, -1, np.int32)
    depth = 0
    loop_row = np.empty(MAX_LOOP_DEPTH, np.int32)
    loop_start = np.empty((MAX_LOOP_DEPTH, 4))
    loop_host = np.empty(MAX_LOOP_DEPTH, np.int64)
    for row in range(rows):
        what = kind[row]
        item = index[row]
        nbytes = amount[row]
        start = clock
        if what == RELEASE:
            start = max(start, gone[item])
        elif what == ARRIVE:
            start = max(start, ready[item])
        most = now
        stop = start
        if what == COMPUTE:
            stop = start + seconds[item]
            busy += seconds[item]
            now += nbytes
            most = now + workspace[item]
            clock = stop
        elif what == FREE:
            now -= nbytes
        elif what == COMMIT:
            stop = start + nbytes / copy
            busy += stop - start
            clock = stop
        elif what in (PACK, UNPACK):
            whole = nbytes_of[item]
            stop = start + PASSES * whole / copy
            busy += stop - start
            clock = stop
            most = now + (nbytes if what == PACK else whole)
            now += nbytes - whole if what == PACK else whole - nbytes
        elif what == OFFLOAD:
            transfers = True
            start = max(start, out_free)
            stop = start + (latency + nbytes / bandwidth)
            out_busy += stop - start
            out_free = stop
            gone[item] = stop
            gone_row[item] = row
            host += nbytes
            host_peak = max(host_peak, host)
        elif what == PREFETCH:
            transfers = True
            start = max(start, max(in_free, gone[item]))
            stop = start + (latency + nbytes / bandwidth)
            in_busy += stop - start
            in_free = stop
            ready[item] = stop
            ready_row[item] = row
            now += nbytes
            most = now
        elif what == RELEASE:
            now -= nbytes
            clock = stop
        elif what == ARRIVE:
            host -= nbytes
            clock = stop
        elif what == LOOP:
            now += nbytes
            most = now
            loop_row[depth] = row
            loop_start[depth, 0] = clock
            loop_start[depth, 1] = busy
            loop_start[depth, 2] = out_busy
            loop_start[depth, 3] = in_busy
            loop_host[depth] = host
            depth += 1
        else:
            depth -= 1
            first = loop_row[depth]
            more = index[first] - 1
            part_out = out_busy - loop_start[depth, 2]
            part_in = in_busy - loop_start[depth, 3]
            shift = more * max(clock - loop_start[depth, 0], max(part_out, part_in))
            clock += shift
            stop = clock
            busy += more * (busy - loop_start[depth, 1])
            host += more * (host - loop_host[depth])
            host_peak = max(host_peak, host)
            if transfers:
                out_busy += more * part_out
                in_busy += more * part_in
                if part_out > 0.0:
                    out_free += shift
                if part_in > 0.0:
                    in_free += shift
                for i in range(storages):
                    if gone_row[i] > first:
                        gone[i] += shift
                    if ready_row[i] > first:
                        ready[i] += shift
            now -= nbytes
        if most > peak:
            peak = most
            peak_row = row
        live[row] = now
        during[row] = most
        begin[row] = start
        end[row] = stop
    return peak, peak_row, max(clock, max(out_free, in_free)), busy, out_busy, in_busy, host_peak
