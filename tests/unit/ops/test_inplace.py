"""Which operands an output may be written over: types, views, shared storage."""

import pytest

from peakfold.ir.graph import Graph, Input, Node, Op, Value
from peakfold.ir.types import TensorType, tensor
from peakfold.ops.inplace import FORMS, is_dense, reusable_operands

ROW = tensor(2, 3)


def ways(op, args, kinds, out=ROW, views=()):
    """The ways of one node over inputs of these kinds; ``views`` are (operand, type) above it."""
    inputs = tuple(Input(i, f"x{i}", "batch", kind) for i, kind in enumerate(kinds))
    above = tuple(
        Node(50 + i, f"v{i}", Op("aten.view.default"), (of,), (), (kind,), (of,))
        for i, (of, kind) in enumerate(views)
    )
    node = Node(99, "y", Op(op), args, (), (out,), (None,))
    found = reusable_operands(Graph(inputs, (*above, node), ()), node)
    return [(way.form, way.keyword, way.operand.node) for way in found]


def test_first_operand_in_place_the_others_by_out():
    found = ways("aten.mul.Tensor", (Value(0), Value(1)), (ROW, ROW))
    assert found == [("aten.mul_.Tensor", "", 0), ("aten.mul.out", "out", 1)]


def test_gradient_of_an_activation_goes_over_either_operand():
    found = ways("aten.gelu_backward.default", (Value(0), Value(1)), (ROW, ROW))
    form = "aten.gelu_backward.grad_input"
    assert found == [(form, "grad_input", 0), (form, "grad_input", 1)]


@pytest.mark.parametrize(
    "kind",
    [
        tensor(3),
        tensor(2, 1),
        tensor(2, 3, dtype="float64"),
        tensor(2, 3, strides=(1, 2)),
        tensor(2, 3, device="cuda:0"),
    ],
)
def test_another_type_is_no_place_for_the_output(kind):
    assert ways("aten.add.Tensor", (Value(0), Value(1)), (ROW, kind)) == [("aten.add_.Tensor", "", 0)]
    assert ways("aten.add.Tensor", (Value(1), Value(0)), (ROW, kind)) == [("aten.add.out", "out", 0)]


def test_a_number_is_no_place_for_the_output():
    assert ways("aten.mul.Tensor", (2.0, Value(0)), (ROW,)) == [("aten.mul.out", "out", 0)]


def test_a_view_of_the_whole_storage_is_one():
    found = ways("aten.relu.default", (Value(50),), (tensor(6),), views=[(Value(0), ROW)])
    assert found == [("aten.relu_.default", "", 50)]


def test_a_view_of_a_part_is_none():
    assert ways("aten.relu.default", (Value(50),), (tensor(4, 3),), views=[(Value(0), ROW)]) == []


def test_an_expanded_operand_is_none():
    wide = tensor(2, 3, strides=(0, 1))
    assert ways("aten.relu.default", (Value(50),), (tensor(3),), wide, views=[(Value(0), wide)]) == []


def test_the_same_operand_twice_is_one_way():
    assert ways("aten.mul.Tensor", (Value(0), Value(0)), (ROW,)) == [("aten.mul_.Tensor", "", 0)]


def test_another_view_of_the_same_storage_forbids_it():
    square, turned = tensor(3, 3), tensor(3, 3, strides=(1, 3))
    assert ways("aten.add.Tensor", (Value(0), Value(50)), (square,), square, [(Value(0), turned)]) == []


def test_written_in_part_only_where_nothing_else_is_the_same_memory():
    args = (Value(0), (Value(1),), Value(0))
    index = tensor(2, dtype="int64")
    assert ways("aten.index_put.default", args, (ROW, index)) == []
    assert ways("aten.index_put.default", (Value(0), (Value(1),), 1.0), (ROW, index)) != []


def test_rows_are_written_in_place_in_full_precision_only():
    half = tensor(2, 3, dtype="bfloat16")
    assert ways("aten._softmax.default", (Value(0), 1, False), (ROW,)) == [("aten._softmax.out", "out", 0)]
    assert ways("aten._softmax.default", (Value(0), 1, False), (half,), half) == []


def test_operators_without_a_form():
    assert ways("aten.mm.default", (Value(0), Value(1)), (ROW, tensor(3, 3))) == []
    assert ways("mylib.op.default", (Value(0),), (ROW,)) == []


def test_empty_tensors_have_nothing_to_reuse():
    empty = tensor(0, 3)
    assert ways("aten.relu.default", (Value(0),), (empty,), empty) == []


def test_dense_by_brute_force():
    shapes, strides = ((2, 3), (1, 3), (2, 1), (2, 2)), range(7)
    for shape in shapes:
        for a in strides:
            for b in strides:
                kind = TensorType(shape, "float32", "cpu", (a, b))
                places = [i * a + j * b for i in range(shape[0]) for j in range(shape[1])]
                assert is_dense(kind) == (sorted(places) == list(range(len(places)))), kind


def test_names_of_forms_are_overloads():
    for name, forms in FORMS.items():
        assert forms.inplace or forms.out, name
        for form in filter(None, (name, forms.inplace, forms.out)):
            assert form.count(".") == 2, form
