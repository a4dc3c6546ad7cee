"""Capture: a PyTorch training step, or inference, becomes a Graph [MagPy, torch.export].

The user's own Python runs once, on fake tensors: the forward pass, autograd's backward, the
optimizer's step. What reaches the dispatcher below autograd is recorded.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils import _pytree as pytree

from peakfold.bridge.capture import batches
from peakfold.bridge.capture.binding import (
    BatchLeaf,
    Binding,
    BufferOf,
    Constant,
    GradientOf,
    Hyperparameter,
    OptimizerState,
    Parameter,
    ScalerState,
    Source,
    Verbatim,
)
from peakfold.bridge.capture.captured import Captured
from peakfold.bridge.capture.checkpoints import plain_checkpoints
from peakfold.bridge.capture.fakes import FakeModule, fake_of, one_device
from peakfold.bridge.capture.finish import finish
from peakfold.bridge.capture.gradients import accumulate
from peakfold.bridge.capture.guarding import guards_of
from peakfold.bridge.capture.guards import Ambient
from peakfold.bridge.capture.places import Places, users_errors
from peakfold.bridge.capture.reads import ExecutedCode
from peakfold.bridge.capture.recorder import Recorder
from peakfold.bridge.capture.scaling import Scaling
from peakfold.bridge.capture.update import Shadow, shadow
from peakfold.errors import CaptureError
from peakfold.ir.graph import Output, State

Step = Callable[..., Any]


@dataclass
class _Trace:
    """One capture as it goes on."""

    recorder: Recorder
    module: FakeModule
    batch: batches.FlatBatch
    leaves: list[object]
    sources: dict[int, Source]
    code: ExecutedCode
    ambient: Ambient

    @staticmethod
    def begin(model: torch.nn.Module, batch: batches.FlatBatch) -> "_Trace":
        """Make fake inputs of the module's tensors and of the batch."""
        mode = FakeTensorMode(allow_non_fake_inputs=True)
        module = FakeModule.of(model, mode)
        recorder = Recorder(mode, Places({id(m): path for path, m in model.named_modules()}))
        leaves = _fake_leaves(batch, mode)
        trace = _Trace(recorder, module, batch, leaves, {}, ExecutedCode(), Ambient.now())
        one_device(module, [leaf for leaf in trace.leaves if isinstance(leaf, torch.Tensor)])
        for name, real, fake in module.parameters:
            trace._add(fake, name, "parameter", Parameter(name))
            recorder.known[id(real)] = f"parameter {name}"
        for name, real, fake in module.buffers:
            trace._add(fake, name, "buffer", BufferOf(name))
            recorder.known[id(real)] = f"buffer {name}"
        seen: set[int] = set()
        for index, leaf in enumerate(trace.leaves):
            if isinstance(leaf, torch.Tensor) and id(leaf) not in seen:
                seen.add(id(leaf))
                trace._add(leaf, batch.names[index], "batch", BatchLeaf(index))
        return trace

    def _add(self, fake: torch.Tensor, name: str, kind: Any, source: Source) -> None:
        self.sources[self.recorder.add_input(fake, name, kind).node] = source

    def input_of(self, source: Source) -> int:
        """Return the id of the input that comes from a source."""
        return next(i for i, s in self.sources.items() if s == source)

    @contextmanager
    def running(self) -> Iterator[None]:
        """Record what runs inside."""
        with ExitStack() as stack:
            stack.enter_context(self.module.swapped())
            stack.enter_context(plain_checkpoints(self.recorder))
            stack.enter_context(self.recorder.places.following())
            stack.enter_context(self.recorder.fake)
            stack.enter_context(self.recorder)
            yield

    def outputs(self, root: str, tree: object) -> tuple[list[Output], list[int | Verbatim]]:
        """Return the outputs of a tree of results, and what each leaf of the tree is."""
        outputs: list[Output] = []
        leaves: list[int | Verbatim] = []
        for name, leaf in batches.paths(tree, root):
            if isinstance(leaf, torch.Tensor):
                leaves.append(len(outputs))
                outputs.append(Output(name, self.recorder.value(leaf)))
            else:
                leaves.append(Verbatim(leaf))
        return outputs, leaves


def _fake_leaves(batch: batches.FlatBatch, mode: FakeTensorMode) -> list[object]:
    made: dict[int, torch.Tensor] = {}
    with mode:
        for leaf in batch.leaves:
            if isinstance(leaf, torch.Tensor) and id(leaf) not in made:
                made[id(leaf)] = fake_of(leaf)
    return [made.get(id(leaf), leaf) for leaf in batch.leaves]


