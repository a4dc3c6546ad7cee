"""One operator run by itself, as it runs in a program."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from peakfold.bridge.codegen.operators import overload
from peakfold.bridge.runtime.operands import Call
from peakfold.ir.graph import Node
from peakfold.ops.recurrent import BACKWARD, FORWARD, keeps_workspace


@contextmanager
def mode_for(node: Node) -> Iterator[None]:
    """Have an operator keep what its backward pass needs, where it asks the grad mode for that."""
    if not keeps_workspace(node):
        yield
        return
    with _keeping():
        yield


@contextmanager
def _keeping() -> Iterator[None]:
    with torch.enable_grad(), torch._C._AutoDispatchBelowAutograd():
        yield


def operator_alone(node: Node) -> Callable[..., Any]:
    """Return a node's operator as a function of its arguments.

    Raises:
        PlanError: torch has no such operator.
    """
    operator = overload(node.op.name)
    if not keeps_workspace(node):
        return operator

    def kept(*args: Any, **kwargs: Any) -> Any:
        with _keeping():
            return operator(*args, **kwargs)

    return kept


def filled(node: Node, call: Call) -> Call:
    """Return arguments with a workspace that the operator's forward counterpart has filled.

    Another one would have the operator read outside of its memory.
    """
    if node.op.name != BACKWARD:
        return call
    (*args, _), kwargs = call
    of: Any = dict(zip(_NAMES, args, strict=True))
    with _keeping():
        *_, workspace = overload(FORWARD)(
            *args[:7],
            of["reverse"],
            of["batch_sizes"],
            of["mode"],
            of["hidden_size"],
            of["num_layers"],
            of["has_biases"],
            of["bidirectional"],
            of["batch_first"],
            of["train"],
        )
    return (*args, workspace), kwargs


_NAMES = [argument.name for argument in overload(BACKWARD)._schema.arguments[:-1]]
