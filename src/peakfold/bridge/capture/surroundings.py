"""What code asks of the process: settings of torch, the folder, modules that are loaded by name."""

import os
import sys
import types
from collections.abc import Callable, Iterator, Mapping
from typing import cast

import torch

from peakfold.bridge.capture.bytecode import globals_of
from peakfold.bridge.capture.entries import MISSING, Entry, copied
from peakfold.bridge.capture.namespaces import Answer
from peakfold.bridge.capture.ran import ExecutedCode

QUERIES: tuple[tuple[str, Callable[[], object]], ...] = (
    ("torch.get_num_threads", torch.get_num_threads),
    ("torch.get_num_interop_threads", torch.get_num_interop_threads),
    ("torch.get_float32_matmul_precision", torch.get_float32_matmul_precision),
    ("torch.get_deterministic_debug_mode", torch.get_deterministic_debug_mode),
    ("torch.initial_seed", torch.initial_seed),
    ("torch.is_warn_always_enabled", torch.is_warn_always_enabled),
    ("os.getcwd", os.getcwd),
    ("os.cpu_count", os.cpu_count),
    ("sys.getrecursionlimit", sys.getrecursionlimit),
)
"""Functions without arguments whose answers other code may change."""


def answers_read(code: ExecutedCode) -> Iterator[Entry]:
    """Yield the answers of functions that code names."""
    for path, query in QUERIES:
        if path.rpartition(".")[2] in code.names:
            table = Answer(query)
            yield Entry(table, path, copied(table[path]), f"{path}()")


def modules_read(code: ExecutedCode) -> Iterator[tuple[Entry, types.ModuleType | None]]:
    """Yield the modules that code gets by their names, from ``sys.modules`` or ``importlib``."""
    table = cast(Mapping[str, object], sys.modules)
    asking = [(ran, held) for ran, held in code.ran.items() if _BY_NAME & frozenset(ran.co_names)]
    values = [value for ran, _ in asking for value in ran.co_consts]
    values += [held.get(name) for ran, held in asking for name in globals_of(ran)]
    texts = {value for value in values if isinstance(value, str)}
    for text in sorted(text for text in texts if all(part.isidentifier() for part in text.split("."))):
        found = table.get(text, MISSING)
        module = found if isinstance(found, types.ModuleType) else None
        yield Entry(table, text, found, f"the module {text}"), module


_BY_NAME = frozenset(("modules", "import_module", "__import__"))
