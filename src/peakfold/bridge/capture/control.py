"""torch.cond and while_loop, captured as nodes that have graphs of their own."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import _disable_current_modes

from peakfold.bridge.capture.inner import Inner, type_in
from peakfold.bridge.capture.places import model_line
from peakfold.bridge.capture.storage import Geometry
from peakfold.bridge.capture.tape import Tape, aten
from peakfold.errors import CaptureError
from peakfold.ir.control import COND, WHILE
from peakfold.ir.graph import Graph, Op, Value
from peakfold.ir.types import contiguous_strides

if TYPE_CHECKING:
    from peakfold.bridge.capture.recorder import Recorder

Function = Callable[..., object]


def known(recorder: "Recorder", predicate: object) -> float | None:
    """Return what a predicate is, where it is the same in every run, else None."""
    if not isinstance(predicate, torch.Tensor):
        return float(bool(predicate))
    number = recorder.tape.values.number(predicate)
    if number is not None:
        recorder.tape.decided.append(model_line())
    return number


def branch(
    recorder: "Recorder",
    predicate: torch.Tensor,
    sides: tuple[Function, Function],
    operands: Sequence[object],
) -> object:
    """Record a branch and return its outputs as its functions do.

    Args:
        recorder: of the capture.
        predicate: decides which side runs.
        sides: what runs where it holds, and where it does not.
        operands: what each is given.

    Raises:
        CaptureError: it has no place here, or its sides do not return the same kinds of tensors.
    """
    _check_forward(recorder, "torch.cond")
    outer = recorder.tape
    (one, first, tree), (two, second, other_tree) = (
        traced(recorder, function, operands) for function in sides
    )
    _check_same("the branches of torch.cond return", first, second, tree == other_tree)
    wanted = [_common(a, b) for a, b in zip(first, second, strict=True)]
    with _aside(outer):
        return pytree.tree_unflatten(
            _recorded_branch(outer, predicate, (one, first), (two, second), wanted), tree
        )


def _recorded_branch(
    outer: Tape,
    predicate: torch.Tensor,
    then: tuple[Inner, Sequence[torch.Tensor]],
    other: tuple[Inner, Sequence[torch.Tensor]],
    wanted: Sequence[Geometry],
) -> list[torch.Tensor]:
    (one, one_made), (two, two_made) = then, other
    returned = one.owned(one_made, wanted), two.owned(two_made, wanted)
    shared = tuple(dict.fromkeys((*one.taken, *two.taken)))
    bodies = (one.graph(one.inputs_for(shared), returned[0]), two.graph(two.inputs_for(shared), returned[1]))
    types = tuple(type_in(one, value) for value in returned[0])
    args = (outer.value(predicate), *shared)
    node = outer.append(_operator(COND, bodies), args, (), types, (None,) * len(types), bodies).node
    return _outputs(outer, node, wanted)


def while_loop(
    recorder: "Recorder",
    test: Function,
    function: Function,
    carried: Sequence[object],
    others: Sequence[object],
) -> object:
    """Record a while loop and return what it carries in the end.

    Args:
        recorder: of the capture.
        test: says whether there is another pass.
        function: a pass.
        carried: what the first pass is given, and each returns for the next.
        others: what all are given beside it.

    Raises:
        CaptureError: it has no place here, or a pass returns other kinds of tensors than it is given.
    """
    _check_forward(recorder, "while_loop")
    outer = recorder.tape
    given = [_carried(value) for value in carried]
    wanted = [_dense(Geometry.of(tensor)) for tensor in given]
    (asking, answer, _), (making, made, _) = (
        traced(recorder, one, others, wanted) for one in (test, function)
    )
    if len(answer) != 1 or answer[0].numel() != 1 or answer[0].dtype != torch.bool:
        got = ", ".join(f"{tensor.dtype} of shape {tuple(tensor.shape)}" for tensor in answer)
        raise _error("the condition of while_loop is none", "one torch.bool of one element", got)
    _check_same("a pass of while_loop is given and returns", given, made, True)
    _check_no_gradient((*given, *asking.seen, *making.seen))
    with _aside(outer):
        values = asking.owned(answer, [Geometry.of(answer[0])]), making.owned(made, wanted)
        first = [_initial(outer, *pair) for pair in zip(given, wanted, strict=True)]
        return tuple(_recorded_loop(outer, first, (asking, making), values, wanted))


def _recorded_loop(
    outer: Tape,
    first: Sequence[Value],
    inners: tuple[Inner, Inner],
    values: tuple[list[Value], list[Value]],
    wanted: Sequence[Geometry],
) -> list[torch.Tensor]:
    shared = tuple(dict.fromkeys((*inners[0].taken, *inners[1].taken)))
    bodies = tuple(
        inner.graph([*inner.inputs[: len(first)], *inner.inputs_for(shared)], found)
        for inner, found in zip(inners, values, strict=True)
    )
    types = tuple(type_in(inners[1], value) for value in values[1])
    args = (*first, *shared)
    node = outer.append(_operator(WHILE, bodies), args, (), types, (None,) * len(types), bodies).node
    return _outputs(outer, node, wanted)


@contextmanager
def _aside(tape: Tape) -> Iterator[None]:
    """Have operators on fake tensors not be recorded."""
    with _disable_current_modes(), tape.fake:
        yield


def traced(
    recorder: "Recorder",
    function: Function,
    operands: Sequence[object],
    fresh: Sequence[Geometry] = (),
) -> tuple[Inner, list[torch.Tensor], pytree.TreeSpec]:
    """Record a function on a tape of its own; it is given new tensors first, then operands from outside."""
    inner, outer = Inner.of(recorder.tape), recorder.tape
    with _aside(outer):
        new = [geometry.empty() for geometry in fresh]
    for tensor in new:
        inner.add_input(tensor, "", "batch")
    recorder.tape = inner
    try:
        result = function(*new, *operands)
    finally:
        recorder.tape = outer
    leaves, tree = pytree.tree_flatten(result)
    if not leaves or not all(isinstance(leaf, torch.Tensor) for leaf in leaves):
        kinds = ", ".join(sorted({type(leaf).__name__ for leaf in leaves})) or "nothing"
        raise _error("a branch or loop returns something else than tensors", "tensors", kinds)
    return inner, leaves, tree


def _check_forward(recorder: "Recorder", what: str) -> None:
    tape = recorder.tape
    while isinstance(tape, Inner):
        tape = tape.outer
    if tape.key is not None:
        got, hint = "rng='counter'", "let the numbers be those that eager draws"
        raise _error(
            f"{what} is captured with numbers drawn from torch's stream alone", "rng='eager'", got, hint
        )
    if recorder.tape.places.phase == "update":
        raise _error(f"{what} runs in the optimizer", "control flow in the forward pass")


def _check_no_gradient(tensors: Sequence[torch.Tensor]) -> None:
    if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors):
        hint = "detach what it reads, or write the passes out"
        raise _error("while_loop reads what needs a gradient", "loops without gradients", "", hint)


def _check_same(
    what: str, first: Sequence[torch.Tensor], second: Sequence[torch.Tensor], trees: bool
) -> None:
    texts = [
        [f"{str(t.dtype).removeprefix('torch.')}{list(t.shape)}" for t in tensors]
        for tensors in (first, second)
    ]
    if not trees or texts[0] != texts[1]:
        got = " and ".join(f"({', '.join(row)})" for row in texts)
        hint = "pad, or convert, so that both are alike"
        raise _error(f"{what} tensors of different shapes or types", "the same of both", got, hint)


def _common(one: torch.Tensor, two: torch.Tensor) -> Geometry:
    """Return how an output lies that both branches make: as both have it, or row by row."""
    geometry = Geometry.of(one)
    return _dense(geometry) if one.stride() == two.stride() else _row_major(geometry)


def _dense(geometry: Geometry) -> Geometry:
    return _placed(geometry, geometry.strides) if geometry.is_dense else _row_major(geometry)


def _row_major(geometry: Geometry) -> Geometry:
    return _placed(geometry, contiguous_strides(geometry.shape))


def _placed(geometry: Geometry, strides: tuple[int, ...]) -> Geometry:
    return Geometry(geometry.shape, strides, 0, geometry.dtype, geometry.device)


def _carried(value: object) -> torch.Tensor:
    if isinstance(value, torch.Tensor):
        return value
    raise _error(
        "while_loop carries something else than tensors",
        "tensors",
        f"a {type(value).__name__}",
        "carry a number as a tensor: torch.tensor(0)",
    )


def _initial(tape: Tape, tensor: torch.Tensor, wanted: Geometry) -> Value:
    """Return what a loop carries at first, as it lies in every pass."""
    if tensor.stride() == wanted.strides:
        return tape.value(tensor)
    form = {"memory_format": torch.contiguous_format}
    return tape.compute(aten.clone.default, (tape.value(tensor),), (tensor,), form)[0]


def _operator(name: str, bodies: Sequence[Graph]) -> Op:
    ops = [node.op for body in bodies for node in body.nodes]
    random = any(op.random for op in ops)
    return Op(name, pure=not random and all(op.pure for op in ops), random=random)


def _outputs(tape: Tape, node: int, wanted: Sequence[Geometry]) -> list[torch.Tensor]:
    with _aside(tape):
        made = [geometry.empty() for geometry in wanted]
    for index, tensor in enumerate(made):
        tape.storages.whole(tensor, Value(node, index))
    return made


def _error(what: str, expected: str, got: str = "", hint: str = "") -> CaptureError:
    return CaptureError(stage="capture", what=what, where=model_line(), expected=expected, got=got, hint=hint)
