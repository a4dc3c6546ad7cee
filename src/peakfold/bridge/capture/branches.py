"""torch.cond where gradients are asked for: forward and backward are branches of their own.

As torch does it, the backward pass computes the side that ran once more, from what went into it, and then its
gradients. What the functions close over counts as operands: torch's compiler finds it by reading the code,
and here a first look at what they read does.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, cast

import torch
from torch.utils import _pytree as pytree

from peakfold.bridge.capture import control, passes
from peakfold.bridge.capture.closures import as_now
from peakfold.bridge.capture.intercept import intercepted
from peakfold.bridge.capture.leaves import gradients as gradients_of
from peakfold.bridge.capture.leaves import leaf, now, standing, standing_for

if TYPE_CHECKING:
    from peakfold.bridge.capture.recorder import Recorder

Function = Callable[..., object]
Tensors = tuple[torch.Tensor, ...]


@contextmanager
def control_flow(recorder: "Recorder") -> Iterator[None]:
    """Have torch.cond and while_loop record what they mean, where torch would compile around them."""

    def cond(predicate: object, then: Function, other: Function, operands: Sequence[Any]) -> object:
        return _cond(recorder, predicate, (then, other), tuple(operands))

    def loop(test: Function, function: Function, carried: Sequence[Any], others: Sequence[Any]) -> object:
        return passes.while_loop(recorder, test, function, carried, others)

    with intercepted(cond, loop):
        yield


def _cond(
    recorder: "Recorder", predicate: object, sides: tuple[Function, Function], operands: Tensors
) -> object:
    operands = now(operands)
    number = control.known(recorder, predicate)
    if number is not None:
        return sides[not number](*operands)
    assert isinstance(predicate, torch.Tensor)
    if not torch.is_grad_enabled():
        return control.branch(recorder, predicate, sides, operands)
    given = (*operands, *_read(recorder, sides, operands))
    if not any(tensor.requires_grad for tensor in given):
        return control.branch(recorder, predicate, sides, operands)
    tree: list[pytree.TreeSpec] = []
    made = _Branch.apply(recorder, predicate, sides, len(operands), tree, *given)  # type: ignore[no-untyped-call]
    return pytree.tree_unflatten(made, tree[0])


def _read(recorder: "Recorder", sides: Sequence[Function], operands: Tensors) -> list[torch.Tensor]:
    """Return the tensors from outside that need a gradient and are read or given back beside the operands."""
    known = set(map(id, operands))
    found: dict[int, torch.Tensor] = {}
    with torch.no_grad():
        for side in sides:
            inner, made, _ = control.traced(recorder, side, operands)
            inner.reads(made)
            found |= {id(tensor): tensor for tensor in inner.seen if id(tensor) not in known}
    return [tensor for tensor in found.values() if tensor.requires_grad]


class _Branch(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        recorder: "Recorder",
        predicate: torch.Tensor,
        sides: tuple[Function, Function],
        count: int,
        tree: list[pytree.TreeSpec],
        *given: torch.Tensor,
    ) -> Tensors:
        ctx.recorder, ctx.sides, ctx.count = recorder, tuple(map(as_now, sides)), count
        ctx.given, ctx.outside = given, standing()
        ctx.save_for_backward(predicate, *given)
        result = control.branch(recorder, predicate, sides, given[:count])
        leaves, spec = pytree.tree_flatten(result)
        tree.append(spec)
        made = cast(Tensors, tuple(leaves))
        ctx.mark_non_differentiable(*(t for t in made if not t.is_floating_point()))
        return made

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        predicate, *_ = ctx.saved_tensors  # torch refuses here where one of them was changed in place
        given = ctx.given
        wanted = [place for place, needed in enumerate(ctx.needs_input_grad[5:]) if needed]
        sides = tuple(_backward(side, given, ctx.count, wanted, gradients, ctx.outside) for side in ctx.sides)
        made = control.branch(ctx.recorder, predicate, cast(Any, sides), ())
        found: list[torch.Tensor | None] = [None] * len(given)
        for place, gradient in zip(wanted, cast(Tensors, made), strict=True):
            found[place] = gradient
        return (None,) * 5 + tuple(found)


def _backward(
    side: Function,
    given: Tensors,
    count: int,
    wanted: Sequence[int],
    gradients: Tensors,
    outside: Mapping[int, torch.Tensor],
) -> Function:
    """Return a function of nothing that gives the gradients of one side, zeros for what it does not read."""

    def run() -> Tensors:
        with torch.enable_grad():
            leaves = [leaf(one) for one in given]
            with standing_for({id(one): own for one, own in zip(given, leaves, strict=True)}, outside):
                made = now(pytree.tree_leaves(side(*leaves[:count])))
        return tuple(gradients_of(made, gradients, [leaves[place] for place in wanted]))

    return run
