"""A region done in parts with torch, from an assignment alone: slice, run each node's part, join."""

from functools import reduce
from itertools import pairwise

import torch

from peakfold.bridge.runtime.interpret import interpret, operator_of, symbol
from peakfold.ir.graph import Graph, Output, Symbol, Value
from peakfold.ir.plan import Region, Run
from peakfold.ir.types import TensorType
from peakfold.plan.fission.axes import anchor_of
from peakfold.plan.fission.carries import carry_of
from peakfold.plan.fission.derive import derive
from peakfold.plan.fission.dims import components
from peakfold.plan.fission.part import multiples, part_of
from peakfold.plan.fission.states import Factor, Part, Partial

JOIN = {
    "sum": torch.add,
    "prod": torch.mul,
    "max": torch.maximum,
    "min": torch.minimum,
    "all": torch.logical_and,
    "any": torch.logical_or,
    "logaddexp": torch.logaddexp,
}


def read(arg, values):
    if isinstance(arg, Value):
        return values[arg]
    if isinstance(arg, Symbol):
        return symbol(arg)
    return [read(item, values) for item in arg] if isinstance(arg, tuple) else arg


def call(node, values):
    """The outputs of a node, as a tuple."""
    result = operator_of(node.op.name)(
        *read(node.args, values), **{k: read(v, values) for k, v in node.kwargs}
    )
    results = result if isinstance(result, tuple | list) else (result,)
    return tuple(torch.empty(0) if found is None else found for found in results)


def narrow(x, state, start, stop):
    """One part of a tensor, laid out as the whole is."""
    if not isinstance(state, Factor):
        return x
    shape = list(x.shape)
    spread = x.unflatten(state.dim, (state.outer, state.length, state.inner))
    part = spread.narrow(state.dim + 1, start, stop - start)
    shape[state.dim] = state.outer * (stop - start) * state.inner
    return part.reshape(shape).clone()


def joined(parts, state):
    if isinstance(state, Partial):
        return reduce(JOIN[state.combine], parts)
    if not isinstance(state, Factor):
        return parts[0]
    spread = [
        x.unflatten(state.dim, (state.outer, x.shape[state.dim] // (state.outer * state.inner), state.inner))
        for x in parts
    ]
    return torch.cat(spread, state.dim + 1).flatten(state.dim, state.dim + 2)


def cuts(length, parts):
    """First places of the parts, and the end: all parts of one size but the last."""
    size = -(-length // parts)
    return [*range(0, length, size), length]


def in_parts(graph, nodes, assignment, length, values, parts, equal=False):
    """Every value that the nodes make, computed in parts and joined; ``values`` has what they read."""
    made = {value for node in nodes for value in node.outputs}
    reads = {value for node in nodes for value in node.inputs if value not in made}
    ends = cuts(length, parts)
    rows = {value: [] for value in made}
    carries = {}
    for start, stop in pairwise(ends):
        local = {value: narrow(values[value], assignment[value], start, stop) for value in reads}
        extent = stop - start
        for node in nodes:
            given = dict(local)
            if equal or extent * parts == length:
                part = Part(extent, extent, 0)
            else:
                marks = {k: Value(-1000 - k) for k in multiples(graph, node, assignment)}
                given |= {mark: k * extent for k, mark in marks.items()} | {Value(-1): extent}
                part = Part(extent, Value(-1), 0, marks)
            small = part_of(graph, node, assignment, part)
            for value, kind, found in zip(node.outputs, small.types, call(small, given), strict=True):
                assert not isinstance(kind, TensorType) or tuple(found.shape) == kind.shape, node.name
                local[value] = found
            carry = carry_of(graph, node, assignment)
            if carry is not None:
                how, dim = carry
                (value,) = node.outputs
                if node.id in carries:
                    local[value] = JOIN[how](local[value], carries[node.id])
                carries[node.id] = local[value].narrow(dim, -1, 1)
        for value in made:
            rows[value].append(local[value])
    return {value: joined(rows[value], assignment[value]) for value in made}


def by_region(graph, node, vertex, length, values, parts):
    """What one node makes as a region split at a vertex, or None where so many parts do not come out."""
    size = -(-length // parts)
    if -(-length // size) != parts:
        return None
    made = [value for value in node.outputs if values[value].numel()]
    outputs = tuple(Output(f"y{value.index}", value) for value in made)
    program = Graph(graph.inputs, (node,), outputs)
    axis = next(axis for axis in components(program) if vertex in axis.members)
    region = Region(axis.name, parts, (Run(node.id),), None, anchor_of(vertex))
    derived = derive(program, (region,))
    found = interpret(derived.graph, {v.node: values[v] for v in node.inputs}, {}, derived.bodies)
    return {value: found[out.value] for value, out in zip(made, derived.graph.outputs, strict=True)}


def corners(samples, channels, rows, columns):
    """Where the largest element of each window of two by two is."""
    corner = torch.arange(rows * columns).view(rows, columns)[::2, ::2]
    across, down = torch.randint(2, (2, samples, channels, *corner.shape))
    return corner + across + columns * down
