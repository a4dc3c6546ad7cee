"""The allocator of arenas: compiled once, kept in the cache, loaded once a process."""

import ctypes
import functools
import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import Any

import torch

from peakfold.bridge.runtime import arena_cuda
from peakfold.errors import UsageError
from peakfold.options import from_environment

CORE = ("arena_core.h", "arena_calls.h")
"""What the sources for all devices include."""

COMPILERS = ("c++", "g++", "clang++")
FLAGS = ("-std=c++20", "-O2", "-fPIC", "-shared", "-w")
SECONDS = 300
SHOWN = 400


class Native:
    """The functions of the allocator. One object a process: see `native`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        # PyDLL keeps the interpreter's lock: these calls are shorter than giving it up
        library = ctypes.PyDLL(str(path))
        integer, handle = ctypes.c_int64, ctypes.c_void_p
        numbers, flags = ctypes.POINTER(ctypes.c_int64), ctypes.POINTER(ctypes.c_int8)
        self.memory = _function(library.arena_memory, handle, integer)
        self.memory_start = _function(library.arena_memory_start, handle, handle)
        self.memory_release = _function(library.arena_memory_release, None, handle)
        self.plan = _function(library.arena_plan, handle, handle, integer, numbers, numbers, flags)
        self.plan_beside = _function(library.arena_plan_beside, None, handle, integer, integer)
        self.plan_release = _function(library.arena_plan_release, None, handle)
        self.begin = _function(library.arena_begin, None, handle, ctypes.c_int)
        self.end = _function(library.arena_end, None, numbers)
        self.unmatched = _function(library.arena_unmatched, integer, handle, numbers, integer)
        self.record_begin = _function(library.arena_record_begin, handle)
        self.mark = _function(library.arena_mark, None)
        self.note = _function(library.arena_note, None, integer)
        self.turn = _function(library.arena_turn, None, integer)
        self.record_end = _function(library.arena_record_end, integer, handle)
        self.record_beside = _function(library.arena_record_beside, integer, handle, numbers, integer)
        self.record_take = _function(library.arena_record_take, None, handle, numbers)
        why = _function(library.arena_install, ctypes.c_char_p)()
        if why is not None:
            raise UsageError(
                stage="arena",
                what="the allocator of arenas cannot stand before torch's",
                got=why.decode(),
                hint="the step runs with torch's own allocator",
            )


def _function(found: Any, result: object, *arguments: object) -> Any:
    found.restype, found.argtypes = result, list(arguments)
    return found


@functools.cache
def native(kind: str = "cpu") -> Native:
    """Return the allocator for a kind of device, compiled where the cache has none.

    Raises:
        UsageError: there is no C++ compiler, it fails, or torch does not allow it there.
    """
    return Native(library(from_environment().cache / "arena", kind))


def library(folder: Path, kind: str = "cpu") -> Path:
    """Return the compiled allocator for a kind of device in a folder; compile it where it is not there.

    Raises:
        UsageError: there is no C++ compiler, it fails, or the folder cannot be written; on CUDA also where
            its headers are not there, or torch is another one than this was written for.
    """
    if kind == "cuda":
        named = from_environment().cuda
        return built(folder, arena_cuda.SOURCE, arena_cuda.options(Path(torch.__file__).parent, named))
    return built(folder, "arena.cpp", ("-lc10",))


def built(folder: Path, name: str, options: tuple[str, ...]) -> Path:
    """Return a source of this package compiled, from a folder or into it.

    Raises:
        UsageError: as of `library`.
    """
    sources = {one: (resources.files("peakfold.bridge.runtime") / one).read_bytes() for one in (name, *CORE)}
    text = b"".join(sources.values()) + repr((torch.__version__, FLAGS, options)).encode()
    path = folder / f"{Path(name).stem}-{hashlib.sha256(text).hexdigest()[:16]}.so"
    if not path.is_file():
        _compile(sources, path, options)
    return path


def _compile(sources: Mapping[str, bytes], path: Path, options: tuple[str, ...]) -> None:
    compiler = _compiler()
    torch_folder = Path(torch.__file__).parent
    abi = int(torch._C._GLIBCXX_USE_CXX11_ABI)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=path.parent) as aside:
            for name, source in sources.items():
                (Path(aside) / name).write_bytes(source)
            text, made = Path(aside) / next(iter(sources)), Path(aside) / "arena.so"
            command = [compiler, *FLAGS, f"-D_GLIBCXX_USE_CXX11_ABI={abi}", f"-I{torch_folder / 'include'}"]
            command += [str(text), "-o", str(made), f"-L{torch_folder / 'lib'}", *options]
            done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
            if done.returncode:
                raise _no_allocator("the C++ compiler fails", compiler, done.stderr.strip()[:SHOWN])
            os.replace(made, path)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise _no_allocator("the allocator of arenas cannot be compiled", str(path), str(error)) from error


def _compiler() -> str:
    asked = from_environment().compiler
    found = next((path for name in ((asked,) if asked else COMPILERS) if (path := shutil.which(name))), None)
    if found is None:
        raise _no_allocator("there is no C++ compiler", asked or ", ".join(COMPILERS), "none on the PATH")
    return found


def _no_allocator(what: str, where: str, got: str) -> UsageError:
    return UsageError(
        stage="arena",
        what=what,
        where=where,
        expected="a compiler of C++20, once, to build the allocator of arenas",
        got=got,
        hint="install g++ or clang++, or set CXX; without one steps run without an arena",
    )
