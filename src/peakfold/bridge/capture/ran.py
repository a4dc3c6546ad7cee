"""The model's code that runs while a program is captured, and the names in it."""

import cProfile
import dis
import gc
import sys
import types
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache

from peakfold.bridge.capture.places import is_model_code


@dataclass(eq=False)
class ExecutedCode:
    """The model's code that ran, each with the globals that it ran in.

    Attributes:
        ran: globals by code.
        variables: names of the environment variables that were read.
    """

    ran: dict[types.CodeType, Mapping[str, object]] = field(default_factory=dict)
    variables: dict[str, None] = field(default_factory=dict)

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Note the code that starts to run inside; torch's own does not count.

        No garbage is collected meanwhile: what runs then is not called by the model.
        """
        ran = self.ran
        before = sys.getprofile()

        def note(frame: types.FrameType, event: str, arg: object) -> None:
            if event == "call" and frame.f_code not in ran and is_model_code(frame.f_code):
                ran[frame.f_code] = frame.f_globals

        collecting = gc.isenabled()
        gc.disable()
        sys.setprofile(note)
        try:
            yield
        finally:
            _set_profiler(before)
            if collecting:
                gc.enable()

    @property
    def names(self) -> frozenset[str]:
        """Every global and attribute name in the code, those that ``getattr`` is given included."""
        texts = (text for code in self.ran for text in code.co_consts if isinstance(text, str))
        read = frozenset(name for code in self.ran for name in code.co_names)
        return read.union(text for text in texts if text.isidentifier())

    @property
    def stored(self) -> frozenset[str]:
        """Every attribute and outer variable that the code itself sets."""
        return frozenset().union(*(_used(code, _STORES) for code in self.ran))


def globals_of(code: types.CodeType) -> frozenset[str]:
    """Return the names of the globals that code reads.

    Example:
        >>> sorted(globals_of((lambda: len(dis.cmp_op)).__code__))
        ['dis', 'len']
    """
    return _used(code, _LOADS)


def globals_set(code: types.CodeType) -> frozenset[str]:
    """Return the names of the globals that code sets."""
    return _used(code, _GLOBAL_STORES)


@cache
def _used(code: types.CodeType, operations: frozenset[str]) -> frozenset[str]:
    return frozenset(found.argval for found in dis.get_instructions(code) if found.opname in operations)


_LOADS = frozenset(("LOAD_GLOBAL", "LOAD_NAME"))
_GLOBAL_STORES = frozenset(("STORE_GLOBAL",))
_STORES = frozenset(("STORE_ATTR", "STORE_GLOBAL", "STORE_DEREF"))


def _set_profiler(profiler: object) -> None:
    """Set a profiler again; one of cProfile's is no function and has its own way."""
    if isinstance(profiler, cProfile.Profile):
        sys.setprofile(None)
        profiler.enable()
    else:
        sys.setprofile(profiler)  # type: ignore[arg-type]
