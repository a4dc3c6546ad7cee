"""The account of a rewriting: what each rule and pass did, what it cost, and why it did not fire."""

import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

OTHER = "(other)"
"""The entry that holds the time between rules."""


@dataclass
class Entry:
    """What one rule or pass came to.

    Attributes:
        tried: nodes at which it was tried.
        matched: how often its left side was there.
        fired: how often it was applied.
        seconds: wall time spent in it.
        refused: how often it matched and was not applied, by reason.
    """

    tried: int = 0
    matched: int = 0
    fired: int = 0
    seconds: float = 0.0
    refused: Counter[str] = field(default_factory=Counter)


class Account:
    """Entries by name, and the clock that their seconds add up to.

    Each moment between `start` and `stop` belongs to one entry: the innermost that is open.

    Example:
        >>> account = Account()
        >>> with account.timed("fold"):
        ...     account["fold"].fired += 1
        >>> account.stop()
        >>> abs(sum(entry.seconds for entry in account.entries.values()) - account.seconds) < 1e-9
        True
    """

    def __init__(self) -> None:
        self.entries: dict[str, Entry] = {}
        self._open = [OTHER]
        self._start = self._last = time.perf_counter()
        self._end: float | None = None

    def __getitem__(self, name: str) -> Entry:
        return self.entries.setdefault(name, Entry())

    @contextmanager
    def timed(self, name: str) -> Iterator[None]:
        """Give the time inside to an entry."""
        self._switch()
        self._open.append(name)
        try:
            yield
        finally:
            self._switch()
            self._open.pop()

    def stop(self) -> None:
        """Stop the clock."""
        self._switch()
        self._end = self._last

    @property
    def seconds(self) -> float:
        """Wall seconds from the start to the stop, or to now."""
        return (self._end or time.perf_counter()) - self._start

    def _switch(self) -> None:
        now = time.perf_counter()
        self[self._open[-1]].seconds += now - self._last
        self._last = now

    def rows(self) -> list[Mapping[str, object]]:
        """Return the entries as rows of a table, the longest first."""
        ordered = sorted(self.entries.items(), key=lambda pair: -pair[1].seconds)
        return [{"name": name, **vars(entry), "refused": dict(entry.refused)} for name, entry in ordered]
