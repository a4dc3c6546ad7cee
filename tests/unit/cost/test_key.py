from dataclasses import replace

from peakfold.cost.key import Machine, key, keys
from peakfold.ir.graph import Graph, Input, Node, Op, Symbol, Value
from peakfold.ir.types import ScalarType, tensor

HERE = Machine("cpu", "EPYC", "2.13.0", 1)
GIVEN = (
    Input(0, "x", "batch", tensor(2, 3)),
    Input(1, "y", "batch", tensor(2, 3)),
    Input(2, "z", "batch", tensor(2, 3, strides=(1, 2))),
    Input(3, "lr", "scalar", ScalarType("float")),
)


def text(args, kwargs=(), machine=HERE, name="aten.add.Tensor", stream=None):
    node = Node(9, "n", Op(name), args, kwargs, (tensor(2, 3),), (None,), stream)
    return key(Graph(GIVEN, (node,), ()), node, machine)


def test_the_text():
    args = (Value(0), Value(2), (1, None, 2.5), Symbol("dtype", "float32"))
    assert text(args, (("alpha", Value(3)),)) == (
        "aten.add.Tensor(%0:float32[2,3]{3,1}@cpu, %1:float32[2,3]{1,2}@cpu, (1, None, 2.5), dtype.float32, "
        "alpha=%2:float) on cpu; EPYC; torch 2.13.0; 1 threads"
    )


def test_everything_that_a_cost_depends_on_counts():
    base = text((Value(0), Value(1)))
    others = [
        text((Value(0), Value(0))),
        text((Value(0), Value(2))),
        text((Value(0), Value(1)), (("alpha", 2),)),
        text((Value(0), Value(1)), name="aten.mul.Tensor"),
        text((Value(0), Value(1)), machine=replace(HERE, threads=2)),
        text((Value(0), Value(1)), machine=replace(HERE, torch="2.14.0")),
        text((Value(0), Value(1)), machine=replace(HERE, cpu="Xeon")),
        text((Value(0), Value(1)), machine=replace(HERE, device="cuda H200")),
    ]
    assert len({base, *others}) == len(others) + 1


def test_names_ids_and_random_streams_do_not_count():
    assert text((Value(0), Value(1)), stream=3) == text((Value(1), Value(0)), stream=None)


def test_views_and_host_numbers_have_no_key():
    view = Node(4, "v", Op("aten.view.default"), (Value(0), (6,)), (), (tensor(6),), (Value(0),))
    host = Node(5, "h", Op("host.neg"), (Value(3),), (), (ScalarType("float"),), (None,))
    neg = Node(6, "n", Op("aten.neg.default"), (Value(4),), (), (tensor(6),), (None,))
    assert list(keys(Graph(GIVEN, (view, host, neg), ()), HERE)) == [6]
