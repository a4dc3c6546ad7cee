"""Runs a captured program by the interpreter on the user's own objects, and compares with eager."""

import copy

import torch

from peakfold.bridge.capture import Captured, batches
from peakfold.bridge.capture.binding import (
    BatchLeaf,
    BufferOf,
    Constant,
    GradientOf,
    Hyperparameter,
    OptimizerState,
    Parameter,
    ScalerState,
)
from peakfold.bridge.runtime.interpret import interpret
from peakfold.ir.types import TensorType


def run(captured: Captured, model, optimizer, batch, scaler=None):
    """Do what a captured step stands for on the user's objects; return (loss, outputs by name)."""
    parameters, buffers = dict(model.named_parameters()), dict(model.named_buffers())
    made = _make_missing(captured, parameters, optimizer)
    leaves = batches.flatten(batch).leaves
    graph = captured.graph
    tensors, scalars = {}, {}
    first = dict(captured.first_scalars) if made else {}
    for given, source in zip(graph.inputs, captured.binding.sources, strict=True):
        match source:
            case Parameter(name):
                tensors[given.id] = parameters[name].detach()
            case BufferOf(name):
                tensors[given.id] = buffers[name]
            case GradientOf(name):
                if parameters[name].grad is None:
                    parameters[name].grad = torch.full_like(parameters[name].detach(), -0.0)
                tensors[given.id] = parameters[name].grad
            case OptimizerState(parameter, key):
                tensors[given.id] = optimizer.state[parameters[parameter]][key]
            case BatchLeaf(index):
                tensors[given.id] = leaves[index]
            case Constant(index):
                tensors[given.id] = captured.binding.constants[index]
            case ScalerState(key):
                tensors[given.id] = getattr(scaler, f"_{key}")
            case Hyperparameter(group, key, item):
                value = optimizer.param_groups[group][key]
                if isinstance(value, torch.Tensor):
                    tensors[given.id] = value
                    continue
                scalars[given.id] = first.get(given.id, value if item < 0 else value[item])
    values = interpret(graph, tensors, scalars)
    assert_types_hold(graph, values)
    with torch.no_grad():
        new = [(tensors[pair.input], values[pair.output].clone()) for pair in graph.state]
        for old, value in new:
            old.copy_(value)
    for name, index in captured.binding.gradients:
        parameters[name].grad = values[graph.outputs[index].value]
    return values[graph.outputs[0].value], {out.name: values[out.value] for out in graph.outputs}


def assert_types_hold(graph, values):
    """Assert that shapes, strides, bytes and shared storages are those that the graph says."""
    owners = {}
    for node in graph.nodes:
        for value, kind in zip(node.outputs, node.types, strict=True):
            real = values[value]
            if not isinstance(kind, TensorType) or real is None:
                assert real is not None or kind.shape == (0,), node
                continue
            assert (tuple(real.shape), f"torch.{kind.dtype}") == (kind.shape, str(real.dtype)), node
            assert lengthy(real.stride(), real) == lengthy(kind.strides, real) or real.numel() <= 1, node
            storage = real.untyped_storage()
            if graph.storage(value) != value:
                assert storage.data_ptr() == values[graph.storage(value)].untyped_storage().data_ptr(), node
            elif real.numel():
                assert storage.nbytes() == kind.nbytes, node
                assert storage.data_ptr() not in owners, (node, owners[storage.data_ptr()])
                owners[storage.data_ptr()] = node


def lengthy(strides, tensor):
    """Strides of the dimensions that are longer than one: those of the others mean nothing."""
    return [stride for stride, length in zip(strides, tensor.shape, strict=True) if length > 1]


def _make_missing(captured, parameters, optimizer):
    made = False
    for entry in captured.missing:
        state = optimizer.state[parameters[entry.source.parameter]]
        if state.get(entry.source.key) is None:
            made = True
            value = entry.value
            if isinstance(value, Hyperparameter):
                value = optimizer.param_groups[value.group][value.key]
            if entry.like:
                like = parameters[entry.like]
                state[entry.source.key] = torch.full_like(like, value, dtype=entry.dtype).detach()
            else:
                state[entry.source.key] = torch.full(entry.shape, value, dtype=entry.dtype)
    return made


def eager(model, loss_fn, optimizer, batch, scaler=None):
    """One step of the loop that users write."""
    args, kwargs = batches.arguments(batch)
    result = loss_fn(model, *args, **kwargs)
    loss = result if isinstance(result, torch.Tensor) else result[0]
    if scaler is None:
        loss.backward()
        optimizer.step()
    else:
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    optimizer.zero_grad()
    return loss.detach()


def equal_steps(capture, model, loss_fn, make_optimizer, batch, steps=3, between=None, scaler=None):
    """Assert that steps of the captured program equal eager's, bit for bit; return the last one.

    It is captured anew where the optimizer comes to where it computes something else.
    """
    twin = copy.deepcopy(model)
    ours, theirs = make_optimizer(model), make_optimizer(twin)
    scalers = (None, None) if scaler is None else (scaler(), scaler())
    for made in scalers:
        if made is not None:
            made._lazy_init_scale_growth_tracker(torch.device("cpu"))

    def capture_now():
        options = {} if scaler is None else {"scaler": scalers[0]}
        return capture(model, loss_fn, ours, batch, **options)

    captured = capture_now()
    torch.manual_seed(7)
    mine = torch.get_rng_state()
    his = torch.get_rng_state()
    for step in range(steps):
        if captured.guards.optimizer.broken(ours) is not None:
            captured = capture_now()
        torch.set_rng_state(mine)
        loss, _ = run(captured, model, ours, batch, scalers[0])
        mine = torch.get_rng_state()
        torch.set_rng_state(his)
        expected = eager(twin, loss_fn, theirs, batch, scalers[1])
        his = torch.get_rng_state()
        assert same(loss, expected), f"loss of step {step}: {loss} != {expected}"
        assert_same_state(model, twin, ours, theirs)
        assert torch.equal(mine, his), "random numbers drawn"
        if between is not None:
            between(ours)
            between(theirs)
    return captured


def assert_same_state(model, twin, ours, theirs):
    for (name, left), (_, right) in zip(model.state_dict().items(), twin.state_dict().items(), strict=True):
        assert same(left, right), name
    names = [name for name, _ in model.named_parameters()]
    for name, left, right in zip(names, model.parameters(), twin.parameters(), strict=True):
        for key, value in theirs.state.get(right, {}).items():
            if value is not None:
                assert same(ours.state[left][key], value), f"{name}.{key}"


def same(left, right):
    """Equal bits, NaN included; the sign of zero counts."""
    if left.shape != right.shape or left.dtype != right.dtype:
        return False
    if not left.is_floating_point():
        return torch.equal(left, right)
    kind = {2: torch.int16, 4: torch.int32, 8: torch.int64}[left.element_size()]
    return torch.equal(left.contiguous().view(kind), right.contiguous().view(kind))
