"""Capture: a PyTorch training step, or inference, becomes a Graph [MagPy, torch.export].

The user's own Python runs once, on fake tensors: the forward pass, autograd's backward, the
optimizer's step. What reaches the dispatcher below autograd is recorded.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import torch
from torch.utils import _pytree as pytree

from peakfold.bridge.capture import batches
from peakfold.bridge.capture.assemble import assemble
from peakfold.bridge.capture.binding import GradientOf, Parameter, Source
from peakfold.bridge.capture.captured import Captured
from peakfold.bridge.capture.environment import variables_read
from peakfold.bridge.capture.gradients import Found, accumulated, batch_outputs, differentiated
from peakfold.bridge.capture.hostrandom import no_draws_of_python
from peakfold.bridge.capture.optimizers import updated_names
from peakfold.bridge.capture.places import users_errors
from peakfold.bridge.capture.repeated import Computed
from peakfold.bridge.capture.scaling import Scaling
from peakfold.bridge.capture.trace import Trace
from peakfold.bridge.capture.update import Shadow, shadow
from peakfold.errors import CaptureError
from peakfold.ir.graph import Output, State


def capture_step(
    model: torch.nn.Module,
    loss_fn: Callable[..., object],
    optimizer: torch.optim.Optimizer | None,
    batch: object,
    *,
    scaler: torch.amp.GradScaler | None = None,
    clip_grad_norm: float | None = None,
    keyed: bool = False,
    widened: bool = False,
) -> Captured:
    """Capture forward, backward and update as one functional graph, without running anything.

    Args:
        model: real, fake or on the meta device; it is left as it was.
        loss_fn: ``loss_fn(model, *batch)`` gives the loss, or ``(loss, outputs)``.
        optimizer: whose step is captured, hooks included; None to leave gradients in ``.grad``.
        batch: a tuple or list (positions), a dict (keywords), or one tensor.
        scaler: a gradient scaler around loss and optimizer.
        clip_grad_norm: clip gradients to this total norm before the update.
        keyed: make random numbers from a key that is drawn anew for each step, instead of the stream.
        widened: what the code casts to a narrower floating type is cast to float64.

    Raises:
        CaptureError: what cannot be one graph, and where in the model's code.

    Example:
        >>> model = torch.nn.Linear(3, 2)
        >>> sgd = torch.optim.SGD(model.parameters(), lr=0.1)
        >>> graph = capture_step(model, lambda m, x: m(x).sum(), sgd, torch.zeros(4, 3)).graph
        >>> [given.name for given in graph.inputs]
        ['weight', 'bias', 'batch.0', 'optimizer.0.lr']
        >>> [graph.input[pair.input].name for pair in graph.state]
        ['weight', 'bias']
    """
    trace = Trace.begin(model, batches.flatten(batch), keyed, widened=widened)
    with trace.running(loss_fn):
        loss, extra = _split(_forward(trace, loss_fn, model))
        _check_no_backward(trace)
        _check_loss(loss)
        scaling = Scaling.begin(scaler, trace)
        updated = None if optimizer is None else updated_names(optimizer, trace.module)
        found = _backward(trace, loss, scaling)
        first = trace.computed((loss, extra), found)
        with trace.code.watching():
            gradients, of_batch = accumulated(trace, found, updated)
        trace.tape.places.phase = "update"
        if scaling is not None:
            scaling.unscale(g for name, g in gradients.items() if updated is None or name in updated)
        with trace.code.watching():
            _set_gradients(trace, gradients)
        if clip_grad_norm is not None:
            torch.nn.utils.clip_grad_norm_(model.parameters(), clip_grad_norm)
        end = _End(trace, None if optimizer is None else _update(trace, optimizer), scaling, updated)
        state = tuple(end.state())
        made = end.new_gradients() | batch_outputs(trace, of_batch)
        results = trace.results(extra, first=1)
        returned = trace.tape.value(loss)

        def forward() -> tuple[torch.Tensor, object]:
            return _split(_forward(trace, loss_fn, model))

        def whole() -> Computed:
            again = forward()
            return trace.computed(again, _backward(trace, again[0], scaling))

        trace.check_python(loss_fn, forward, whole, first)
    outputs = (Output("loss", returned), *results.outputs, *made.values())
    named = tuple((of, 1 + len(results.outputs) + i) for i, of in enumerate(made))
    tree = None if extra is None else pytree.tree_structure(extra)
    leaves = () if extra is None else results.leaves
    return assemble(trace, outputs, state, (tree, leaves, named), loss_fn, optimizer, end.shadow)


def capture_inference(
    module: torch.nn.Module, inputs: object, *, keyed: bool = False, widened: bool = False
) -> Captured:
    """Capture ``module(*inputs)`` without gradients; ``inputs`` and options as of `capture_step`."""
    trace = Trace.begin(module, batches.flatten(inputs), keyed, widened=widened)
    with trace.running(module.__call__), torch.no_grad():
        result = _forward(trace, module.__call__, None)
        state = (*trace.buffer_states(), *trace.batch_states())
        results = trace.results(result)
        first = trace.computed(result)

        def forward() -> object:
            return _forward(trace, module.__call__, None)

        trace.check_python(module, forward, lambda: trace.computed(forward()), first)
    form = (pytree.tree_structure(result), results.leaves, ())
    return assemble(trace, results.outputs, state, form, module, None, None)


def _forward(trace: Trace, function: Callable[..., object], model: torch.nn.Module | None) -> object:
    args, kwargs = batches.unflatten(trace.leaves, trace.batch.tree)
    first = () if model is None else (model,)
    watching = (variables_read(trace.code.variables), trace.code.watching())
    draws = no_draws_of_python(lambda: trace.code.drawn_at)
    with users_errors("the forward pass"), draws, watching[0], watching[1]:
        return function(*first, *args, **kwargs)


def _backward(trace: Trace, loss: torch.Tensor, scaling: Scaling | None) -> Found:
    trace.tape.places.phase = "backward"
    scaled = loss if scaling is None else scaling.scale(loss)
    with trace.code.watching():
        return differentiated(trace, scaled)


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


def _check_no_backward(trace: Trace) -> None:
    """Refuse a forward pass that left gradients: eager would add those of the loss to them."""
    name = next((name for name, _, fake in trace.module.parameters if fake.grad is not None), None)
    if name is not None:
        raise CaptureError(
            stage="capture",
            what="loss_fn runs backward() itself",
            expected="a function that returns the loss; the step does the rest",
            got=f"a gradient in {name}.grad",
            hint="leave backward() away, or use torch.autograd.grad for gradients that the loss depends on",
        )


def _set_gradients(trace: Trace, gradients: Mapping[str, torch.Tensor]) -> None:
    """Put gradients into ``.grad`` of the fake parameters, and run what waits for them."""
    for name, real, fake in trace.module.parameters:
        if name in gradients:
            fake.grad = gradients[name]
            for hook in (getattr(real, "_post_accumulate_grad_hooks", None) or {}).values():
                hook(fake)


def _update(trace: Trace, optimizer: torch.optim.Optimizer) -> Shadow:
    made = shadow(optimizer, trace.module, trace.tape)
    given: list[tuple[Source, torch.Tensor]] = [*made.states.items(), *made.rates.items()]
    for source, fake in given:
        trace.bind(trace.tape.value(fake).node, source)
    with trace.code.watching():
        made.step(trace.tape, trace.module.fake)
    return made


@dataclass(frozen=True)
class _End:
    """The state that a training step leaves.

    Attributes:
        trace: of the capture.
        shadow: the optimizer after its step, None for gradients alone.
        scaling: the gradient scaler, or None.
        updated: names of the parameters that the optimizer updates; None without one.
    """

    trace: Trace
    shadow: Shadow | None
    scaling: Scaling | None
    updated: frozenset[str] | None

    def state(self) -> Iterator[State]:
        """Yield what the program replaces."""
        yield from self.trace.buffer_states()
        yield from self.trace.batch_states()
        yield from self._standing_gradients()
        pairs = list(self._updated())
        yield from pairs if self.scaling is None else self.scaling.unless_infinite(pairs)

    def _standing_gradients(self) -> Iterator[State]:
        """Yield the gradients that were there before and are there after: no optimizer clears them."""
        for name, _, fake in self.trace.module.parameters:
            if GradientOf(name) in self.trace.inputs and (self.updated is None or name not in self.updated):
                assert fake.grad is not None
                yield from self.trace.replaced(GradientOf(name), fake.grad)

    def _updated(self) -> Iterator[State]:
        for name, _, fake in self.trace.module.parameters:
            yield from self.trace.replaced(Parameter(name), fake)
        for source, tensor in () if self.shadow is None else self.shadow.state_now():
            yield from self.trace.replaced(source, tensor)

    def new_gradients(self) -> dict[str | int, Output]:
        """Return the outputs that become ``.grad`` of parameters that have none."""
        if self.shadow is not None:
            return {}
        return {
            name: Output(f"{name}.grad", self.trace.tape.value(fake.grad))
            for name, real, fake in self.trace.module.parameters
            if fake.grad is not None and real.grad is None
        }
