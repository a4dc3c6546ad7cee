"""``torch.utils.checkpoint`` while a program is captured: the function runs once, plainly.

Recomputation is decided by the plan; a captured program has none of its own. The numbers are the
same, and dropout is drawn once.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch
import torch.utils.checkpoint as checkpoint

from peakfold.bridge.capture.places import model_line
from peakfold.bridge.capture.tape import Tape
from peakfold.errors import CaptureError


@contextmanager
def plain_checkpoints(tape: Tape) -> Iterator[None]:
    """Have checkpointed functions run plainly inside."""

    class Plain:
        @staticmethod
        def apply(function: Callable[..., Any], preserve: bool, *args: Any) -> Any:
            return _once(tape, function, args)

    def generator(
        function: Callable[..., Any],
        preserve: bool = True,
        context_fn: object = None,
        determinism_check: str = "default",
        debug: bool = False,
        early_stop: bool = True,
        *args: Any,
        **kwargs: Any,
    ) -> Iterator[None]:
        before = tape.input_writes
        yield
        _check(tape, before)

    with (
        patch.object(checkpoint, "CheckpointFunction", Plain),
        patch.object(checkpoint, "_checkpoint_without_reentrant_generator", generator),
    ):
        yield


def _once(tape: Tape, function: Callable[..., Any], args: Any) -> Any:
    """Run a function as the reentrant checkpoint does: without gradients where no input needs one."""
    before = tape.input_writes
    needed = any(isinstance(arg, torch.Tensor) and arg.requires_grad for arg in args)
    with torch.set_grad_enabled(needed and torch.is_grad_enabled()):
        result = function(*args)
    _check(tape, before)
    return result


def _check(tape: Tape, before: int) -> None:
    if tape.input_writes == before:
        return
    raise CaptureError(
        stage="capture",
        what="a checkpointed function writes into buffers, which torch then does twice a step",
        where=model_line(),
        expected="torch.utils.checkpoint around functions without BatchNorm in training",
        hint="remove torch.utils.checkpoint: recomputation is planned for you",
    )
