"""Runs a Graph node by node: slow and plain, the meaning that every other way of running has."""

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

import torch
from torch.utils import _pytree as pytree

from peakfold.bridge.capture.host import OPERATORS
from peakfold.bridge.runtime.alone import mode_for
from peakfold.graph.dataflow.form import dataflow
from peakfold.graph.dataflow.run import run
from peakfold.ir.control import COND, operands
from peakfold.ir.graph import Arg, Graph, Node, Symbol, Value
from peakfold.ir.types import TensorType
from peakfold.plan.fission.derived import Body, Initial


@cache
def operator_of(name: str) -> Callable[..., Any]:
    """Return the function of an operator's name.

    Example:
        >>> operator_of("host.neg")(2.0)
        -2.0
        >>> operator_of("aten.add.Tensor")
        <OpOverload(op='aten.add', overload='Tensor')>
    """
    namespace, packet, *overload = name.split(".")
    if namespace == "host":
        return OPERATORS[packet]
    found = getattr(getattr(torch.ops, namespace), packet)
    return getattr(found, overload[0])  # type: ignore[no-any-return]


def symbol(arg: Symbol) -> object:
    """Return torch's object for a symbol."""
    return torch.device(arg.name) if arg.kind == "device" else getattr(torch, arg.name)


def interpret(
    graph: Graph,
    tensors: Mapping[int, torch.Tensor],
    scalars: Mapping[int, float],
    bodies: Mapping[int, Body] | None = None,
) -> dict[Value, Any]:
    """Run every node in order and return every Value.

    Args:
        graph: the program.
        tensors: one an input that is a tensor, by input id; none is written into.
        scalars: one an input that is a host number, by input id.
        bodies: what each loop does, by id of its node.
    """
    values: dict[Value, Any] = {Value(id): given for id, given in scalars.items()}
    values |= {Value(id): given.detach() for id, given in tensors.items()}
    with torch.no_grad():
        for node in graph.nodes:
            if bodies and node.id in bodies:
                values.update(zip(node.outputs, _parts(bodies[node.id], node, values), strict=True))
                continue
            if node.bodies:
                values.update(zip(node.outputs, _controlled(node, values), strict=True))
                continue
            values.update(zip(node.outputs, _run(node, values), strict=True))
    return values


def interpret_dataflow(
    graph: Graph, tensors: Mapping[int, torch.Tensor], scalars: Mapping[int, float]
) -> list[Any]:
    """Run a graph as switches and merges, and return its outputs and the new values of its state.

    Args:
        graph: the program.
        tensors: one an input that is a tensor, by input id; none is written into.
        scalars: one an input that is a host number, by input id.
    """

    def operator(node: Node, values: Sequence[Any]) -> list[Any]:
        return _run(node, dict(zip(node.inputs, values, strict=True)))

    given = [tensors[one.id].detach() if one.id in tensors else scalars[one.id] for one in graph.inputs]
    with torch.no_grad():
        return run(dataflow(graph), given, operator)


def _run(node: Node, values: Mapping[Value, Any]) -> list[Any]:
    """Run one operator and return its outputs."""
    args = [_real(arg, values) for arg in node.args]
    kwargs = {name: _real(arg, values) for name, arg in node.kwargs}
    with mode_for(node):
        return pytree.tree_leaves(operator_of(node.op.name)(*args, **kwargs))


def _controlled(node: Node, values: Mapping[Value, Any]) -> list[torch.Tensor]:
    """Return what control flow gives out: the side that the predicate chooses, or what the last pass left."""
    given = [values[value] for value in operands(node)]
    if node.op.name == COND:
        predicate = node.args[0]
        assert isinstance(predicate, Value)
        return _applied(node.bodies[not values[predicate]], given)
    test, body = node.bodies
    carried = [given[place].clone() for place in range(len(node.types))]
    others = given[len(carried) :]
    while _applied(test, [*carried, *others])[0]:
        carried = _applied(body, [*carried, *others])
    return carried


def _applied(graph: Graph, given: list[torch.Tensor]) -> list[torch.Tensor]:
    made = interpret(graph, {one.id: value for one, value in zip(graph.inputs, given, strict=True)}, {})
    return [made[out.value] for out in graph.outputs]


def _parts(body: Body, node: Node, values: Mapping[Value, Any]) -> list[torch.Tensor]:
    """Return what a loop makes: each part goes on with what the one before left."""
    given = dict(zip(body.operands, (values[value] for value in node.inputs), strict=True))
    tensors = {ident: found for ident, found in given.items() if isinstance(found, torch.Tensor)}
    scalars = {ident: found for ident, found in given.items() if ident not in tensors}
    kinds = [kind for kind in node.types if isinstance(kind, TensorType)]
    results = [
        tensors[ident].clone() if ident in tensors else _blank(kind, initial)
        for ident, kind, initial in zip(body.results, kinds, body.initial, strict=True)
    ]
    new = body.graph.new_value
    for start, stop in body.ends:
        numbers = {number.input: number.at(start, stop) for number in body.numbers}
        now = tensors | dict(zip(body.results, results, strict=True))
        made = interpret(body.graph, now, scalars | numbers, body.derived.bodies)
        results = [made[new[ident]] for ident in body.results]
    return results


def _blank(kind: TensorType, initial: Initial) -> torch.Tensor:
    dtype = getattr(torch, kind.dtype)
    blank = torch.empty_strided(kind.shape, kind.strides, dtype=dtype, device=kind.device)
    if initial not in ("lowest", "highest"):
        return blank.fill_(initial == "ones")
    info = torch.finfo(dtype) if dtype.is_floating_point else torch.iinfo(dtype)
    ends = (-float("inf"), float("inf")) if dtype.is_floating_point else (info.min, info.max)
    return blank.fill_(ends[initial == "highest"])


def _real(arg: Arg, values: Mapping[Value, Any]) -> Any:
    if isinstance(arg, Value):
        return values[arg]
    if isinstance(arg, Symbol):
        return symbol(arg)
    if isinstance(arg, tuple):
        return [_real(item, values) for item in arg]
    return arg
