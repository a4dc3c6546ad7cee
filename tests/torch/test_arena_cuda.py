"""The allocator for CUDA: its matching on bytes of the host; on a device where there is one."""

import ctypes

import pytest
import torch

from peakfold.bridge.runtime.arena_cuda import CudaArena, library
from peakfold.errors import UsageError
from peakfold.options import from_environment
from peakfold.plan.memory.layout import lay_out
from peakfold.plan.memory.trace import Request, Trace

STREAM, OTHER = 0x10, 0x20
LAYOUT = lay_out(Trace((Request(128, 0, 2), Request(64, 1, 4), Request(100, 2, 3)), length=5))


@pytest.fixture(scope="module")
def on_host():
    path = library(from_environment().cache / "arena", on_host=True)
    found = ctypes.CDLL(str(path))
    found.arena_cuda_malloc.restype = ctypes.c_void_p
    found.arena_cuda_malloc.argtypes = [ctypes.c_int64, ctypes.c_int, ctypes.c_void_p]
    found.arena_cuda_free.argtypes = [ctypes.c_void_p, ctypes.c_int64, ctypes.c_int, ctypes.c_void_p]
    return path, found


def test_planned_requests_of_the_stream_get_their_places(on_host):
    path, native = on_host
    arena = CudaArena(path, LAYOUT)
    for _ in range(2):
        arena.begin(STREAM)
        first = native.arena_cuda_malloc(128, 0, STREAM)
        second = native.arena_cuda_malloc(64, 0, STREAM)
        foreign = native.arena_cuda_malloc(100, 0, OTHER)
        native.arena_cuda_free(first, 128, 0, STREAM)
        third = native.arena_cuda_malloc(100, 0, STREAM)
        start = first - LAYOUT.offsets[0]
        assert [first - start, second - start, third - start] == list(LAYOUT.offsets)
        assert not 0 <= foreign - start < LAYOUT.arena
        for pointer, size, stream in ((second, 64, STREAM), (third, 100, STREAM), (foreign, 100, OTHER)):
            native.arena_cuda_free(pointer, size, 0, stream)
        assert arena.end() == (3, 0)


def test_what_is_not_as_planned_or_still_taken_goes_to_the_driver(on_host):
    path, native = on_host
    arena = CudaArena(path, LAYOUT)
    arena.begin(STREAM)
    kept = native.arena_cuda_malloc(128, 0, STREAM)
    wrong = native.arena_cuda_malloc(72, 0, STREAM)
    assert arena.end() == (1, 1)
    with pytest.raises(UsageError, match="tensors of an earlier one live"):
        CudaArena(path, LAYOUT)
    arena.begin(STREAM)
    again = native.arena_cuda_malloc(128, 0, STREAM)
    assert arena.end() == (0, 1)
    assert again != kept
    for pointer, size in ((kept, 128), (wrong, 72), (again, 128)):
        native.arena_cuda_free(pointer, size, 0, STREAM)


@pytest.mark.skipif(
    not torch.cuda.is_available(), reason="there is no CUDA device: the allocator was never run on one"
)
def test_the_allocator_compiles_for_a_device(tmp_path):
    assert library(tmp_path).is_file()
