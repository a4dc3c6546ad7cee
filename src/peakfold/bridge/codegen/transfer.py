"""Copies to the host and back in an emitted file: the calls, and the text of what they call."""

import inspect
import json
from collections.abc import Iterator
from pathlib import Path

from peakfold.bridge.codegen.frame import Frame
from peakfold.bridge.codegen.writer import INDENT, deletion, margin
from peakfold.bridge.runtime import offload
from peakfold.ir.graph import Graph
from peakfold.ir.plan import Arrive, Buffer, Offload, Prefetch, Release, Schedule, Step
from peakfold.plan.memory.host import host_layout

Move = Offload | Release | Prefetch | Arrive
IMPORTS = (
    "import ctypes",
    "import mmap",
    "import os",
    "import tempfile",
    "from collections.abc import Callable, Collection, Mapping",
    "from concurrent.futures import Future, ThreadPoolExecutor",
    "from typing import Protocol",
)
"""What the carried text needs beside torch."""


class Transfers:
    """The moves of a schedule.

    Attributes:
        is_used: whether there are any.
    """

    def __init__(self, graph: Graph, schedule: Schedule, frame: Frame, folder: Path | None) -> None:
        self._graph = graph
        self._frame = frame
        self._folder = folder
        self._layout = host_layout(graph, schedule)
        self._offsets = iter(self._layout.offsets)
        self._moved = [step.buffer.value for step in schedule.steps if isinstance(step, Offload)]
        self._names: dict[Buffer, str] = {}
        self.is_used = bool(self._moved)

    def definitions(self) -> Iterator[str]:
        """Yield the lines of what the program calls, and the arena that it uses."""
        if not self.is_used:
            return
        device = self._graph.tensor_type(self._moved[0]).device
        on_cuda = device.startswith("cuda")
        carrier = (offload.Event, offload.Streams) if on_cuda else (offload.Threads,)
        around = (offload.HostError, offload.Copy, offload.Carrier)
        for item in (*around, *carrier, offload.Away, offload.Host, offload.flat):
            yield from ("", "", *inspect.getsource(item).rstrip().splitlines())
        inputs = self._graph.input
        lent = {inputs[value.node].name for value in self._moved if value.node in inputs}
        where = repr(device) if on_cuda else repr(None if self._folder is None else str(self._folder))
        carried = f"{'Streams' if on_cuda else 'Threads'}({self._layout.nbytes}, {where})"
        yield from ("", "", f"host = Host({carried}, {json.dumps(sorted(lent))})")

    def entry(self, marks: bool) -> Iterator[str]:
        """Yield the lines of ``step`` where the program itself is called ``run``."""
        if not self.is_used:
            return
        extra = ", mark" if marks else ""
        yield from ("", "", f"def step(tensors, scalars{extra}):")
        yield f'{INDENT}"""Run the program with its copies; the tensors have their bytes again afterwards."""'
        yield f"{INDENT}return host.run(run, tensors, scalars{extra})"

    def step(self, step: Step) -> Iterator[str]:
        """Yield the lines of one move."""
        frame = self._frame
        if isinstance(step, Offload):
            yield from self._offload(step.buffer)
        elif isinstance(step, Release):
            ended, nbytes = frame.away(step.buffer)
            yield margin(f"{INDENT}{self._names[step.buffer]}.release()", -nbytes, frame.live)
            yield from deletion(ended)
        elif isinstance(step, Prefetch):
            name, nbytes = frame.back(step.buffer)
            yield margin(f"{INDENT}{name} = {self._names[step.buffer]}.prefetch()", nbytes, frame.live)
        elif isinstance(step, Arrive):
            yield f"{INDENT}{self._names[step.buffer]}.arrive()"

    def _offload(self, buffer: Buffer) -> Iterator[str]:
        read = self._frame.read(buffer.value)
        name = self._frame.namer.fresh(f"{read}_away")
        self._names[buffer] = name
        lent = ", lent=True" if buffer.value.node in self._graph.input else ""
        yield f"{INDENT}{name} = host.offload({read}, {next(self._offsets)}{lent})"
