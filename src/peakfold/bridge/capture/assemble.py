"""The end of a capture: graph, binding and guards from what was traced."""

from collections.abc import Callable, Sequence

import torch
from torch.utils import _pytree as pytree

from peakfold.bridge.capture.binding import Binding, Constant, Hyperparameter, Source, Verbatim
from peakfold.bridge.capture.captured import Captured
from peakfold.bridge.capture.finish import finish
from peakfold.bridge.capture.guarding import guards_of
from peakfold.bridge.capture.tape import Tape
from peakfold.bridge.capture.trace import Trace
from peakfold.bridge.capture.update import Shadow
from peakfold.errors import CaptureError
from peakfold.ir.graph import Graph, Output, State

Form = tuple[pytree.TreeSpec | None, tuple[int | Verbatim, ...], tuple[tuple[str | int, int], ...]]
"""Tree of the extra outputs, its leaves, and (parameter or leaf of the batch, output) of new gradients."""


def assemble(
    trace: Trace,
    outputs: tuple[Output, ...],
    state: tuple[State, ...],
    form: Form,
    function: Callable[..., object],
    optimizer: torch.optim.Optimizer | None,
    shadow: Shadow | None,
) -> Captured:
    """Return the captured program.

    Args:
        trace: of the capture.
        outputs: what the program returns.
        state: what it replaces.
        form: how outputs form what the user's function returns.
        function: the user's.
        optimizer: the user's.
        shadow: what stood in for it.
    """
    graph = finish(trace.tape.inputs, trace.tape.nodes, outputs, state, _drawn_from(trace.tape))
    _check_recurrence(graph)
    _bind_numbers(trace)
    constants = _bind_constants(trace, graph)
    sources = tuple(trace.sources[given.id] for given in graph.inputs)
    binding = Binding(sources, trace.batch.tree, *form[:2], constants, form[2], _key(trace, constants))
    missing = () if shadow is None else shadow.missing
    first = _first_scalars(graph, sources, shadow.undamped) if shadow is not None and missing else ()
    guards = guards_of(trace, function, optimizer, missing)
    return Captured(graph, binding, guards, missing, first, bool(trace.tape.decided))


def _check_recurrence(graph: Graph) -> None:
    """Refuse a program that trains some recurrent layers and only runs others: one function runs all."""
    layers = [node for node in graph.nodes if node.op.name == "aten.mkldnn_rnn_layer.default"]
    if len({graph.nbytes(node.outputs[3]) > 0 for node in layers}) < 2:
        return
    raise CaptureError(
        stage="capture",
        what="recurrent layers run both with and without gradients, which oneDNN computes differently",
        where=next(node.origin.source for node in layers if not graph.nbytes(node.outputs[3])),
        expected="recurrent layers with gradients (frozen parameters are fine), or all without",
        hint="take the layer out of torch.no_grad(), or set torch.backends.mkldnn.enabled = False",
    )


def _bind_numbers(trace: Trace) -> None:
    tape: Tape = trace.tape
    for number in tape.book.numbers.values():
        origin = number.operands[0]
        if number.op == "given" and isinstance(origin, Hyperparameter):
            trace.bind(tape.host_values[float(number)].node, origin)


def _bind_constants(trace: Trace, graph: Graph) -> tuple[torch.Tensor, ...]:
    held = [given.id for given in graph.inputs if given.id in trace.tape.constants]
    for index, given in enumerate(held):
        trace.bind(given, Constant(index))
    return tuple(trace.tape.constants[given] for given in held)


def _drawn_from(tape: Tape) -> tuple[int, ...]:
    """Return the input that random numbers are made from, where there are any."""
    return () if tape.key is None or not tape.drawn else (tape.value(tape.key).node,)


def _key(trace: Trace, constants: Sequence[torch.Tensor]) -> int:
    """Return which constant is the key of random numbers, -1 for none."""
    stand_ins = trace.tape.stand_ins
    key = trace.tape.key
    return next((i for i, constant in enumerate(constants) if stand_ins[id(constant)] is key), -1)


def _first_scalars(
    graph: Graph, sources: Sequence[Source], undamped: Sequence[int]
) -> tuple[tuple[int, float], ...]:
    return tuple(
        (given.id, 0.0)
        for given, source in zip(graph.inputs, sources, strict=True)
        if isinstance(source, Hyperparameter) and source.key == "dampening" and source.group in undamped
    )
