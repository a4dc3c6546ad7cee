"""Each line of the in-place table, tried on random shapes, dtypes and strides."""

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, reduce

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from peakfold.ir.graph import Graph, Input, Node, Op, Value
from peakfold.ir.types import TensorType
from peakfold.ops.inplace import FORMS, InPlace, reusable_operands

SHAPES = ((7,), (4, 33), (1, 8, 6), (2, 3, 4, 5), (2, 5, 20, 64))
DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.bool)

# Scalars by argument name; everything that a schema requires and that is no tensor.
SCALARS: dict[str, object] = {
    "alpha": 0.3, "value": 0.7, "weight": 0.25, "exponent": 3, "other": 1.7, "threshold": 0.1, "beta": 2.0,
    "negative_slope": 0.01, "min": -0.5, "max": 0.6, "min_val": -0.5, "max_val": 0.6, "scale": 1.0,
    "input_scale": 1.0, "is_result": False, "self_is_result": False, "reduction": 1, "lambd": 1.3,
    "rounding_mode": "floor", "p": 0.4, "diagonal": 0, "half_to_float": False, "self": 2.5,
}  # fmt: skip
INTEGERS = {"alpha": 2, "other": 3, "value": 2, "min": -2, "max": 3, "exponent": 2}
MASKS = {"mask", "condition"}
ROWS = {"_softmax", "_log_softmax", "_softmax_backward_data", "_log_softmax_backward_data"}


@dataclass(frozen=True)
class Case:
    args: tuple
    kwargs: dict


def resolve(name: str) -> Callable:
    return reduce(getattr, name.split("."), torch.ops)


def layouts(shape: tuple[int, ...]):
    """Contiguous; reversed dimensions; and channels last where there are four."""
    yield tuple(range(len(shape)))
    if len(shape) > 1:
        yield tuple(reversed(range(len(shape))))
    if len(shape) == 4:
        yield (0, 2, 3, 1)


def dense(shape, dtype, order) -> torch.Tensor:
    """A tensor of this shape whose memory order of dimensions is ``order``."""
    stored = torch.empty([shape[d] for d in order], dtype=dtype)
    if dtype.is_floating_point:
        stored.normal_().clamp_(-2.5, 2.5)
    else:
        stored.random_(0, 2 if dtype is torch.bool else 9)
    return stored.permute([order.index(d) for d in range(len(order))])


def argument(op: str, arg, shape, dtype, order, dim: int):
    kind = str(arg.type)
    if op in {"index_put", "index_add", "scatter", "scatter_add"} and arg.name in {"index", "indices"}:
        rows = torch.randint(0, shape[0], (shape[0],))
        spread = rows.reshape(-1, *[1] * (len(shape) - 1)).expand(shape).contiguous()
        return {"index_put": [rows], "index_add": rows}.get(op, spread)
    if arg.name == "dim":
        return dim
    if arg.name == "input_dtype":
        return dtype
    if arg.name == "value" and op == "masked_fill" and "Tensor" in kind:
        return torch.tensor(0.5).to(dtype)
    if "Tensor" in kind:
        return dense(shape, torch.bool if arg.name in MASKS else dtype, order)
    number = SCALARS[arg.name]
    return number if dtype.is_floating_point else INTEGERS.get(arg.name, number)


def draw(op: str, schema, shape, dtype, order) -> Case:
    """Arguments of one call; those with a default are given by name only where SCALARS has them."""
    dim = len(shape) // 2 if op in ROWS else 0
    make = {
        arg.name: argument(op, arg, shape, dtype, order, dim)
        for arg in schema.arguments
        if ("Tensor" in str(arg.type) and "Optional" not in str(arg.type))
        or not arg.has_default_value()
        or (arg.name in SCALARS and "Optional" not in str(arg.type) and arg.name != "reduction")
        or (op == "clamp" and arg.name in {"min", "max"})
    }  # fmt: skip
    kwargs = {arg.name: make.pop(arg.name) for arg in schema.arguments if arg.kwarg_only and arg.name in make}
    return Case(tuple(make.values()), kwargs)


def variants(op: str, case: Case, dtype: torch.dtype):
    """The case, and with its second tensor a number, a 0-dim tensor, a row, and the first tensor."""
    yield case
    if op in ROWS:
        return
    positions = [i for i, arg in enumerate(case.args) if isinstance(arg, torch.Tensor)]
    if len(positions) < 2:
        return
    second = positions[1]
    first, old = case.args[positions[0]], case.args[second]
    number = 1.7 if dtype.is_floating_point else 2
    row = torch.ones(old.shape[-1:], dtype=old.dtype)
    for new in (number, torch.tensor(number), row, first):
        yield Case((*case.args[:second], new, *case.args[second + 1 :]), case.kwargs)


