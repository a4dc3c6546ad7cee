"""Copies that change nothing: what they copy stands for them in a prepared program."""

import pytest

from peakfold.ir.graph import Graph, Input, Node, Op, Output, State, Value
from peakfold.ir.types import tensor
from peakfold.plan.fission.prepare import prepare

IMAGE = tensor(2, 3, 4, 4)
GIVEN = (Input(0, "x", "batch", IMAGE), Input(1, "kept", "buffer", IMAGE))


def node(ident, op, args, kind=IMAGE, alias=None):
    return Node(ident, f"n{ident}", Op(op), args, (), (kind,), (alias,))


MADE = node(10, "aten.exp.default", (Value(0),))
BUFFER = node(11, "aten.new_empty_strided.default", (Value(10), IMAGE.shape, IMAGE.strides))


def prepared(*nodes, reads=20, state=()):
    last = node(30, "aten.sin.default", (Value(reads),))
    graph = Graph(GIVEN, (*nodes, last), (Output("y", Value(30)),), state)
    return [one.op.packet for one in prepare(graph).nodes]


@pytest.mark.parametrize(
    "copies",
    [
        (node(20, "aten.clone.default", (Value(10),)),),
        (BUFFER, node(20, "aten.copy.default", (Value(11), Value(10)))),
        (node(20, "aten.replication_pad2d.default", (Value(10), (0, 0, 0, 0))),),
        (node(20, "aten.reflection_pad2d.default", (Value(10), (0, 0, 0, 0))),),
        (node(20, "aten.replication_pad2d_backward.default", (Value(10), Value(0), (0, 0, 0, 0))),),
    ],
)
def test_a_copy_of_what_a_node_makes_is_left_out(copies):
    assert prepared(MADE, *copies) == ["exp", "sin"]


SHIFTED = tensor(2, 3, 4, 4, strides=(48, 1, 12, 3))
PIECE = node(11, "aten.slice.Tensor", (Value(10), 0, 1, 2), tensor(1, 3, 4, 4), Value(10))


@pytest.mark.parametrize(
    ("before", "copy"),
    [
        ((), node(20, "aten.clone.default", (Value(0),))),  # of an input, which may be written
        ((MADE,), node(20, "aten.clone.default", (Value(10),), SHIFTED)),
        ((MADE,), node(20, "aten.clone.default", (Value(10),), tensor(2, 3, 4, 4, dtype="float64"))),
        ((MADE, PIECE), node(20, "aten.clone.default", (Value(11),), tensor(1, 3, 4, 4))),
        ((MADE,), node(20, "aten.replication_pad2d.default", (Value(10), (0, 1, 0, 0)), tensor(2, 3, 4, 5))),
    ],
)
def test_a_copy_that_is_another_tensor_stays(before, copy):
    assert copy.op.packet in prepared(*before, copy)


def test_a_copy_that_is_given_out_stays():
    copy = node(20, "aten.clone.default", (Value(10),))
    state = (State(1, Value(20)),)
    assert "clone" in prepared(MADE, copy, reads=10, state=state)
