"""One capture as it goes on: fake inputs, what they are bound to, and what the program leaves."""

import logging
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from itertools import chain

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from peakfold.bridge.capture import batches
from peakfold.bridge.capture.averages import cumulative_averages
from peakfold.bridge.capture.binding import BatchLeaf, BufferOf, Parameter, Source, Verbatim
from peakfold.bridge.capture.branches import control_flow
from peakfold.bridge.capture.checkpoints import checkpoints_once
from peakfold.bridge.capture.clocks import changes_each_time
from peakfold.bridge.capture.fakes import FakeModule, fake_of, one_device
from peakfold.bridge.capture.guards import Ambient
from peakfold.bridge.capture.insides import holds_tensors
from peakfold.bridge.capture.kept import check_keeps_nothing, made_by_hooks
from peakfold.bridge.capture.keyed import new_key
from peakfold.bridge.capture.places import Places
from peakfold.bridge.capture.python_values import Kept
from peakfold.bridge.capture.ran import ExecutedCode
from peakfold.bridge.capture.recorder import Recorder
from peakfold.bridge.capture.repeated import Computed, Repeated
from peakfold.bridge.capture.settled import Settling, settled
from peakfold.bridge.capture.storage import Geometry
from peakfold.bridge.capture.tape import Tape
from peakfold.bridge.capture.unread import unread
from peakfold.bridge.capture.values import asked_by_libraries
from peakfold.bridge.capture.widened import Widened
from peakfold.errors import CaptureError
from peakfold.ir.graph import Kind, Output, State

_FAKE_LOG = logging.getLogger("torch._subclasses.fake_tensor")


@dataclass(frozen=True)
class Results:
    """What a program returns, as a tree.

    Attributes:
        outputs: the tensors.
        leaves: one a leaf of the tree: an index into ``outputs``, or the Python object.
    """

    outputs: tuple[Output, ...]
    leaves: tuple[int | Verbatim, ...]


@dataclass
class Trace:
    """One capture as it goes on.

    Attributes:
        tape: what is recorded.
        module: the model's tensors and their fakes.
        batch: the batch, flattened.
        leaves: its leaves, tensors as fakes.
        code: the model's code that ran.
        ambient: torch's modes before the capture.
        sources: where each input comes from, by its id.
        inputs: id of the input that comes from each source.
        widened: what the code casts to a narrower floating type is cast to float64.
    """

    tape: Tape
    module: FakeModule
    batch: batches.FlatBatch
    leaves: list[object]
    code: ExecutedCode = field(default_factory=ExecutedCode)
    ambient: Ambient = field(default_factory=Ambient.now)
    sources: dict[int, Source] = field(default_factory=dict)
    inputs: dict[Source, int] = field(default_factory=dict)
    widened: bool = False
    _settling: Settling = field(default_factory=Settling)

    @staticmethod
    def begin(
        model: torch.nn.Module, batch: batches.FlatBatch, keyed: bool = False, *, widened: bool = False
    ) -> "Trace":
        """Make fake inputs of the module's tensors, of the batch, and of the key of random numbers."""
        _check_leaves(batch)
        mode = FakeTensorMode(allow_non_fake_inputs=True)
        tape = Tape(mode, Places({id(m): path for path, m in model.named_modules()}))
        trace = Trace(tape, FakeModule.of(model, mode), batch, _fake_leaves(batch, mode), widened=widened)
        one_device(trace.module, [leaf for leaf in trace.leaves if isinstance(leaf, torch.Tensor)])
        trace._add_module()
        trace._add_batch()
        if keyed:
            tape.key = tape.constant(new_key(_device(trace)))
        return trace

    def _add_module(self) -> None:
        for name, real, fake in self.module.parameters:
            self.add(fake, name, "parameter", Parameter(name))
            self.tape.known[id(real)] = f"parameter {name}"
        for name, buffer, fake in self.module.buffers:
            self.add(fake, name, "buffer", BufferOf(name))
            self.tape.known[id(buffer)] = f"buffer {name}"

    def _add_batch(self) -> None:
        seen: set[int] = set()
        for index, leaf in enumerate(self.leaves):
            if isinstance(leaf, torch.Tensor) and id(leaf) not in seen:
                seen.add(id(leaf))
                self.add(leaf, self.batch.names[index], "batch", BatchLeaf(index))

    def add(self, fake: torch.Tensor, name: str, kind: Kind, source: Source) -> None:
        """Make a fake tensor an input that comes from a source."""
        self.bind(self.tape.add_input(fake, name, kind).node, source)

    def bind(self, given: int, source: Source) -> None:
        """Say where an input comes from."""
        self.sources[given] = source
        self.inputs[source] = given

    def replaced(self, source: Source, tensor: torch.Tensor) -> Iterator[State]:
        """Yield the state pair of an input that another tensor now stands in for."""
        value = self.tape.value(tensor)
        given = self.inputs[source]
        if value.node != given:
            yield State(given, value)

    def buffer_states(self) -> Iterator[State]:
        """Yield the state pairs of buffers that the forward pass wrote, or replaced in the same form."""
        now = dict(self.module.module.named_buffers())
        for name, _, fake in self.module.buffers:
            held = now.get(name, fake)
            if Geometry.of(held) == Geometry.of(fake):
                yield from self.replaced(BufferOf(name), held)

    def batch_states(self) -> Iterator[State]:
        """Yield the state pairs of batch tensors that the program wrote in place."""
        for source in [source for source in self.inputs if isinstance(source, BatchLeaf)]:
            leaf = self.leaves[source.index]
            assert isinstance(leaf, torch.Tensor)
            yield from self.replaced(source, leaf)

    @contextmanager
    def running(self, function: Callable[..., object]) -> Iterator[None]:
        """Record what runs inside, `check_python` at its end.

        Args:
            function: the user's, which is run on the model.
        """
        with ExitStack() as stack:
            stack.enter_context(_without_log())
            stack.enter_context(torch.autograd.set_detect_anomaly(False))  # it reads values
            stack.enter_context(self.module.swapped())
            self._settling = stack.enter_context(settled(self.module.module, function))
            stack.enter_context(checkpoints_once(self.tape))
            stack.enter_context(cumulative_averages(self.tape))
            stack.enter_context(asked_by_libraries(self.tape.values))
            stack.enter_context(unread(self.tape.values))
            stack.enter_context(self.tape.places.following())
            stack.enter_context(self.tape.fake)
            recorder = Recorder(self.tape)
            stack.enter_context(control_flow(recorder))
            stack.enter_context(recorder)
            stack.enter_context(Widened() if self.widened else nullcontext())
            yield

    def check_python(
        self,
        function: Callable[..., object],
        forward: Callable[[], object],
        whole: Callable[[], Computed],
        first: Computed,
    ) -> None:
        """Refuse a program that keeps tensors, or changes Python values each time it runs.

        Args:
            function: the user's, which was run on the model.
            forward: runs it once more.
            whole: the same, with the backward pass.
            first: what that computed.

        Raises:
            CaptureError: names what it keeps or changes, and the line of the model's code.
        """
        for name, place in self.code.changing.items():
            raise changes_each_time(place, name)
        model, own = self.module.module, frozenset(map(id, self.module.fake.values()))
        ignored = frozenset(id(module.__dict__) for module in made_by_hooks(model))
        may = self._settling.check(Repeated(self, forward, whole, first, own), ignored)
        check_keeps_nothing(model, function, self.tape.values, own | may, self.code.ran.keys())

    def computed(self, tree: object, gradients: Iterable[torch.Tensor | None] = ()) -> Computed:
        """Return what the program has computed, as values of the graph.

        Args:
            tree: what the forward pass returned.
            gradients: what the backward pass did.
        """
        leaves = [leaf for _, leaf in batches.paths(tree, "outputs")]
        results = (self.tape.value(x) if isinstance(x, torch.Tensor) else Kept.of(x) for x in leaves)
        made = tuple(None if found is None else self.tape.value(found) for found in gradients)
        states = (self.replaced(Parameter(name), fake) for name, _, fake in self.module.parameters)
        written = {
            pair.input: pair.output for pair in (*self.buffer_states(), *self.batch_states(), *chain(*states))
        }
        return Computed(tuple(results), made, written)

    def results(self, tree: object, first: int = 0) -> Results:
        """Return what a tree of results holds; outputs are counted from ``first``."""
        outputs: list[Output] = []
        leaves: list[int | Verbatim] = []
        for name, leaf in batches.paths(tree, "outputs"):
            if isinstance(leaf, torch.Tensor):
                leaves.append(first + len(outputs))
                outputs.append(Output(name, self.tape.value(leaf)))
            else:
                leaves.append(Verbatim(leaf))
        return Results(tuple(outputs), tuple(leaves))


