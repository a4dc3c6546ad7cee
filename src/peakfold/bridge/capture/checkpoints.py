"""``torch.utils.checkpoint`` while a program is captured.

Recomputation is decided by the plan, so that what torch computes again in the backward pass stands for what
the forward pass computed. What it does again besides counts twice, as in eager: running statistics are
updated in both passes, and numbers that are not kept (``preserve_rng_state=False``) are drawn anew.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

import torch
import torch.utils.checkpoint as checkpoint

from peakfold.bridge.capture.places import model_line
from peakfold.bridge.capture.tape import Tape
from peakfold.errors import CaptureError


@dataclass(eq=False)
class _Region:
    """A checkpointed function that ran.

    Attributes:
        place: line of the model's code that called it.
        running: whether it runs for the first time now.
        wrote: whether it wrote into inputs of the graph.
        again: how often it ran again.
    """

    place: str
    running: bool = False
    wrote: bool = False
    again: int = 0


@contextmanager
def checkpoints_once(tape: Tape) -> Iterator[None]:
    """Have what checkpointed functions compute again inside stand for what they computed first."""
    original = checkpoint._checkpoint_without_reentrant_generator
    regions: list[_Region] = []

    class Reentrant:
        """In the place of the function that runs a backward pass inside the backward pass."""

        @staticmethod
        def apply(function: Callable[..., Any], preserve: bool, *args: Any) -> Any:
            needed = any(isinstance(arg, torch.Tensor) and arg.requires_grad for arg in args)
            with torch.set_grad_enabled(needed and torch.is_grad_enabled()):
                if not torch.is_grad_enabled():
                    return function(*args)
                region = _Region(model_line())
                if not any(other.running for other in regions) and not tape.replay.depth:
                    regions.append(region)
                region.running = True
                before = tape.input_writes
                steps = generator(_counting(function, region), preserve, *_WHOLE, *args)
                next(steps)
                result = function(*args)
                next(steps, None)
                region.running = False
                region.wrote = tape.input_writes != before
                return result

    def generator(
        function: Callable[..., Any],
        preserve: bool = True,
        context_fn: Any = checkpoint.noop_context_fn,
        determinism_check: str = "default",
        debug: bool = False,
        early_stop: bool = True,
        *args: Any,
        **kwargs: Any,
    ) -> Iterator[None]:
        drawn = tape.drawn if preserve else None

        def again(*args: Any, **kwargs: Any) -> Any:
            with tape.replay.again(tape, drawn):
                return function(*args, **kwargs)

        yield from original(again, False, context_fn, determinism_check, debug, early_stop, *args, **kwargs)

    with (
        patch.object(checkpoint, "CheckpointFunction", Reentrant),
        patch.object(checkpoint, "_checkpoint_without_reentrant_generator", generator),
    ):
        yield
    _check_all_ran_again(regions)


_WHOLE = (checkpoint.noop_context_fn, "none", False, False)
"""Arguments for a function that runs to its end when it runs again."""


def _counting(function: Callable[..., Any], region: _Region) -> Callable[..., Any]:
    def counted(*args: Any, **kwargs: Any) -> Any:
        region.again += 1
        return function(*args, **kwargs)

    return counted


def _check_all_ran_again(regions: list[_Region]) -> None:
    for region in regions:
        if region.wrote and not region.again:
            raise CaptureError(
                stage="capture",
                what="a checkpointed function writes into buffers and keeps nothing for the backward pass",
                where=region.place,
                expected="checkpointed functions of which the backward pass needs what they compute",
                hint="pass use_reentrant=False, or remove torch.utils.checkpoint: recomputation is planned",
            )
