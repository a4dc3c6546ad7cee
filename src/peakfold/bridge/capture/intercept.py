"""torch.cond and while_loop, intercepted where the user calls them."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

import torch

Function = Callable[..., object]
Cond = Callable[[Any, Function, Function, Sequence[Any]], object]
Loop = Callable[[Function, Function, Sequence[Any], Sequence[Any]], object]


@contextmanager
def intercepted(cond: Cond, loop: Loop) -> Iterator[None]:
    """Have control flow operators call functions of ours, where torch would compile around them.

    Args:
        cond: given the predicate, both sides, and what they are given.
        loop: given the question, the pass, what is carried at first, and what else both are given.
    """

    def call(function: Function, args: Sequence[Any], kwargs: Mapping[str, Any] | None = None) -> object:
        return function(*args, **(kwargs or {}))

    library = torch._higher_order_ops
    with ExitStack() as stack:
        if hasattr(library.utils, "_hop_compile_and_call"):
            stack.enter_context(patch.object(library.utils, "_hop_compile_and_call", call))
        stack.enter_context(patch("torch._higher_order_ops.cond.cond_op", cond))
        stack.enter_context(patch("torch._higher_order_ops.while_loop.while_loop_op", loop))
        yield


@contextmanager
def in_python() -> Iterator[None]:
    """Have Python's own ``if`` and ``while`` do it, so that modes around it reach what runs inside."""
    with intercepted(_chosen, _passes):
        yield


def _chosen(predicate: Any, then: Function, other: Function, operands: Sequence[Any]) -> object:
    return (then if predicate else other)(*operands)


def _passes(test: Function, function: Function, carried: Sequence[Any], others: Sequence[Any]) -> object:
    now: Any = tuple(carried)
    while test(*now, *others):
        now = function(*now, *others)
    return now


def _once(predicate: Any, then: Function, other: Function, operands: Sequence[Any]) -> object:
    if not isinstance(predicate, torch.Tensor):
        return (then if predicate else other)(*operands)
    with torch.no_grad():
        other(*operands)
    again = torch.utils.checkpoint.checkpoint
    return again(then, *operands, use_reentrant=False, preserve_rng_state=False)


def _one_pass(test: Function, function: Function, carried: Sequence[Any], others: Sequence[Any]) -> object:
    test(*carried, *others)
    return function(*carried, *others)


@contextmanager
def all_ways() -> Iterator[None]:
    """Have both sides of a branch run, one after the other, and one pass of a loop.

    The first side's result stands for the branch; as in torch, its backward pass computes that side again.
    """
    with intercepted(_once, _one_pass):
        yield
