"""Names of attributes that the model's code makes up as it runs, and asks for by ``getattr``."""

import builtins
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from unittest.mock import patch

from peakfold.bridge.capture.places import is_model_code


@contextmanager
def names_asked(names: set[str]) -> Iterator[None]:
    """Note the names that the model's code asks for inside by ``getattr`` and ``hasattr``.

    Example:
        >>> names = set()
        >>> with names_asked(names):
        ...     pass
        >>> names
        set()
    """

    def noting(plain: Callable[..., object]) -> Callable[..., object]:
        def asking(*args: object) -> object:
            if len(args) > 1 and type(args[1]) is str and is_model_code(sys._getframe(1).f_code):
                names.add(args[1])
            return plain(*args)

        return asking

    with (
        patch.object(builtins, "getattr", noting(getattr)),
        patch.object(builtins, "hasattr", noting(hasattr)),
    ):
        yield
