"""How fast bytes are copied between a device and where they wait, measured once a machine and place."""

import time
from collections.abc import Callable
from pathlib import Path

import torch

from peakfold.bridge.runtime.offload import Carrier, Copy, Streams, Threads, flat
from peakfold.bridge.runtime.profile import machine
from peakfold.cost.cache import CostCache, Measurement
from peakfold.cost.costs import Link
from peakfold.errors import CacheError

NBYTES = 1 << 25
REPEATS = 5
LATENCY = 2e-4
"""Seconds that a copy takes beyond its bytes: to start it and to be told of its end."""
BESIDE = 0.5
"""Part of the speed that is left to a copy on a CPU while the computation uses the same memory."""


def link_speed(cache: CostCache, device: str, folder: Path | None, known: Link) -> Link:
    """Return the bandwidth of copies to memory of the host, or to files in a folder, beside a computation.

    Args:
        cache: what is measured is kept there.
        device: where the bytes are.
        folder: where they go; None for memory.
        known: what else is known of copies.

    Raises:
        CacheError: files cannot be written to the folder, or it has no room.
    """
    where = "memory" if folder is None else f"files in {folder}"
    key = f"copy of {NBYTES} bytes from {device} to {where} on {machine(torch.get_num_threads())}"
    found = cache.get(key)
    if found is None:
        try:
            found = Measurement(_seconds(device, folder), 0)
        except OSError as error:
            raise CacheError(
                stage="profile",
                what="how fast values are copied to where they are to wait cannot be measured",
                where="memory of the host" if folder is None else str(folder),
                expected=f"room for {NBYTES >> 20} MiB",
                got=error.strerror or str(error),
                hint="make room, or offload elsewhere (--offload PATH, host) or not at all (none)",
            ) from None
        cache.put({key: found})
    share = 1.0 if device.startswith("cuda") else BESIDE
    return Link(share * NBYTES / found.seconds, LATENCY, known.copy)


def _seconds(device: str, folder: Path | None) -> float:
    """The slower way of the two, at its fastest."""
    on_cuda = device.startswith("cuda")
    place = None if folder is None else str(folder)
    carrier: Carrier = Streams(NBYTES, device) if on_cuda else Threads(NBYTES, place)
    content = flat(torch.zeros(NBYTES, dtype=torch.uint8, device=device))
    carrier.open()
    try:
        both = (carrier.out, carrier.back)
        return max(min(_timed(way, content, on_cuda) for _ in range(REPEATS)) for way in both)
    finally:
        carrier.rest()


def _timed(way: Callable[[torch.Tensor, int], Copy], content: torch.Tensor, on_cuda: bool) -> float:
    begin = time.perf_counter()
    way(content, 0).result()
    if on_cuda:
        torch.cuda.synchronize()
    return time.perf_counter() - begin
