"""The model's code that runs while a program is captured, and the names in it."""

import cProfile
import gc
import sys
import types
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

from peakfold.bridge.capture.asked import names_asked
from peakfold.bridge.capture.bytecode import stores_of, texts_of
from peakfold.bridge.capture.clocks import CHANGING, caller_of, place_of
from peakfold.bridge.capture.hostrandom import DRAWS
from peakfold.bridge.capture.loggers import GIVING, logger_given
from peakfold.bridge.capture.places import is_model_code


@dataclass(eq=False)
class ExecutedCode:
    """The model's code that ran, each with the globals that it ran in.

    Attributes:
        ran: globals by code.
        variables: names of the environment variables that were read.
        asked: names of attributes that it asked for by ``getattr`` and ``hasattr``.
        drawn_at: the line where it first came to the stream of Python's ``random``; empty for nowhere.
        loggers: those that it got of logging or asked for a level, by id.
        changing: what it called that gives another value each time, with the line where it did.
    """

    ran: dict[types.CodeType, Mapping[str, object]] = field(default_factory=dict)
    variables: dict[str, None] = field(default_factory=dict)
    asked: set[str] = field(default_factory=set)
    drawn_at: str = ""
    loggers: dict[int, object] = field(default_factory=dict)
    changing: dict[str, str] = field(default_factory=dict)

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Note the code that starts to run inside; torch's own does not count.

        No garbage is collected meanwhile: what runs then is not called by the model.
        """
        ran = self.ran
        before = sys.getprofile()

        def note(frame: types.FrameType, event: str, arg: object) -> None:
            if event == "return" and frame.f_code in GIVING:
                self._note_logger(frame, arg)
            elif event == "call" and frame.f_code not in ran and is_model_code(frame.f_code):
                ran[frame.f_code] = frame.f_globals
            elif event == "c_call" and arg in CHANGING:
                self._note_changing(frame, arg)
            elif event == "c_call" and arg in DRAWS and not self.drawn_at:
                self.drawn_at = caller_of(frame)

        collecting = gc.isenabled()
        gc.disable()
        sys.setprofile(note)
        try:
            with names_asked(self.asked):
                yield
        finally:
            _set_profiler(before)
            if collecting:
                gc.enable()

    def _note_logger(self, frame: types.FrameType, returned: object) -> None:
        if frame.f_back is not None and is_model_code(frame.f_back.f_code):
            logger = logger_given(frame, returned)
            self.loggers[id(logger)] = logger

    def _note_changing(self, frame: types.FrameType, function: object) -> None:
        place = place_of(frame, function)
        if place:
            name = getattr(function, "__qualname__", str(function))
            module = getattr(function, "__module__", None) or "datetime"
            self.changing.setdefault({"posix": "os", "nt": "os"}.get(module, module) + f".{name}", place)

    @property
    def names(self) -> frozenset[str]:
        """Every global and attribute name in the code, those that ``getattr`` is given included."""
        read = frozenset(name for code in self.ran for name in code.co_names)
        return read.union(self.asked, *map(texts_of, self.ran))

    @property
    def stored(self) -> frozenset[str]:
        """Every attribute and outer variable that the code itself sets."""
        return frozenset().union(*(stores_of(code).all for code in self.ran))


def _set_profiler(profiler: object) -> None:
    """Set a profiler again; one of cProfile's is no function and has its own way."""
    if isinstance(profiler, cProfile.Profile):
        sys.setprofile(None)
        profiler.enable()
    else:
        sys.setprofile(profiler)  # type: ignore[arg-type]