def capture_step(
    model: torch.nn.Module,
    loss_fn: Step,
    optimizer: torch.optim.Optimizer | None,
    batch: object,
    *,
    scaler: torch.amp.GradScaler | None = None,
    clip_grad_norm: float | None = None,
) -> Captured:
    """Capture forward, backward and update as one functional graph, without running anything.

    Args:
        model: real, fake or on the meta device; it is left as it was.
        loss_fn: ``loss_fn(model, *batch)`` gives the loss, or ``(loss, outputs)``.
        optimizer: whose step is captured, hooks included; None to leave gradients in ``.grad``.
        batch: a tuple or list (positions), a dict (keywords), or one tensor.
        scaler: a gradient scaler around loss and optimizer.
        clip_grad_norm: clip gradients to this total norm before the update.

    Raises:
        CaptureError: what cannot be one graph, and where in the model's code.
    """
    trace = _Trace.begin(model, batches.flatten(batch))
    recorder, places = trace.recorder, trace.recorder.places
    step = _Step(trace, optimizer, loss_fn)
    with trace.running():
        args, kwargs = batches.unflatten(trace.leaves, trace.batch.tree)
        with trace.code.watching(), users_errors("the forward pass"):
            result = loss_fn(model, *args, **kwargs)
        loss, extra = _split(result)
        _check_loss(loss)
        scaling = Scaling.begin(scaler, recorder, trace.sources) if scaler is not None else None
        places.phase = "backward"
        gradients = _backward(trace, loss if scaling is None else scaling.scale(loss))
        places.phase = "update"
        if scaling is not None:
            gradients = scaling.unscale(gradients)
        step.set_gradients(gradients)
        if clip_grad_norm is not None:
            torch.nn.utils.clip_grad_norm_(model.parameters(), clip_grad_norm)
        if optimizer is not None:
            step.update(optimizer)
        buffers = list(trace.module.buffers_now())
        state = list(step.state(buffers, scaling))
        found, leaves = trace.outputs("outputs", extra)
        gradients_out = [] if optimizer is not None else step.gradient_outputs()
    outputs = (Output("loss", recorder.value(loss)), *found, *(out for _, out in gradients_out))
    tree = pytree.tree_structure(extra) if extra is not None else None
    places_of = tuple(leaf + 1 if isinstance(leaf, int) else leaf for leaf in leaves)
    named = tuple((name, 1 + len(found) + i) for i, (name, _) in enumerate(gradients_out))
    return _captured(trace, outputs, tuple(state), tree, places_of, named, step)


def capture_inference(module: torch.nn.Module, inputs: object) -> Captured:
    """Capture ``module(*inputs)`` without gradients; ``inputs`` as a batch of `capture_step`."""
    trace = _Trace.begin(module, batches.flatten(inputs))
    with trace.running(), torch.no_grad():
        args, kwargs = batches.unflatten(trace.leaves, trace.batch.tree)
        with trace.code.watching(), users_errors("the forward pass"):
            result = module(*args, **kwargs)
        state = list(_buffer_states(trace, list(trace.module.buffers_now())))
        outputs, leaves = trace.outputs("outputs", result)
    tree = pytree.tree_structure(result)
    return _captured(trace, tuple(outputs), tuple(state), tree, tuple(leaves), (), _Step(trace, None, module))


def _captured(
    trace: _Trace,
    outputs: tuple[Output, ...],
    state: tuple[State, ...],
    tree: pytree.TreeSpec | None,
    leaves: tuple[int | Verbatim, ...],
    gradients: tuple[tuple[str, int], ...],
    step: "_Step",
) -> Captured:
    recording = trace.recorder.recording
    graph = finish(recording.inputs, recording.nodes, outputs, state)
    constants: list[torch.Tensor] = []
    for given in graph.inputs:
        if given.id in recording.constants:
            trace.sources[given.id] = Constant(len(constants))
            constants.append(recording.constants[given.id])
    for number in recording.book.numbers.values():
        origin = number.operands[0]
        if number.op == "given" and isinstance(origin, Hyperparameter):
            trace.sources[recording.host_values[float(number)].node] = origin
    sources = tuple(trace.sources[given.id] for given in graph.inputs)
    binding = Binding(sources, trace.batch.tree, tree, leaves, tuple(constants), gradients)
    shadow = step.shadow
    missing = () if shadow is None else shadow.missing
    undamped = () if shadow is None or not missing else shadow.undamped
    first = tuple(
        (given.id, 0.0)
        for given, source in zip(graph.inputs, sources, strict=True)
        if isinstance(source, Hyperparameter) and source.key == "dampening" and source.group in undamped
    )
    guards = guards_of(
        trace.module.module, step.function, step.optimizer, trace.batch, trace.code, trace.ambient,
        tuple(recording.book.comparisons.values()), missing,
    )  # fmt: skip
    return Captured(graph, binding, guards, missing, first)


