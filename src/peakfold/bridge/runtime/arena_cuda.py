"""The arena of a CUDA device: torch's pluggable allocator with planned offsets. Never run on a GPU so far.

`peakfold.optimize_step` does not use it yet: on CUDA an arena is planned and reported, and the program runs
with torch's allocator. Torch takes another allocator only before its first allocation on the device.
"""

import ctypes
from pathlib import Path

import torch

from peakfold.bridge.runtime.arena_native import built
from peakfold.errors import UsageError
from peakfold.plan.memory.layout import Layout

SOURCE = "arena_cuda.cpp"
ON_HOST = ("-DARENA_ON_HOST",)
ON_DEVICE = ("-lcudart",)


class CudaArena:
    """A layout on a device, for one stream.

    Raises:
        UsageError: the device has not so many bytes.
    """

    def __init__(self, path: Path, layout: Layout, device: int = 0) -> None:
        self._library = ctypes.PyDLL(str(path))
        self._library.arena_cuda_begin.argtypes = [ctypes.c_void_p]
        requests, count = layout.trace.requests, len(layout.trace.requests)
        sizes = (ctypes.c_int64 * count)(*(request.size for request in requests))
        offsets = (ctypes.c_int64 * count)(*layout.offsets)
        planned = self._library.arena_cuda_plan
        planned.restype = ctypes.c_bool
        if not planned(ctypes.c_int64(layout.arena), device, ctypes.c_int64(count), sizes, offsets):
            raise UsageError(
                stage="arena",
                what="the device has no room for the arena, or tensors of an earlier one live",
                where=f"cuda:{device}",
                expected=f"{layout.arena} bytes",
            )

    def begin(self, stream: int) -> None:
        """Serve what a stream allocates from now on."""
        self._library.arena_cuda_begin(stream)

    def end(self) -> tuple[int, int]:
        """Serve no more; return how many requests were served, and how many went to the driver."""
        numbers = (ctypes.c_int64 * 2)()
        self._library.arena_cuda_end(numbers)
        return numbers[0], numbers[1]


def library(folder: Path, *, on_host: bool = False) -> Path:
    """Return the compiled allocator in a folder; on the host's bytes, for tests, where there is no device.

    Raises:
        UsageError: it cannot be compiled.
    """
    return built(folder, SOURCE, ON_HOST if on_host else ON_DEVICE)


def install(path: Path) -> None:
    """Let torch allocate through it; before the first allocation on a device."""
    found = torch.cuda.memory.CUDAPluggableAllocator(str(path), "arena_cuda_malloc", "arena_cuda_free")
    torch.cuda.memory.change_current_allocator(found)
