"""The allocator of arenas on CUDA, over streams and an allocator that are made up: no GPU is needed.

What is tested is its own text, with torch's own headers: that requests are matched as on the CPU, and what
streams wait for. It was never run on a GPU.
"""

import ctypes
import subprocess
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from peakfold.bridge.runtime import arena, arena_cuda, arena_native, arena_trial
from peakfold.bridge.runtime.arena import Arena, Memory, Recorder
from peakfold.bridge.runtime.arena_native import Native
from peakfold.errors import UsageError
from peakfold.plan.memory.layout import Layout, lay_out
from peakfold.plan.memory.recorded import requests_of
from peakfold.plan.memory.trace import Request, Trace, in_lines

HERE, RUNTIME = Path(__file__).parent / "cuda_stub", Path(arena.__file__).parent
TORCH = Path(torch.__file__).parent
DEVICE = "cuda:0"
STREAM, OTHER = 1, 2


class Stub:
    """The made-up device, and what torch's tensors would ask of it."""

    def __init__(self, path):
        self.library = ctypes.PyDLL(str(path))
        for name in ("allocate", "raw"):
            found = getattr(self.library, f"stub_{name}")
            found.restype, found.argtypes = ctypes.c_void_p, [ctypes.c_int64]
        for name in ("free", "raw_free", "base"):
            getattr(self.library, f"stub_{name}").argtypes = [ctypes.c_void_p]
        self.library.stub_reads.argtypes = [ctypes.c_void_p, ctypes.c_int64]
        self.library.stub_on.argtypes = [ctypes.c_int, ctypes.c_int64]
        for name in ("calls", "live", "most", "base", "take"):
            getattr(self.library, f"stub_{name}").restype = ctypes.c_int64

    def __getattr__(self, name):
        return getattr(self.library, f"stub_{name}")

    def _taken(self, of_waits):
        numbers = (ctypes.c_int64 * 64)()
        return list(numbers[: self.library.stub_take(of_waits, numbers)])

    @property
    def waits(self):
        """(waiting stream, the one that it waits for), since the last look."""
        found = self._taken(True)
        return list(zip(found[::2], found[1::2], strict=True))

    @property
    def noted(self):
        """Streams that torch's allocator was told of, since the last look."""
        return self._taken(False)


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    path = tmp_path_factory.mktemp("stub") / "stub.so"
    command = [arena_native._compiler(), "-std=c++20", "-O0", "-fPIC", "-shared", "-w"]
    command += [f"-D_GLIBCXX_USE_CXX11_ABI={int(torch._C._GLIBCXX_USE_CXX11_ABI)}"]
    command += ["-DC10_CUDA_NO_CMAKE_CONFIGURE_FILE", f"-I{HERE}", f"-I{RUNTIME}", f"-I{TORCH / 'include'}"]
    command += [str(HERE / "stub.cpp"), "-o", str(path), f"-L{TORCH / 'lib'}", "-lc10"]
    subprocess.run(command, check=True, timeout=300)
    stub = Stub(path)
    with pytest.raises(UsageError) as caught:
        Native(path)
    assert caught.value.got == "torch has not begun to use the device"
    stub.init()
    return stub, Native(path)


@pytest.fixture
def stub(built, monkeypatch):
    stub, library = built
    monkeypatch.setattr(arena, "native", lambda kind: {"cuda": library}[kind])
    monkeypatch.setattr(arena, "current", lambda device: nullcontext())
    stub.on(0, STREAM)
    before = stub.live()
    yield stub
    stub.on(0, STREAM)
    stub.full(False)
    assert (stub.waits, stub.noted) == ([], [])
    assert stub.live() == before, "everything was given back"


def program(stub, kept=None, sizes=(1000, 70000, 512)):
    """Three blocks, the first of which dies before the last is asked for; the last one is kept."""

    def step(mark=None):
        first, second = stub.allocate(sizes[0]), stub.raw(sizes[1])
        stub.free(first)
        third = stub.allocate(sizes[2])
        stub.raw_free(second)
        (stub.free if kept is None else kept.append)(third)
        return ()

    return step


def laid_out(stub, step):
    recorder = Recorder(DEVICE)
    recorder.run(step)
    trace = Trace(tuple(requests_of(recorder.events)), (), len(recorder.events) + 1, recorder.beside)
    return replace(lay_out(in_lines(trace, DEVICE)), device=DEVICE)


