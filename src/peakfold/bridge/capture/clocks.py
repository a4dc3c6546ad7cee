"""Clocks and the system's random numbers, which give another value each time they are read."""

import datetime
import os
import random
import sys
import time
import types

import numpy as np

from peakfold.bridge.capture.owners import is_torch, root_of
from peakfold.bridge.capture.places import is_model_code, line_of
from peakfold.errors import CaptureError

CLOCKS = frozenset(
    (
        *(vars(time)[name] for name in (
            "time", "time_ns", "monotonic", "monotonic_ns", "perf_counter", "perf_counter_ns", "process_time",
            "process_time_ns", "thread_time", "thread_time_ns", "localtime", "gmtime", "ctime",
        ) if name in vars(time)),
        datetime.datetime.now, datetime.datetime.utcnow, datetime.datetime.today, datetime.date.today,
    )
)  # fmt: skip
"""Functions that count where the model's code calls them itself: logging reads clocks too."""
RANDOM = frozenset((os.urandom,))
"""Functions that count whoever calls them."""
CHANGING: frozenset[object] = CLOCKS | RANDOM


def place_of(frame: types.FrameType, function: object) -> str:
    """Return file, line and text where the model's code reads what is another each time; empty for elsewhere.

    Args:
        frame: calls the function.
        function: one of `CHANGING`.
    """
    return caller_of(frame) if function in RANDOM or is_model_code(frame.f_code) else ""


def caller_of(frame: types.FrameType) -> str:
    """Return file, line and text of the model's code that a frame is or was called by; empty for none."""
    caller: types.FrameType | None = frame
    while caller is not None and not is_model_code(caller.f_code):
        caller = caller.f_back
    return "" if caller is None else line_of(caller.f_code, caller.f_lineno)


def changes_each_time(place: str, name: str) -> CaptureError:
    """Return the refusal of a program that reads a clock or the system's random numbers."""
    return CaptureError(
        stage="capture",
        what=f"the code calls {name}, which gives another value each time",
        where=place,
        expected="values that are the same in each step, and random numbers of torch",
        hint="take the value outside of the model, and pass it in the batch",
    )


def check_repeats(value: object, label: str) -> None:
    """Refuse what gives another value each time it is asked: a captured step asks it once."""
    is_own = root_of(type(value)) in sys.stdlib_module_names or is_torch(type(value))
    is_iterator = is_own and hasattr(type(value), "__next__")
    if not is_iterator and not isinstance(value, random.Random | np.random.Generator | np.random.RandomState):
        return
    raise CaptureError(
        stage="capture",
        what=f"the code reads {label}, which gives another value each time",
        expected="values that are the same in each step, and random numbers of torch",
        got=f"a {type(value).__name__}",
        hint="take the value outside of the model, and pass it in the batch",
    )
