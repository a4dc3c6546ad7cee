"""When a saved program holds: what can be checked without the code that it was captured from."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch.utils import _pytree as pytree

from peakfold.bridge.capture.batches import flatten
from peakfold.bridge.capture.entries import MISSING, Entry
from peakfold.bridge.capture.optimizer_guards import constant_part
from peakfold.bridge.capture.outside import Outside
from peakfold.bridge.capture.truths import Truth, broken_truth


@dataclass(frozen=True)
class BatchTensor:
    """A tensor of the batch.

    Attributes:
        name: e.g. ``"batch.0"``.
        shape, strides, dtype, device, requires_grad: as it must be.
    """

    name: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device
    requires_grad: bool


@dataclass(frozen=True)
class Group:
    """A parameter group of the optimizer.

    Attributes:
        parameters: names, in order.
        flags: the optimizer's own entries that decide what it computes: booleans, texts and None; of a
            number, whether it is zero; of a tensor, that it is one; of a tuple, what the program holds
            of it as constants. What a scheduler adds does not count.
    """

    parameters: tuple[str, ...]
    flags: tuple[tuple[str, object], ...]


@dataclass(frozen=True)
class SavedGuards:
    """What a program that was loaded from a file holds for.

    Attributes:
        batch: one a leaf; a leaf that is no tensor as it is.
        tree: of the batch.
        training: of each module, by name.
        frozen: names of the parameters that need no gradient.
        optimizer: name of its class; empty for none.
        groups: its parameter groups.
        gradients: names of the optimizer's parameters that have a ``.grad`` before the step, which its
            ``zero_grad`` leaves none of.
        truths: tests that the optimizer made on its numbers.
        attributes: numbers and texts that the model's code read from its modules and their objects: (path
            of the object from the model, (name, value) of each).
        outside: the model's code, and what it read outside of its modules; compared as a program is loaded.
    """

    batch: tuple[BatchTensor | object, ...]
    tree: pytree.TreeSpec
    training: tuple[tuple[str, bool], ...]
    frozen: tuple[str, ...]
    optimizer: str
    groups: tuple[Group, ...]
    gradients: tuple[str, ...]
    truths: tuple[Truth, ...] = ()
    attributes: tuple[tuple[str, tuple[tuple[str, object], ...]], ...] = ()
    outside: tuple[Outside, ...] = ()

    def check(
        self, model: torch.nn.Module, optimizer: torch.optim.Optimizer | None, batch: object
    ) -> str | None:
        """Return what does not hold, or None."""
        flat = flatten(batch)
        if flat.tree is not self.tree and flat.tree != self.tree:
            return "a batch of another form"
        for name, leaf, known in zip(flat.names, flat.leaves, self.batch, strict=True):
            if not _is_as_known(leaf, known):
                return f"{name} is {_text(_batch_leaf(name, leaf))} instead of {_text(known)}"
        return self.check_model(model, optimizer)

    def check_model(self, model: torch.nn.Module, optimizer: torch.optim.Optimizer | None) -> str | None:
        """Return what does not hold of model and optimizer, or None."""
        if _training(model) != self.training:
            return "model.train() or model.eval() was called, or a module was replaced"
        if _frozen(model) != self.frozen:
            return "requires_grad of a parameter was changed"
        if _class(optimizer) != self.optimizer:
            return f"optimizer {_class(optimizer) or 'None'} instead of {self.optimizer or 'None'}"
        if _groups(model, optimizer) != self.groups:
            return "the optimizer's parameter groups, or flags in them, were changed"
        if _gradients(model, optimizer) != self.gradients:
            return "a gradient stands in .grad that did not before, or none does any more"
        reason = next(_changed(model, self.attributes), None)
        if reason is not None:
            return reason
        if optimizer is None or not self.truths:
            return None
        return next(broken_truth(self.truths, optimizer, dict(model.named_parameters())), None)


def saved_guards(
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer | None,
    batch: object,
    truths: tuple[Truth, ...] = (),
    read: Iterable[Entry] = (),
    outside: tuple[Outside, ...] = (),
) -> SavedGuards:
    """Return the guards of a program under what model, optimizer and batch are now.

    Args:
        model: of the program.
        optimizer: of the program, or None.
        batch: that it was captured for.
        truths: tests that the optimizer made on its numbers.
        read: what the model's code read; what cannot be found again from the model is left out.
        outside: its code, and what it read outside of its modules.
    """
    flat = flatten(batch)
    leaves = tuple(map(_batch_leaf, flat.names, flat.leaves))
    groups = _groups(model, optimizer)
    return SavedGuards(
        leaves,
        flat.tree,
        _training(model),
        _frozen(model),
        _class(optimizer),
        groups,
        _gradients(model, optimizer),
        truths,
        tuple(_attributes(model, read)),
        outside,
    )


@dataclass(frozen=True, eq=False)
class LoadedGuards:
    """What a loaded program holds for, what its code reads outside of the model's modules included.

    Attributes:
        saved: what was saved.
        entries: globals and closed-over variables, which must stay what they are.
        versions: of the tensors among them: the program has copies of their numbers.
    """

    saved: SavedGuards
    entries: tuple[Entry, ...]
    versions: tuple[int, ...]

    @staticmethod
    def of(saved: SavedGuards, entries: Iterable[Entry]) -> "LoadedGuards":
        """Return the guards for what was found to be as it was saved."""
        found = tuple(entries)
        return LoadedGuards(saved, found, tuple(map(_version, found)))

    def check(
        self, model: torch.nn.Module, optimizer: torch.optim.Optimizer | None, batch: object
    ) -> str | None:
        """Return what does not hold, or None."""
        reason = self.saved.check(model, optimizer, batch)
        if reason is not None:
            return reason
        for entry, version in zip(self.entries, self.versions, strict=True):
            if not entry.holds():
                return entry.words()
            if _version(entry) != version:
                return f"{entry.label} was written into"
        return None


def _version(entry: Entry) -> int:
    return entry.value._version if isinstance(entry.value, torch.Tensor) else 0


def _attributes(
    model: torch.nn.Module, read: Iterable[Entry]
) -> Iterator[tuple[str, tuple[tuple[str, object], ...]]]:
    held: dict[str, list[tuple[str, object]]] = {}
    for entry in read:
        owner, _, name = entry.label.rpartition(".")
        if _is_saved(entry.value) and getattr(_reached(model, owner), "__dict__", None) is entry.table:
            held.setdefault(owner, []).append((name, entry.value))
    yield from ((owner, tuple(rows)) for owner, rows in held.items())


def _changed(
    model: torch.nn.Module, attributes: Sequence[tuple[str, tuple[tuple[str, object], ...]]]
) -> Iterator[str]:
    modules: dict[str, object] = dict(model.named_modules()) if attributes else {}
    for owner, rows in attributes:
        found = modules[owner] if owner in modules else _reached(model, owner)
        table = getattr(found, "__dict__", {})
        for name, value in rows:
            now = table.get(name, MISSING)
            if type(now) is not type(value) or now != value:
                path = f"{owner}.{name}" if owner else name
                yield f"{path} is {'gone' if now is MISSING else repr(now)} instead of {value!r}"


def _is_saved(value: object) -> bool:
    """Whether a value is the same when it is written and read again."""
    if isinstance(value, tuple):
        return all(map(_is_saved, value))
    return type(value) in (bool, int, float, str, type(None), torch.dtype)


def _reached(model: torch.nn.Module, path: str) -> object:
    """Return what is at a path of attributes from a model, `MISSING` where there is no such path."""
    found: object = model
    for name in path.split(".") if path else ():
        found = getattr(found, name, MISSING)
    return found


def _batch_leaf(name: str, leaf: object) -> BatchTensor | object:
    if not isinstance(leaf, torch.Tensor):
        return leaf
    return BatchTensor(name, tuple(leaf.shape), leaf.stride(), leaf.dtype, leaf.device, leaf.requires_grad)


def _is_as_known(leaf: object, known: BatchTensor | object) -> bool:
    if not isinstance(leaf, torch.Tensor) or not isinstance(known, BatchTensor):
        return type(leaf) is type(known) and leaf == known
    return (
        leaf.shape == known.shape
        and leaf.stride() == known.strides
        and leaf.dtype == known.dtype
        and leaf.device == known.device
        and leaf.requires_grad == known.requires_grad
    )


def _text(leaf: BatchTensor | object) -> str:
    if not isinstance(leaf, BatchTensor):
        return repr(leaf)
    needs = " with a gradient" if leaf.requires_grad else ""
    return f"{leaf.dtype} {list(leaf.shape)} of strides {list(leaf.strides)} on {leaf.device}{needs}"


def _training(model: torch.nn.Module) -> tuple[tuple[str, bool], ...]:
    return tuple((name, module.training) for name, module in model.named_modules())


def _frozen(model: torch.nn.Module) -> tuple[str, ...]:
    return tuple(name for name, parameter in model.named_parameters() if not parameter.requires_grad)


def _gradients(model: torch.nn.Module, optimizer: torch.optim.Optimizer | None) -> tuple[str, ...]:
    if optimizer is None:
        return ()
    updated = {parameter for group in optimizer.param_groups for parameter in group["params"]}
    named = model.named_parameters()
    return tuple(name for name, parameter in named if parameter in updated and parameter.grad is not None)


def _class(optimizer: torch.optim.Optimizer | None) -> str:
    return "" if optimizer is None else f"{type(optimizer).__module__}.{type(optimizer).__qualname__}"


def _groups(model: torch.nn.Module, optimizer: torch.optim.Optimizer | None) -> tuple[Group, ...]:
    if optimizer is None:
        return ()
    names = {parameter: name for name, parameter in model.named_parameters()}
    return tuple(
        Group(
            tuple(names.get(parameter, "") for parameter in group["params"]),
            tuple(
                (key, _flag(key, group[key]))
                for key in sorted(optimizer.defaults)
                if _is_flag(group.get(key, ...))
            ),
        )
        for group in optimizer.param_groups
    )


def _is_flag(entry: object) -> bool:
    return isinstance(entry, bool | int | float | str | tuple | torch.Tensor | None)


def _flag(key: str, entry: object) -> object:
    if isinstance(entry, tuple):
        return constant_part(key, entry)
    if isinstance(entry, torch.Tensor):
        return "a tensor"
    is_number = isinstance(entry, int | float) and not isinstance(entry, bool)
    return entry == 0 if is_number else entry
