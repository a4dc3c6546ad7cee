"""Environment variables that a program reads while it is captured."""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, cast
from unittest.mock import patch

from peakfold.bridge.capture.entries import MISSING, Entry


@contextmanager
def variables_read(names: dict[str, None]) -> Iterator[None]:
    """Note the names of the environment variables that are read inside.

    Example:
        >>> names = {}
        >>> with variables_read(names):
        ...     _ = os.environ.get("HOME"), os.getenv("NO_SUCH"), "NEITHER" in os.environ
        >>> list(names)
        ['HOME', 'NO_SUCH', 'NEITHER']
    """
    plain = os._Environ.__getitem__

    def read(environment: Any, name: Any) -> Any:
        if environment is os.environ and isinstance(name, str):
            names[name] = None
        return plain(environment, name)

    with patch.object(os._Environ, "__getitem__", read):
        yield


def variable_entries(names: Mapping[str, None]) -> Iterator[Entry]:
    """Yield what each environment variable is now, set or not."""
    table = cast(Mapping[str, object], os.environ)
    for name in names:
        yield Entry(table, name, table.get(name, MISSING), f"the environment variable {name}")
