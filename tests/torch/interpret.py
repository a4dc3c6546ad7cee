"""A graph run operator by operator with torch: no schedule, nothing in place, nothing freed."""

import operator
from functools import reduce

import torch

from peakfold.ir.graph import Value

HOST = {"host.neg": operator.neg}


def run_graph(graph, tensors, scalars):
    """Every Value of a graph, given its inputs by name; each tensor is checked against its type."""
    given = {**tensors, **scalars}
    values = {Value(item.id): given[item.name] for item in graph.inputs}
    for node in graph.nodes:
        function = HOST.get(node.op.name) or reduce(getattr, node.op.name.split("."), torch.ops)
        result = function(*_read(node.args, values), **{k: _read(v, values) for k, v in node.kwargs})
        results = result if isinstance(result, tuple) else (result,)
        for value, kind, found in zip(node.outputs, node.types, results, strict=True):
            values[value] = found
            if isinstance(found, torch.Tensor):
                said = (kind.shape, kind.strides, kind.dtype)
                dtype = str(found.dtype).removeprefix("torch.")
                assert (tuple(found.shape), tuple(found.stride()), dtype) == said, node.name
    return values


def random_inputs(graph, seed=0):
    """Tensors near 1 and a learning rate, by name."""
    torch.manual_seed(seed)
    tensors = {x.name: torch.rand(x.type.shape) + 0.5 for x in graph.inputs if x.kind != "scalar"}
    return tensors, {x.name: 0.1 for x in graph.inputs if x.kind == "scalar"}


def _read(arg, values):
    if isinstance(arg, Value):
        return values[arg]
    return [_read(item, values) for item in arg] if isinstance(arg, tuple) else arg
