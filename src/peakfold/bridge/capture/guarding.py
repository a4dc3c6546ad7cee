"""The guards of a capture, from what ran and what it was run on."""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import cast

import torch

from peakfold.bridge.capture.captured import Missing
from peakfold.bridge.capture.entries import Entry
from peakfold.bridge.capture.environment import variable_entries
from peakfold.bridge.capture.guards import (
    Geometries,
    Guards,
    Same,
    batch_guards,
    hook_tables,
)
from peakfold.bridge.capture.namespaces import Attributes
from peakfold.bridge.capture.optimizer_guards import OptimizerGuard, optimizer_guard
from peakfold.bridge.capture.outside import outside
from peakfold.bridge.capture.reads import Reader
from peakfold.bridge.capture.trace import Trace
from peakfold.bridge.capture.truths import Truth, truths_of


def guards_of(
    trace: Trace,
    function: Callable[..., object],
    optimizer: torch.optim.Optimizer | None,
    missing: Sequence[Missing],
) -> Guards:
    """Return the guards of a capture.

    Args:
        trace: of the capture.
        function: what was run on the model, e.g. ``loss_fn``.
        optimizer: the user's, or None.
        missing: optimizer state that is made on the first step.
    """
    model, batch, code = trace.module.module, trace.batch, trace.code
    truths = truths_of(trace.tape.book.comparisons.values())
    reader = Reader(code, model)
    others = tuple(leaf for leaf in batch.leaves if not isinstance(leaf, torch.Tensor))
    found = (
        *reader.everything(function, optimizer, others),
        *variable_entries(code.variables),
        *map(_needs, trace.tape.constants.values()),
    )
    roots = (model, *reader.others)
    entries = tuple(_distinct(found))
    copied = tuple(entry for entry in entries if not _is_one_object(entry))
    plain = tuple(entry for entry in entries if _is_one_object(entry))
    tables = hook_tables(roots)
    modules = tuple(module for root in roots for module in root.modules())
    buffers = list(_rows(roots, "_buffers"))
    graded = (
        () if optimizer is None else tuple(p for group in optimizer.param_groups for p in group["params"])
    )
    return Guards(
        batch_guards(batch),
        batch.tree,
        trace.ambient,
        model,
        modules,
        tuple(map(type, modules)),
        tuple((table, tuple(table)) for module in modules for table in _held(module)),
        Same.of(_rows(roots, "_modules")),
        Same.of(_rows(roots, "_parameters")),
        Same.of(row for row in buffers if row[0][row[1]] is None),
        Geometries.of([row for row in _tensors(roots) if row[0][row[1]] is not None]),
        plain,
        Same.of((entry.table, entry.key, entry.label) for entry in plain),
        copied,
        code.stored,
        tuple(table for table in tables if not table),
        tuple((table, tuple(table.items())) for table in tables if table),
        None if optimizer is None else _optimizer(optimizer, truths, missing, model),
        graded,
        tuple(parameter.grad is not None for parameter in graded),
        outside(model, function, code.ran, (entry for entry in entries if entry.key not in code.stored)),
    )


def _needs(constant: torch.Tensor) -> Entry:
    """Return whether a tensor that is neither the model's nor the batch's needs a gradient."""
    label = f"requires_grad of a tensor of shape {tuple(constant.shape)} that the code reads"
    return Entry.of(Attributes(constant), "requires_grad", label)


def _held(module: torch.nn.Module) -> tuple[Mapping[str, object], ...]:
    """Return the tables of what a module consists of."""
    return module._modules, module._parameters, module._buffers


def _is_one_object(entry: Entry) -> bool:
    """Whether what a namespace holds is the same object each time it is asked."""
    return entry.is_one_object and entry.table is not os.environ


def _rows(
    roots: Sequence[torch.nn.Module], attribute: str
) -> Iterator[tuple[Mapping[str, object], str, str]]:
    for path, module in (found for root in roots for found in root.named_modules()):
        table: Mapping[str, object] = getattr(module, attribute)
        for key in table:
            yield table, key, f"{path}.{key}" if path else key


def _tensors(
    roots: Sequence[torch.nn.Module],
) -> Iterator[tuple[Mapping[str, torch.Tensor | None], str, str]]:
    for attribute in ("_parameters", "_buffers"):
        yield from cast(Iterator[tuple[Mapping[str, torch.Tensor | None], str, str]], _rows(roots, attribute))


def _optimizer(
    optimizer: torch.optim.Optimizer,
    truths: Sequence[Truth],
    missing: Sequence[Missing],
    model: torch.nn.Module,
) -> OptimizerGuard:
    states = _stateful(optimizer, missing, model)
    return optimizer_guard(optimizer, truths, states, dict(model.named_parameters()))


def _stateful(
    optimizer: torch.optim.Optimizer, missing: Sequence[Missing], model: torch.nn.Module
) -> list[torch.Tensor]:
    made = {model.get_parameter(entry.source.parameter) for entry in missing}
    return [parameter for parameter in optimizer.state if parameter not in made]


def _distinct(entries: Sequence[Entry]) -> Iterator[Entry]:
    seen: set[tuple[int, str]] = set()
    for entry in entries:
        if (id(entry.table), entry.key) not in seen:
            seen.add((id(entry.table), entry.key))
            yield entry