def test_a_recorded_program_is_served_from_its_arena(stub):
    step = program(stub)
    layout = laid_out(stub, step)
    assert [request.size for request in layout.trace.requests] == [1024, 70144, 512]
    assert all(offset % 512 == 0 for offset in layout.offsets)
    inside = Arena(layout)
    assert (inside.memory.address % 512, stub.most() - stub.live()) == (0, 0)
    calls = stub.calls()
    for poison in (False, True):
        inside.poison = poison
        inside.run(step)
        use = inside.use
        assert (use.requests, use.served, use.ordinary, use.elsewhere) == (3, 3, 0, 0)
        assert use.high_water == layout.arena
    assert stub.calls() == calls, "nothing reaches torch's allocator"
    assert stub.most() == stub.live(), "the peak is what was there before the step, the arena included"


def test_what_is_not_as_planned_goes_to_torchs_allocator_and_is_named(stub):
    inside = Arena(laid_out(stub, program(stub)))
    inside.run(program(stub, sizes=(1000, 80000, 512)))
    assert (inside.use.served, inside.use.ordinary, inside.use.ordinary_bytes) == (2, 1, 80000)
    assert inside.use.named == ("80000 bytes before ",)


def test_sizes_in_the_same_lines_are_as_planned(stub):
    inside = Arena(laid_out(stub, program(stub)))
    inside.run(program(stub, sizes=(1024, 70001, 1)))
    assert (inside.use.served, inside.use.ordinary) == (3, 0)


@pytest.mark.parametrize(("device", "stream"), [(0, OTHER), (1, STREAM)])
def test_what_another_stream_or_device_asks_for_is_torchs(device, stream, stub):
    inside = Arena(laid_out(stub, program(stub)))

    def step():
        stub.on(device, stream)
        there = stub.allocate(1000)
        stub.on(0, STREAM)
        stub.free(there)
        return program(stub)()

    inside.run(step)
    assert (inside.use.served, inside.use.requests, inside.use.elsewhere) == (3, 3, 1)


def test_a_result_that_is_held_is_never_given_out_again(stub):
    kept = []
    step = program(stub, kept)
    layout = laid_out(stub, step)
    stub.free(kept.pop())
    inside = Arena(layout)
    for _ in range(3):
        inside.run(step)
    assert len(set(kept)) == 3
    assert (inside.use.served, inside.use.ordinary, inside.use.spares) == (3, 0, 1)
    for one in kept:
        stub.free(one)
    inside.run(step)
    assert inside.use.spares == 0
    stub.free(kept.pop())


def test_a_result_keeps_its_memory(stub):
    kept, before = [], stub.live()
    step = program(stub, kept)
    layout = laid_out(stub, step)
    stub.free(kept.pop())
    inside = Arena(layout)
    inside.run(step)
    del inside
    assert stub.live() == before + layout.arena
    stub.free(kept.pop())
    assert stub.live() == before


def test_poison_fills_what_dies(stub):
    inside = Arena(laid_out(stub, program(stub)))
    inside.poison = True
    seen = []

    def step():
        first = stub.allocate(1000)
        ctypes.memset(first, 0, 1000)
        stub.free(first)
        seen.append(ctypes.string_at(first, 1000))
        return ()

    inside.run(step)
    assert seen == [b"\xff" * 1000]


def test_a_step_on_another_stream_waits_for_the_last_one(stub):
    step = program(stub)
    inside = Arena(laid_out(stub, step))
    inside.run(step)
    assert (stub.waits, stub.noted) == ([], [])
    stub.on(0, OTHER)
    inside.run(step)
    assert (stub.waits, stub.noted) == ([(OTHER, STREAM)], [OTHER])
    assert (inside.use.served, inside.use.elsewhere) == (3, 0)
    inside.run(step)
    assert (stub.waits, stub.noted) == ([], [])


def test_a_place_that_another_stream_reads_is_waited_for_before_it_is_used_again(stub):
    inside = Arena(laid_out(stub, program(stub)))

    def step():
        first = stub.allocate(1000)
        stub.reads(first, OTHER)
        stub.reads(first, STREAM)
        assert stub.waits == []
        stub.free(first)
        assert stub.waits == [(STREAM, OTHER)]
        return ()

    inside.run(step)
    inside.run(step)


