"""A program that runs a second time while it is captured: whether it computes the very same."""

import types
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from peakfold.bridge.capture.python_values import Kept
from peakfold.bridge.capture.storage import Geometry
from peakfold.errors import CaptureError
from peakfold.ir.graph import Value

if TYPE_CHECKING:
    from peakfold.bridge.capture.trace import Trace


@dataclass(frozen=True)
class Computed:
    """What a forward pass and its backward pass computed.

    Attributes:
        results: one a leaf of what was returned: a value of the graph, or the Python object.
        gradients: of the parameters, then of the batch; None for one that has none.
        written: what stands for inputs of the graph after it, where they were written.
    """

    results: tuple[Value | Kept, ...]
    gradients: tuple[Value | None, ...]
    written: Mapping[int, Value]

    def mapped(self, one: Callable[[Value], Value]) -> "Computed":
        """Return it with other values of the graph."""
        return Computed(
            tuple(one(found) if isinstance(found, Value) else found for found in self.results),
            tuple(None if found is None else one(found) for found in self.gradients),
            {given: one(found) for given, found in self.written.items()},
        )

    def is_same(self, other: "Computed") -> bool:
        """Whether another run computed the very same."""
        if (self.gradients, self.written) != (other.gradients, other.written):
            return False
        return len(self.results) == len(other.results) and all(map(_is_same, self.results, other.results))


def _is_same(one: Value | Kept, other: Value | Kept) -> bool:
    if isinstance(one, Kept) and isinstance(other, Kept):
        return one.same(other)
    return one == other


@dataclass(frozen=True)
class Remade:
    """A buffer that a run makes anew.

    Attributes:
        name: of the buffer.
        tensor: what it holds.
        is_saved: whether it is part of the model's ``state_dict``.
    """

    name: str
    tensor: torch.Tensor
    is_saved: bool


@dataclass(frozen=True)
class Repeated:
    """A program that has run, and can run again; nothing of that is recorded.

    Attributes:
        trace: of the capture.
        forward: runs the forward pass.
        whole: the same, with the backward pass.
        first: what the first run computed.
        own: ids of what stands for the model's parameters and buffers.
    """

    trace: "Trace"
    forward: Callable[[], object]
    whole: Callable[[], Computed]
    first: Computed
    own: frozenset[int]

    @property
    def ran(self) -> Collection[types.CodeType]:
        """The model's code that ran."""
        return self.trace.code.ran.keys()

    def again(self) -> object:
        """Run the forward pass once more."""
        with self._unrecorded(None):
            return self.forward()

    def is_repeated(self) -> bool:
        """Run all of it from the state before, and say whether that computes the same as the first time.

        Nodes of the second run stand for the first node of the first run that has the same operator and
        operands, so that two runs compute the same where they end in the same values of the graph.
        """
        tape = self.trace.tape
        constants = {node: tape.same_constant(held) for node, held in tape.constants.items()}
        strictly = tape.replay.strictly(
            list(tape.nodes), {node: one for node, one in constants.items() if one is not None}
        )
        with self._unrecorded(0), self._from_the_start(), strictly:
            try:
                return self.first.mapped(tape.replay.one).is_same(self.whole().mapped(tape.replay.one))
            except CaptureError:
                return False

    def remade(self) -> list[Remade]:
        """Return the buffers that were not there before the program ran, or in another form."""
        before = {name: Geometry.of(fake) for name, _, fake in self.trace.module.buffers}
        return [
            Remade(f"{path}.{key}" if path else key, held, key not in module._non_persistent_buffers_set)
            for path, module in self.trace.module.module.named_modules()
            for key, held in module._buffers.items()
            if held is not None and before.get(f"{path}.{key}" if path else key) != Geometry.of(held)
        ]

    def is_unknown(self, tensor: torch.Tensor) -> bool:
        """Whether a fake tensor stands for numbers that are not known, and is none of the model's."""
        return id(tensor) not in self.own and self.trace.tape.values.of(tensor) is None

    def is_lasting(self, tensor: torch.Tensor) -> bool:
        """Whether a fake tensor stands for what each step would make again with the same numbers.

        That is what is made of buffers and constants that no step writes, without random numbers.
        """
        tape = self.trace.tape
        nodes = {node.id: node for node in tape.nodes}
        lasting = {given.id for given in tape.inputs if given.kind in ("buffer", "constant")}
        lasting -= self.first.written.keys()
        if tape.key is not None:
            lasting.discard(tape.value(tape.key).node)
        waiting, seen = [tape.value(tensor).node], set[int]()
        while waiting:
            one = waiting.pop()
            if one in seen or one in lasting:
                continue
            seen.add(one)
            if one not in nodes or nodes[one].op.random or not nodes[one].op.pure:
                return False
            waiting += [value.node for value in nodes[one].inputs]
        return True

    @contextmanager
    def _unrecorded(self, drawn: int | None) -> Iterator[None]:
        """Run what is inside as forward pass, from a position in the random stream if one is given."""
        tape = self.trace.tape
        nodes, before, phase = len(tape.nodes), tape.drawn, tape.places.phase
        tape.places.phase = "forward"
        try:
            with tape.replay.again(tape, drawn):
                yield
        finally:
            del tape.nodes[nodes:]
            tape.drawn, tape.places.phase = before, phase

    @contextmanager
    def _from_the_start(self) -> Iterator[None]:
        """Have the inputs of the graph stand for what they stood for before the program ran.

        A buffer that was replaced by a tensor of another form stays: it is a cache, or else what is
        computed is another.
        """
        held = [(cell, cell.value, cell.version) for cell, _ in self.trace.tape.given]
        for cell, value in self.trace.tape.given:
            cell.value, cell.version = value, cell.version + 1
        tables = list(self._buffers())
        now = [table[key] for table, key, _ in tables]
        for table, key, fake in tables:
            found = table[key]
            if found is not None and Geometry.of(found) == Geometry.of(fake):
                table[key] = fake
        try:
            yield
        finally:
            for cell, value, version in held:
                cell.value, cell.version = value, version
            for (table, key, _), found in zip(tables, now, strict=True):
                table[key] = found

    def _buffers(self) -> Iterator[tuple[dict[str, torch.Tensor | None], str, torch.Tensor]]:
        """Yield the table and name of each buffer, and the fake tensor that it held first."""
        modules = dict(self.trace.module.module.named_modules())
        for name, _, fake in self.trace.module.buffers:
            path, _, key = name.rpartition(".")
            if key in modules[path]._buffers:
                yield modules[path]._buffers, key, fake