def _check_leaves(batch: batches.FlatBatch) -> None:
    """Refuse arrays of another library, and tensors in objects: they would be constants of the program."""
    for name, leaf in zip(batch.names, batch.leaves, strict=True):
        if (
            not isinstance(leaf, torch.Tensor)
            and hasattr(leaf, "__array__")
            and len(getattr(leaf, "shape", ()))
        ):
            raise CaptureError(
                stage="capture",
                what="the batch holds an array that is no tensor",
                where=name,
                expected="tensors, and Python's own numbers and objects",
                got=f"{type(leaf).__module__}.{type(leaf).__name__}",
                hint="pass torch.from_numpy(array)",
            )
        if holds_tensors(leaf):
            raise CaptureError(
                stage="capture",
                what="the batch holds an object with tensors in it",
                where=name,
                expected="tensors in tuples, lists and dicts",
                got=f"a {type(leaf).__qualname__}",
                hint="pass dict(object) or vars(object), or register its class with torch.utils._pytree",
            )


def _device(trace: Trace) -> torch.device:
    """Return where the program runs; a description of it on the meta device is one of the CPU."""
    given = (*(fake for *_, fake in trace.module.parameters), *trace.leaves)
    return next((leaf.device for leaf in given if isinstance(leaf, torch.Tensor)), torch.device("cpu"))


@contextmanager
def _without_log() -> Iterator[None]:
    """Keep torch from logging the traceback of an operator that fails on fake tensors: it is raised too."""
    _FAKE_LOG.addFilter(_nothing)
    try:
        yield
    finally:
        _FAKE_LOG.removeFilter(_nothing)


def _nothing(record: logging.LogRecord) -> bool:
    return False


def _fake_leaves(batch: batches.FlatBatch, mode: FakeTensorMode) -> list[object]:
    made: dict[int, torch.Tensor] = {}
    with mode:
        for leaf in batch.leaves:
            if isinstance(leaf, torch.Tensor) and id(leaf) not in made:
                made[id(leaf)] = fake_of(leaf)
    return [made.get(id(leaf), leaf) for leaf in batch.leaves]
