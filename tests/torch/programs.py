"""Small programs for the tests of the emitted source, and the plainest schedule of a graph."""

import torch
from torch.utils import _pytree as pytree

from peakfold.bridge.capture.binding import BatchLeaf, Binding, Hyperparameter, Parameter
from peakfold.bridge.codegen.emit import emit
from peakfold.bridge.runtime.compiled import Compiled
from peakfold.bridge.runtime.saved_guards import saved_guards
from peakfold.ir.graph import Graph, Input, Node, Op, Origin, Output, State, Symbol, Value
from peakfold.ir.plan import Buffer, Commit, Compute, Free, Plan, Run, Schedule
from peakfold.ir.types import ScalarType, tensor

FLOAT = ScalarType("float")


def dropout_step() -> Graph:
    """``loss = dropout(relu(x @ w.T + b)).sum()`` and one step of SGD on ``w``."""
    inputs = (
        Input(0, "fc.weight", "parameter", tensor(4, 3)),
        Input(1, "fc.bias", "parameter", tensor(4)),
        Input(2, "x", "batch", tensor(2, 3)),
        Input(3, "lr", "scalar", FLOAT),
    )
    fc, drop, back, update = (
        Origin("fc", "model.py:3", "forward"),
        Origin("drop", "model.py:4", "forward"),
        Origin("fc", "model.py:3", "backward"),
        Origin("", "", "update"),
    )
    full = (tensor(2, 4),)
    nodes = (
        _view(10, "fc.t", "aten.t.default", (Value(0),), tensor(3, 4, strides=(1, 3)), Value(0), fc),
        Node(11, "fc.addmm", Op("aten.addmm.default"), (Value(1), Value(2), Value(10)), (), full, (None,),
             None, fc),
        Node(12, "relu", Op("aten.relu.default"), (Value(11),), (), full, (None,), None, fc),
        Node(13, "drop.native_dropout", Op("aten.native_dropout.default", False, True),
             (Value(12), 0.5, True), (), (tensor(2, 4), tensor(2, 4, dtype="bool")), (None, None), 0, drop),
        Node(14, "loss", Op("aten.sum.default"), (Value(13),), (), (tensor(),), (None,), None, drop),
        Node(15, "ones", Op("aten.full.default"), ((2, 4), 1.0), (("dtype", Symbol("dtype", "float32")),),
             full, (None,), None, back),
        Node(16, "drop.backward", Op("aten.native_dropout_backward.default"),
             (Value(15), Value(13, 1), 2.0), (), full, (None,), None, back),
        Node(17, "relu.backward", Op("aten.threshold_backward.default"), (Value(16), Value(12), 0), (),
             full, (None,), None, back),
        _view(18, "grad.t", "aten.t.default", (Value(17),), tensor(4, 2, strides=(1, 4)), Value(17), back),
        Node(19, "fc.weight.grad", Op("aten.mm.default"), (Value(18), Value(2)), (), (tensor(4, 3),),
             (None,), None, back),
        Node(20, "minus_lr", Op("host.neg"), (Value(3),), (), (FLOAT,), (None,), None, update),
        Node(21, "fc.weight.new", Op("aten.add.Tensor"), (Value(0), Value(19)), (("alpha", Value(20)),),
             (tensor(4, 3),), (None,), None, update),
    )  # fmt: skip
    return Graph(inputs, nodes, (Output("loss", Value(14)),), (State(0, Value(21)),))


def _view(id_, name, op, args, type_, alias, origin):
    return Node(id_, name, Op(op), args, (), (type_,), (alias,), None, origin)


def plain_schedule(graph: Graph) -> Schedule:
    """Program order; free at the last use; state is replaced after everything else."""
    kept = {graph.storage(output.value) for output in graph.outputs}
    kept |= {graph.storage(pair.output) for pair in graph.state}
    last = {}
    for node in graph.nodes:
        for value in _needed(graph, node):
            last[value] = node.id
        last.update({value: node.id for value in node.outputs if graph.storage(value) == value})
    steps = []
    for node in graph.nodes:
        if node.is_view:
            continue
        steps.append(Compute(Run(node.id)))
        dead = sorted(value for value, at in last.items() if at == node.id and value not in kept)
        steps += [Free(Buffer(value)) for value in dead if graph.nbytes(value)]
    for pair in graph.state:
        steps.append(Commit(pair.input))
        steps.append(Free(Buffer(graph.storage(pair.output))))
    return Schedule(tuple(steps))


def _needed(graph: Graph, node: Node):
    """Storages made by nodes that a node that is not a view reads, through views too."""
    if node.is_view:
        return set()
    return {root for root in map(graph.storage, node.inputs) if root.node in graph.node}


class Tiny(torch.nn.Module):
    """The model of `dropout_step`."""

    def __init__(self):
        super().__init__()
        self.fc = torch.nn.Linear(3, 4)
        self.fc.bias.requires_grad_(False)
        self.drop = torch.nn.Dropout(0.5)

    def forward(self, x):
        return self.drop(self.fc(x).relu())


def tiny_target(seed: int = 0):
    """Return (model, loss_fn, optimizer, batch) of `dropout_step`."""
    torch.manual_seed(seed)
    model = Tiny()
    optimizer = torch.optim.SGD([model.fc.weight], lr=0.1)
    return model, lambda model, x: model(x).sum(), optimizer, (torch.randn(2, 3),)


def tiny_compiled(model, optimizer, batch, schedule=None) -> Compiled:
    """Return `dropout_step` compiled for its model."""
    graph = dropout_step()
    binding = Binding(
        (Parameter("fc.weight"), Parameter("fc.bias"), BatchLeaf(0), Hyperparameter(0, "lr")),
        pytree.tree_structure((batch, {})),
        None,
        (),
        (),
    )
    portable = saved_guards(model, optimizer, batch)
    source = emit(graph, schedule or plain_schedule(graph))
    return Compiled(graph, binding, portable, portable, Plan(graph.digest), source)
