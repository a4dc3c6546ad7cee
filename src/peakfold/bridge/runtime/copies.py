"""Copies of what is trained, with the hooks that copy.deepcopy leaves behind."""

import copy
import copyreg
import gc
import threading
import types
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager

import torch


def copies(parts: tuple[object, ...]) -> tuple[object, ...]:
    """Return deep copies that belong together, hooks of parameters and optimizers included.

    A function that closes over one of the originals, reads it as a global, or has it as a default of an
    argument, gets the copy instead.

    Example:
        >>> model = torch.nn.Linear(2, 1)
        >>> _ = model.weight.register_hook(lambda gradient: gradient * 0)
        >>> twin, loss_fn = copies((model, lambda m: model(torch.ones(2)).sum()))
        >>> loss_fn(twin).backward()
        >>> twin.weight.grad.tolist(), model.weight.grad
        ([[0.0, 0.0]], None)
    """
    memo: dict[int, object] = _made_in_forward(parts)
    with _views_copied():
        made = copy.deepcopy(parts, memo)
    for old, new in zip(parts, made, strict=True):
        if isinstance(old, torch.nn.Module) and isinstance(new, torch.nn.Module):
            _copy_tensor_hooks(old, new, memo)
        if isinstance(old, torch.optim.Optimizer) and isinstance(new, torch.optim.Optimizer):
            _copy_step_hooks(old, new, memo)
    return tuple(_rebound(part, memo) for part in made)


@contextmanager
def _views_copied() -> Iterator[None]:
    """Let copy.deepcopy copy a ``types.MappingProxyType``: the copy is a view of what it views, copied."""
    with _VIEWING:
        if types.MappingProxyType in copyreg.dispatch_table:
            yield
            return
        copyreg.dispatch_table[types.MappingProxyType] = _view
        try:
            yield
        finally:
            del copyreg.dispatch_table[types.MappingProxyType]


_VIEWING = threading.RLock()


def _view(view: types.MappingProxyType[object, object]) -> tuple[type, tuple[object, ...]]:
    (viewed,) = gc.get_referents(view)
    return types.MappingProxyType, (viewed,)


def _made_in_forward(parts: tuple[object, ...]) -> dict[int, object]:
    """Return copies of tensors that modules keep of what they computed, as ``weight_norm`` does, by id."""
    modules = (m for part in parts if isinstance(part, torch.nn.Module) for m in part.modules())
    held = (entry for module in modules for entry in vars(module).values())
    made = (entry for entry in held if isinstance(entry, torch.Tensor) and not entry.is_leaf)
    return {id(entry): entry.detach().clone() for entry in made}


def _copy_tensor_hooks(old: torch.nn.Module, new: torch.nn.Module, memo: Mapping[int, object]) -> None:
    for given, made in zip(old.parameters(), new.parameters(), strict=True):
        for hook in (given._backward_hooks or {}).values():
            made.register_hook(_rebound(hook, memo))  # type: ignore[no-untyped-call]
        for hook in (getattr(given, "_post_accumulate_grad_hooks", None) or {}).values():
            made.register_post_accumulate_grad_hook(_rebound(hook, memo))  # type: ignore[no-untyped-call]


def _copy_step_hooks(
    old: torch.optim.Optimizer, new: torch.optim.Optimizer, memo: Mapping[int, object]
) -> None:
    for hook in old._optimizer_step_pre_hooks.values():
        new.register_step_pre_hook(_rebound(hook, memo))  # type: ignore[arg-type]
    for hook in old._optimizer_step_post_hooks.values():
        new.register_step_post_hook(_rebound(hook, memo))  # type: ignore[arg-type]


def _rebound(thing: object, memo: Mapping[int, object]) -> object:
    """Return a function that sees the copies where it saw the originals; anything else as it is."""
    if not isinstance(thing, types.FunctionType):
        return thing
    cells = tuple(_cell(cell, memo) for cell in thing.__closure__ or ())
    names = [name for name in thing.__code__.co_names if id(thing.__globals__.get(name)) in memo]
    defaults = tuple(memo.get(id(value), value) for value in thing.__defaults__ or ())
    keywords = {name: memo.get(id(value), value) for name, value in (thing.__kwdefaults__ or {}).items()}
    same = cells == (thing.__closure__ or ()) and _alike(defaults, thing.__defaults__ or ())
    if not names and same and _alike(keywords.values(), (thing.__kwdefaults__ or {}).values()):
        return thing
    table = (
        thing.__globals__
        if not names
        else thing.__globals__ | {name: memo[id(thing.__globals__[name])] for name in names}
    )
    made = types.FunctionType(thing.__code__, table, thing.__name__, defaults or None, cells)
    made.__kwdefaults__ = keywords or None
    return made


def _alike(left: Iterable[object], right: Iterable[object]) -> bool:
    return all(a is b for a, b in zip(left, right, strict=True))


def _cell(cell: types.CellType, memo: Mapping[int, object]) -> types.CellType:
    try:
        held = cell.cell_contents
    except ValueError:
        return cell
    return types.CellType(memo[id(held)]) if id(held) in memo else cell
