"""``torch.utils.checkpoint`` while a program is captured: the function runs once, plainly.

Recomputation is decided by the plan; a captured program has none of its own. The numbers are the
same, and dropout is drawn once.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch.utils.checkpoint as checkpoint

from peakfold.bridge.capture.places import model_line
from peakfold.bridge.capture.recorder import Recorder
from peakfold.errors import CaptureError


@contextmanager
def plain_checkpoints(recorder: Recorder) -> Iterator[None]:
    """Have checkpointed functions run plainly inside."""

    class Plain:
        @staticmethod
        def apply(function: Callable[..., Any], preserve: bool, *args: Any) -> Any:
            return _once(recorder, function, args)

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
        before = recorder.input_writes
        yield
        _check(recorder, before)

    with (
        patch.object(checkpoint, "CheckpointFunction", Plain),
        patch.object(checkpoint, "_checkpoint_without_reentrant_generator", generator),
    ):
        yield


def _once(recorder: Recorder, function: Callable[..., Any], args: Any) -> Any:
    before = recorder.input_writes
    result = function(*args)
    _check(recorder, before)
    return result


def _check(recorder: Recorder, before: int) -> None:
    if recorder.input_writes == before:
        return
    raise CaptureError(
        stage="capture",
        what="a checkpointed function writes into buffers, which torch then does twice a step",
        where=model_line(),
        expected="torch.utils.checkpoint around functions without BatchNorm in training",
        hint="remove torch.utils.checkpoint: recomputation is planned for you",
    )