@cache
def cases(name: str) -> list[Case]:
    """Arguments on which the functional form itself is defined."""
    op, forms = name.split(".")[1], FORMS[name]
    functional, found = resolve(name), []
    for shape, dtype in itertools.product(SHAPES, DTYPES):
        if forms.dtypes and str(dtype).removeprefix("torch.") not in forms.dtypes:
            continue
        for order in layouts(shape):
            for case in variants(op, draw(op, functional._schema, shape, dtype, order), dtype):
                try:
                    call(functional, case)
                except (RuntimeError, NotImplementedError, IndexError):
                    continue
                found.append(case)
    return found


def call(function: Callable, case: Case, **more):
    torch.manual_seed(0)
    return function(*case.args, **case.kwargs, **more)


def type_of(value: torch.Tensor) -> TensorType:
    dtype = str(value.dtype).removeprefix("torch.")
    return TensorType(tuple(value.shape), dtype, "cpu", tuple(value.stride()))


def as_graph(name: str, case: Case, result: torch.Tensor) -> tuple[Graph, dict[int, torch.Tensor]]:
    """The graph of one call, and its tensors by id of the input."""
    given: dict[int, torch.Tensor] = {}

    def take(arg):
        if isinstance(arg, torch.Tensor):
            known = [i for i, value in given.items() if value is arg]
            given.setdefault(known[0] if known else len(given), arg)
            return Value(known[0] if known else len(given) - 1)
        return tuple(take(item) for item in arg) if isinstance(arg, list) else arg

    args = tuple(take(arg) for arg in case.args)
    node = Node(99, "y", Op(name), args, (), (type_of(result),), (None,))
    inputs = tuple(Input(i, f"x{i}", "batch", type_of(value)) for i, value in given.items())
    return Graph(inputs, (node,), (), ()), given


def copied(case: Case) -> Case:
    """The same values in fresh tensors of the same strides."""
    new = {id(arg): arg.clone() for arg in case.args if isinstance(arg, torch.Tensor)}
    return Case(tuple(new.get(id(arg), arg) for arg in case.args), case.kwargs)


def run_in_place(way: InPlace, case: Case, position: int):
    more = {way.keyword: case.args[position]} if way.keyword else {}
    return call(resolve(way.form), case, **more)


@cache
def ways(name: str) -> list[tuple[Case, torch.Tensor, InPlace, int]]:
    """Each case with its expected result, a way to do it in place, and the operand's position."""
    found = []
    for case in cases(name):
        expected = call(resolve(name), case)
        graph, _ = as_graph(name, case, expected)
        node = graph.nodes[0]
        found += [
            (case, expected, way, node.args.index(way.operand)) for way in reusable_operands(graph, node)
        ]
    return found


def allocated(work: Callable[[], object]) -> int:
    """Sum of the bytes of every allocation that some work makes."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        work()
    events = profiler.profiler.kineto_results.events()
    return sum(max(event.nbytes(), 0) for event in events if event.name() == "[memory]")


def bits(value: torch.Tensor) -> torch.Tensor:
    return value.contiguous().view(torch.uint8)


def storage_bytes(value: torch.Tensor) -> int:
    return value.untyped_storage().nbytes()


@pytest.mark.parametrize("name", FORMS)
def test_form_is_bit_equal_and_in_the_operands_buffer(name):
    tried, forms = ways(name), FORMS[name]
    assert {way.form for _, _, way, _ in tried} == {form for form in (forms.inplace, forms.out) if form}
    for case, expected, way, position in tried:
        mine = copied(case)
        result = run_in_place(way, mine, position)
        assert result.data_ptr() == mine.args[position].data_ptr(), way
        assert torch.equal(bits(result), bits(expected)), (way, expected.shape, expected.dtype)
        assert result.stride() == expected.stride(), way


@pytest.mark.parametrize("name", FORMS)
def test_form_allocates_what_the_functional_form_does_less_its_output(name):
    tried = ways(name)
    again = [(copied(case), way, position) for case, _, way, position in tried]
    functional = allocated(lambda: [call(resolve(name), case) for case, _, _, _ in tried])
    inplace = allocated(lambda: [run_in_place(way, case, position) for case, way, position in again])
    outputs = sum(storage_bytes(expected) for _, expected, _, _ in tried)
    assert inplace == functional - outputs, name
