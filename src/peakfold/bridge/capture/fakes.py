"""Fake tensors in the place of the user's: no weight is read, copied or made."""

from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from peakfold.errors import CaptureError


def device_of(tensor: torch.Tensor) -> torch.device:
    """Return the device that a program on this tensor is captured for: meta counts as cpu."""
    return torch.device("cpu") if tensor.device.type == "meta" else tensor.device


def fake_of(tensor: torch.Tensor) -> torch.Tensor:
    """Return an empty tensor with the geometry of a real, meta or fake one; call it in a fake mode."""
    made = torch.empty_strided(
        tuple(tensor.shape), tensor.stride(), dtype=tensor.dtype, device=device_of(tensor)
    )
    if isinstance(tensor, torch.nn.Parameter):
        return torch.nn.Parameter(made, requires_grad=tensor.requires_grad)
    return made.requires_grad_(tensor.requires_grad and tensor.is_leaf)


@dataclass(frozen=True)
class FakeModule:
    """A module's tensors, and the fake ones that stand for them.

    Attributes:
        module: the user's.
        parameters: (name, real, fake), the first name where several modules share one.
        buffers: the same for buffers.
    """

    module: torch.nn.Module
    parameters: tuple[tuple[str, torch.nn.Parameter, torch.Tensor], ...]
    buffers: tuple[tuple[str, torch.Tensor, torch.Tensor], ...]

    @staticmethod
    def of(module: torch.nn.Module, mode: FakeTensorMode) -> "FakeModule":
        """Make the fake tensors of a module."""
        _check_initialized([*module.named_parameters(), *module.named_buffers()])
        with mode:
            parameters = tuple((name, p, fake_of(p)) for name, p in module.named_parameters())
            buffers = tuple((name, b, fake_of(b)) for name, b in module.named_buffers())
        _check_all_real_or_none([*module.named_parameters(), *module.named_buffers()])
        _check_storages([*module.named_parameters(), *module.named_buffers()])
        for _, real, fake in parameters:
            for hook in (real._backward_hooks or {}).values():
                fake.register_hook(hook)  # type: ignore[no-untyped-call]
        return FakeModule(module, parameters, buffers)

    @property
    def fake(self) -> dict[int, torch.Tensor]:
        """The fake tensor of each real one, by id."""
        return {id(real): fake for _, real, fake in (*self.parameters, *self.buffers)}

    @contextmanager
    def swapped(self) -> Iterator[list[dict[str, object]]]:
        """Have the module hold the fake tensors inside, and be as it was afterwards.

        Hooks that a library puts on modules as they first run are taken off again.

        Yields:
            The attributes of each of its modules as they were.
        """
        fake = self.fake
        modules = list(self.module.modules())
        before = [dict(module.__dict__) for module in modules]
        contents = [_contents(module) for module in modules]
        held = [(dict(module._parameters), dict(module._buffers)) for module in modules]
        try:
            for module in modules:
                tables: tuple[dict[str, Any], ...] = (module._parameters, module._buffers)
                for table in tables:
                    table.update({key: fake[id(t)] for key, t in table.items() if t is not None})
            yield before
        finally:
            for module, attributes, content, (parameters, buffers) in zip(
                modules, before, contents, held, strict=True
            ):
                module.__dict__.clear()
                module.__dict__.update(attributes)
                _put_back(attributes, content)
                _restore(module._parameters, parameters)
                _restore(module._buffers, buffers)


def _check_initialized(tensors: list[tuple[str, torch.Tensor]]) -> None:
    lazy = next((name for name, tensor in tensors if torch.nn.parameter.is_lazy(tensor)), None)
    if lazy is not None:
        raise CaptureError(
            stage="capture",
            what="a lazy module has not been run yet",
            where=lazy,
            expected="parameters that have a shape",
            hint="run the model once on a batch",
        )


def _check_all_real_or_none(tensors: list[tuple[str, torch.Tensor]]) -> None:
    """Refuse a model of which a part alone has numbers; the whole of it may be on the meta device."""
    real = [name for name, tensor in tensors if tensor.device.type != "meta"]
    meta = [name for name, tensor in tensors if tensor.device.type == "meta"]
    if real and meta:
        raise CaptureError(
            stage="capture",
            what="the model is on more than one device",
            expected=f"everything on the meta device, or nothing: {real[0]} is not",
            got=f"{meta[0]} on meta",
            hint="make all of the model on one device, or move it to the meta device: .to('meta')",
        )


def _check_storages(tensors: list[tuple[str, torch.Tensor]]) -> None:
    owner: dict[int, str] = {}
    for name, tensor in tensors:
        other = owner.setdefault(tensor.untyped_storage()._cdata, name)
        if other != name:
            raise CaptureError(
                stage="capture",
                what=f"{other} and {name} are different tensors in the same memory",
                expected="each parameter and buffer in memory of its own",
                hint=f"copy one: .clone(), or use the same Parameter object for both: {other}",
            )


_CONTAINERS = (dict, OrderedDict, list, set)


def _contents(module: torch.nn.Module) -> dict[str, Any]:
    """Return what is in the containers that a module holds, its tables of hooks among them."""
    held = ((key, value) for key, value in module.__dict__.items() if type(value) in _CONTAINERS)
    return {key: list(value.items()) if isinstance(value, dict) else list(value) for key, value in held}


def _put_back(attributes: dict[str, Any], contents: dict[str, Any]) -> None:
    for key, content in contents.items():
        container = attributes[key]
        container.clear()
        container.extend(content) if isinstance(container, list) else container.update(content)


def _restore(table: dict[str, Any], held: dict[str, Any]) -> None:
    table.clear()
    table.update(held)


def one_device(module: FakeModule, batch: list[torch.Tensor]) -> torch.device:
    """Return the device of everything, or say what is elsewhere."""
    named = [(f"parameter {name}", fake) for name, _, fake in module.parameters]
    named += [(f"buffer {name}", fake) for name, _, fake in module.buffers]
    named += [(f"batch leaf {index}", fake) for index, fake in enumerate(batch)]
    if not named:
        return torch.device("cpu")
    first, device = named[0][0], named[0][1].device
    for name, tensor in named:
        if tensor.device != device and tensor.dim() > 0:
            raise CaptureError(
                stage="capture",
                what="the model and its batch are on more than one device",
                expected=f"everything on {device}, where {first} is",
                got=f"{name} on {tensor.device}",
                hint=f"move it: .to({str(device)!r})",
            )
    return device
