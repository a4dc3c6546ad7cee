"""Levels of loggers, where the model's code asks for them."""

import logging
import types
from collections.abc import Iterator

from peakfold.bridge.capture.entries import Entry

LOGGERS = (logging.Logger, logging.LoggerAdapter)
_ASKING = frozenset(("level", "isEnabledFor", "getEffectiveLevel", "disabled", "disable"))


def asks_for_levels(names: frozenset[str]) -> bool:
    """Whether code with these names may ask a logger what it logs; a mere message does not.

    Example:
        >>> asks_for_levels(frozenset(("logger", "isEnabledFor"))), asks_for_levels(frozenset(("warning",)))
        (True, False)
    """
    return not _ASKING.isdisjoint(names)


def levels_of(logger: object) -> Iterator[Entry]:
    """Yield what decides a logger's level: its own, those of its parents, and what is disabled for all.

    Example:
        >>> [entry.label for entry in levels_of(logging.getLogger())][:2]
        ['the level that logging.disable sets', 'level of the logger root']
    """
    held = logger
    while isinstance(held, logging.LoggerAdapter):
        yield Entry.of(vars(held), "logger", "the logger of an adapter")
        held = held.logger
    if not isinstance(held, logging.Logger):
        return
    yield Entry.of(vars(held.manager), "_disable", "the level that logging.disable sets")
    above: logging.Logger | None = held
    while above is not None:
        for key in ("level", "disabled", "parent"):
            yield Entry.of(vars(above), key, f"{key} of the logger {above.name}")
        above = above.parent


def logger_given(frame: types.FrameType, returned: object) -> object:
    """Return the logger that a function of logging returns or is a method of; None for another function."""
    if frame.f_code is logging.getLogger.__code__:
        return returned
    return frame.f_locals.get("self") if frame.f_code in METHODS else None


METHODS = frozenset(
    (logging.Logger.isEnabledFor.__code__, logging.Logger.getEffectiveLevel.__code__)
)  # fmt: skip
GIVING = METHODS | {logging.getLogger.__code__}
"""Code of the functions by which others come to a logger or its level."""