def test_torchs_own_blocks_are_as_before(stub):
    own = stub.allocate(100)
    stub.reads(own, OTHER)
    assert stub.noted == [OTHER]
    recorder = Recorder(DEVICE)

    def step(mark):
        block = stub.allocate(100)
        stub.reads(block, OTHER)
        stub.free(block)
        return ()

    recorder.run(step)
    assert stub.noted == [OTHER]
    stub.free(own)


def test_a_pointer_into_an_arena_has_the_arena_as_its_base(stub):
    inside = Arena(laid_out(stub, program(stub)))
    seen = []

    def step():
        first, second = stub.allocate(1000), stub.raw(70000)
        seen.extend((stub.base(one), one - inside.memory.address) for one in (first, second))
        stub.raw_free(second)
        stub.free(first)
        return ()

    inside.run(step)
    assert [found for found, _ in seen] == [offset for _, offset in seen] == list(inside.layout.offsets[:2])


def test_a_device_without_room_is_named(stub):
    stub.full(True)
    with pytest.raises(UsageError) as caught:
        Memory(4096, DEVICE)
    assert str(caught.value).splitlines()[:2] == ["arena: there is no room for the arena", "  at: cuda:0"]


def test_it_is_built_for_the_torch_that_it_was_written_for(monkeypatch, tmp_path):
    (tmp_path / "cuda" / "include").mkdir(parents=True)
    (tmp_path / "cuda" / "include" / arena_cuda.HEADER).touch()
    found = arena_cuda.options(tmp_path / "torch", tmp_path / "cuda")
    assert found == (f"-I{tmp_path / 'cuda' / 'include'}", "-lc10_cuda", "-lc10")
    monkeypatch.setattr(torch, "__version__", "2.99.0")
    with pytest.raises(UsageError, match="torch is another one") as caught:
        arena_cuda.options(tmp_path, None)
    assert caught.value.got == "2.99.0"


@pytest.fixture
def only(monkeypatch):
    """Have another program run instead of the first one on a device."""
    run = subprocess.run

    def instead(code):
        def ran(command, **how):
            return run([command[0], "-c", code], **how)

        monkeypatch.setattr(arena_cuda.subprocess, "run", ran)

    return instead


@pytest.mark.parametrize(
    ("code", "word"),
    [
        ("import os; os.abort()", "exit code -6: "),
        ("raise ValueError('no such kernel')", "exit code 1: ValueError: no such kernel"),
        ("print('other results than with torch')", "exit code 0: other results than with torch"),
    ],
)
def test_a_first_run_that_fails_or_crashes_is_named(code, word, only, tmp_path):
    only(code)
    path = tmp_path / "arena_cuda-1.so"
    with pytest.raises(UsageError, match="failed its first run there") as caught:
        arena_cuda.require_tried(path, DEVICE, code)
    assert caught.value.got == word
    assert list(tmp_path.iterdir()) == []


def test_a_first_run_that_went_well_is_kept(only, tmp_path):
    only("print('works')")
    path = tmp_path / "arena_cuda-1.so"
    arena_cuda.require_tried(path, DEVICE, "a device")
    arena_cuda.require_tried.cache_clear()
    only("raise ValueError")
    arena_cuda.require_tried(path, DEVICE, "a device")
    with pytest.raises(UsageError):
        arena_cuda.require_tried(path, DEVICE, "another device")


def test_the_first_run_looks_at_bits_and_at_places(monkeypatch):
    assert arena_trial.trial("cpu") == arena_trial.WORKS
    good = arena_trial._laid_out

    def wrong(program, device):
        layout = good(program, device)
        return replace(layout, offsets=tuple(0 for _ in layout.offsets))

    monkeypatch.setattr(arena_trial, "_laid_out", wrong)
    assert "requests" in arena_trial.trial("cpu")
    layout = Layout(Trace((Request(64, 0, 1),), (), 3), (0,), 64, 64, 64, "optimal", 0.0)
    monkeypatch.setattr(arena_trial, "_laid_out", lambda program, device: layout)
    assert "of 6 requests" in arena_trial.trial("cpu")


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")
def test_the_first_run_on_a_device():
    arena.require_works(DEVICE)