def _split(result: object) -> tuple[torch.Tensor, object]:
    if isinstance(result, torch.Tensor):
        return result, None
    if isinstance(result, tuple) and len(result) == 2 and isinstance(result[0], torch.Tensor):
        return result
    raise CaptureError(
        stage="capture",
        what="loss_fn does not return a loss",
        expected="a scalar tensor, or (loss, outputs)",
        got=f"a {type(result).__name__}",
        hint="for a Hugging Face model: return model(**batch).loss",
    )


def _check_loss(loss: torch.Tensor) -> None:
    if loss.numel() != 1 or loss.dim() > 1:
        raise CaptureError(
            stage="capture",
            what="the loss is not a scalar",
            expected="a tensor of one element",
            got=f"shape {tuple(loss.shape)}",
            hint="reduce it: loss.mean() or loss.sum()",
        )
    if not loss.requires_grad:
        raise CaptureError(
            stage="capture",
            what="the loss needs no gradient",
            expected="a loss that depends on a parameter with requires_grad=True",
            hint="check for detach(), torch.no_grad(), and frozen parameters",
        )


def _backward(trace: _Trace, loss: torch.Tensor) -> dict[str, torch.Tensor]:
    wanted = [(name, real, fake) for name, real, fake in trace.module.parameters if fake.requires_grad]
    with users_errors("the backward pass"):
        found = torch.autograd.grad(loss, [fake for _, _, fake in wanted], allow_unused=True)
    return accumulate(trace.recorder, wanted, found, trace.sources)


@dataclass
class _Step:
    """What follows the backward pass."""

    trace: _Trace
    optimizer: torch.optim.Optimizer | None
    function: Callable[..., object]
    shadow: Shadow | None = None

    def set_gradients(self, gradients: Mapping[str, torch.Tensor]) -> None:
        """Put gradients into ``.grad`` of the fake parameters, and run what waits for them."""
        for name, real, fake in self.trace.module.parameters:
            if name in gradients:
                fake.grad = gradients[name]
                for hook in (getattr(real, "_post_accumulate_grad_hooks", None) or {}).values():
                    hook(fake)

    def update(self, optimizer: torch.optim.Optimizer) -> None:
        """Run the optimizer's step."""
        self.shadow = shadow(optimizer, self.trace.module, self.trace.recorder)
        for source, fake in self.shadow.states.items():
            self.trace.sources[self.trace.recorder.value(fake).node] = source
        self.shadow.step(self.trace.recorder, self.trace.module.fake)

    def state(
        self, buffers: list[tuple[str, torch.Tensor, torch.Tensor]], scaling: Scaling | None
    ) -> Iterator[State]:
        """Yield what the program replaces."""
        yield from _buffer_states(self.trace, buffers)
        pairs: list[State] = []
        for name, real, fake in self.trace.module.parameters:
            pairs += self._pair(Parameter(name), fake)
            if self.optimizer is None and real.grad is not None:
                assert fake.grad is not None
                pairs += self._pair(GradientOf(name), fake.grad)
        if self.shadow is not None:
            for source, tensor in self.shadow.state_now():
                pairs += self._pair(source, tensor)
        yield from pairs if scaling is None else scaling.unless_infinite(pairs)

    def _pair(self, source: Parameter | OptimizerState | GradientOf, tensor: torch.Tensor) -> list[State]:
        value = self.trace.recorder.value(tensor)
        given = self.trace.input_of(source)
        return [] if value.node == given else [State(given, value)]

    def gradient_outputs(self) -> list[tuple[str, Output]]:
        """Return the gradients that become ``.grad``, those that add to a present one left out."""
        value = self.trace.recorder.value
        return [
            (name, Output(f"{name}.grad", value(fake.grad)))
            for name, real, fake in self.trace.module.parameters
            if fake.grad is not None and real.grad is None
        ]


def _buffer_states(trace: _Trace, buffers: list[tuple[str, torch.Tensor, torch.Tensor]]) -> Iterator[State]:
    for name, _, tensor in buffers:
        value = trace.recorder.value(tensor)
        given = trace.input_of(BufferOf(name))
        if value.node != given:
            yield State(given, value)


__all__ = ["ScalerState", "capture_inference", "capture_step"]
