"""Where code finds what it reads, as mappings: closure cells, attributes, context variables."""

import types
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from functools import partial

import torch


class _OneEntry(Mapping[str, object]):
    """A namespace of one entry, whatever its key."""

    def __iter__(self) -> Iterator[str]:
        return iter(())

    def __len__(self) -> int:
        return 1


class Cells(_OneEntry):
    """A closure cell as a namespace of one entry."""

    def __init__(self, cell: types.CellType) -> None:
        self._cell = cell

    def __getitem__(self, key: str) -> object:
        try:
            return self._cell.cell_contents
        except ValueError:
            raise KeyError(key) from None


class Attributes(Mapping[str, object]):
    """The attributes of an object as it gives them, those that are in no ``__dict__`` included.

    Example:
        >>> Attributes(3.5)["real"], Attributes(3.5).get("no", "such")
        (3.5, 'such')
    """

    def __init__(self, of: object) -> None:
        self._of = of

    def __getitem__(self, key: str) -> object:
        try:
            return getattr(self._of, key)
        except AttributeError:
            raise KeyError(key) from None

    def get(self, key: str, default: object = None) -> object:
        """Return an attribute."""
        return getattr(self._of, key, default)

    @property
    def reader(self) -> Callable[..., object]:
        """What gives an attribute, or a default that must be named, without a frame of Python."""
        return partial(getattr, self._of)

    def __iter__(self) -> Iterator[str]:
        return iter(())

    def __len__(self) -> int:
        return len(dir(self._of))


class Variable(_OneEntry):
    """A context variable as a namespace of one entry."""

    def __init__(self, variable: ContextVar[object]) -> None:
        self._variable = variable

    def __getitem__(self, key: str) -> object:
        try:
            return self._variable.get()
        except LookupError:
            raise KeyError(key) from None


class OwnStep(_OneEntry):
    """The ``step`` that an optimizer has in place of its class's; what schedulers put there is none."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self._table = optimizer.__dict__

    def __getitem__(self, key: str) -> object:
        found = self._table[key]
        if getattr(found, "_wrapped_by_lr_sched", False):
            raise KeyError(key)
        return found


class Answer(_OneEntry):
    """The answer of a function as a namespace of one entry.

    Example:
        >>> Answer(torch.is_grad_enabled)["torch.is_grad_enabled"]
        True
    """

    def __init__(self, query: Callable[[], object]) -> None:
        self._query = query

    def __getitem__(self, key: str) -> object:
        return self._query()


class Names(_OneEntry):
    """The names in a namespace as a namespace of one entry.

    Example:
        >>> Names({"a": 1, "b": 2}, {"b"})["names"]
        ('a',)
    """

    def __init__(self, table: Mapping[str, object], without: frozenset[str] | set[str]) -> None:
        self._table = table
        self._without = without

    def __getitem__(self, key: str) -> object:
        return tuple(name for name in self._table if name not in self._without)
