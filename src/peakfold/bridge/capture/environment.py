"""Environment variables that a program reads while it is captured."""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import MappingProxyType
from typing import Any, cast
from unittest.mock import patch

from peakfold.bridge.capture.entries import MISSING, Entry
from peakfold.bridge.capture.namespaces import Answer


@contextmanager
def variables_read(names: dict[str, None]) -> Iterator[None]:
    """Note the names of the environment variables that are read inside.

    Example:
        >>> names = {}
        >>> with variables_read(names):
        ...     _ = os.environ.get("HOME"), os.getenv("NO_SUCH"), "NEITHER" in os.environ
        >>> list(names)
        ['HOME', 'NO_SUCH', 'NEITHER']
        >>> with variables_read(names):
        ...     _ = dict(os.environ)
        >>> ALL in names
        True
    """
    environment = os._Environ
    plain, rows, count = environment.__getitem__, environment.__iter__, environment.__len__

    def read(table: Any, name: Any) -> Any:
        if isinstance(name, str | bytes):
            names[os.fsdecode(name)] = None
        return plain(table, name)

    def rows_read(table: Any) -> Any:
        names[ALL] = None
        return rows(table)

    def count_read(table: Any) -> Any:
        names[ALL] = None
        return count(table)

    with (
        patch.object(environment, "__getitem__", read),
        patch.object(environment, "__iter__", rows_read),
        patch.object(environment, "__len__", count_read),
    ):
        yield


ALL = ""
"""Stands for every variable, those included that are not set."""


def variable_entries(names: Mapping[str, None]) -> Iterator[Entry]:
    """Yield what each environment variable is now, set or not."""
    table = cast(Mapping[str, object], os.environ)
    if ALL in names:
        whole = Answer(lambda: MappingProxyType(dict(os.environ)))  # is never written in words
        yield Entry(whole, ALL, whole[ALL], "the environment")
        return
    for name in names:
        yield Entry(table, name, table.get(name, MISSING), f"the environment variable {name}")
