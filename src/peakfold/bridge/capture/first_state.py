"""Optimizer state that does not exist before the first step: what that makes, and from what."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from peakfold.bridge.capture.binding import Hyperparameter, OptimizerState
from peakfold.bridge.capture.captured import Missing
from peakfold.bridge.capture.fakes import FakeModule, fake_of
from peakfold.bridge.capture.filled import NumbersIntoTensors
from peakfold.bridge.capture.host import HostBook, extremes_recorded
from peakfold.bridge.capture.optimizers import Group, copy_of, names_of, refused, run_step, without_hooks
from peakfold.bridge.capture.storage import Geometry
from peakfold.bridge.capture.tape import Tape

_READS = (torch.ops.aten._local_scalar_dense.default, torch.ops.aten.item.default)


class Fills(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes what factory operators fill new tensors with.

    Attributes:
        book: numbers of the groups, which a tensor may be filled with.
        fill: by storage.
        alive: tensors whose storage is noted.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.book = HostBook()
        self.fill: dict[int, float] = {}
        self.alive: list[object] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if func in _READS:
            return 0.5
        result = func(*args, **(kwargs or {}))
        if func._schema.is_mutable and isinstance(args[0], torch.Tensor):
            self.fill.pop(args[0].untyped_storage()._cdata, None)
        copied = func is torch.ops.aten.clone.default
        value = self.fill.get(args[0].untyped_storage()._cdata) if copied else _filled(func, args)
        if value is not None:
            self.fill[result.untyped_storage()._cdata] = value
            self.alive.append(result)
        return result

    def of(self, value: object) -> float | Hyperparameter | None:
        """Return what a tensor is filled with now, None where that is not known."""
        if not isinstance(value, torch.Tensor):
            return None
        fill = self.fill.get(value.untyped_storage()._cdata)
        number = None if fill is None else self.book.find(fill)
        if number is None:
            return fill
        origin = number.operands[0]
        return origin if isinstance(origin, Hyperparameter) else None


def _filled(func: torch._ops.OpOverload, args: Sequence[Any]) -> float | None:
    name = func._schema.name.removeprefix("aten::")
    if name in ("zeros", "zeros_like", "new_zeros"):
        return 0.0
    if name in ("ones", "ones_like", "new_ones"):
        return 1.0
    if name in ("full", "full_like"):
        return float(args[1])
    if name == "lift_fresh" and args[0].numel() == 1:
        with _disable_current_modes():
            return float(args[0])
    return None


class _FirstValues(dict[str, Any]):
    """The state of a parameter that remembers what is first put under each key, and its fill."""

    def __init__(self, fills: Fills) -> None:
        super().__init__()
        self.fills = fills
        self.first: dict[str, tuple[Any, float | Hyperparameter | None]] = {}

    def __setitem__(self, key: str, value: Any) -> None:
        self.first.setdefault(key, (value, self.fills.of(value)))
        super().__setitem__(key, value)

    def setdefault(self, key: str, default: Any = None) -> Any:
        if key not in self:
            self[key] = default
        return self[key]

    def update(self, *args: Any, **kwargs: Any) -> None:
        for key, value in dict(*args, **kwargs).items():
            self[key] = value


def missing_state(
    optimizer: torch.optim.Optimizer, module: FakeModule, tape: Tape
) -> tuple[tuple[Missing, ...], tuple[int, ...]]:
    """Run the first step of the parameters without state on the side, to see what it makes."""
    fakes = module.fake
    fills = Fills()
    groups = [
        _first_group(_numbered(group, index, fills.book), optimizer, fakes, tape)
        for index, group in enumerate(optimizer.param_groups)
    ]
    fresh = [param for group in groups for param in group["params"]]
    if not fresh:
        return (), ()
    state: dict[torch.Tensor, Any] = {param: _FirstValues(fills) for param in fresh}
    copy = without_hooks(copy_of(optimizer, groups, state))
    recorded = (NumbersIntoTensors(), extremes_recorded())
    with _disable_current_modes(), tape.fake, fills, torch.no_grad(), recorded[0], recorded[1]:
        run_step(copy)
    names = names_of(optimizer, module)
    ordered = [
        (names[id(real)], group)
        for group, user in zip(groups, optimizer.param_groups, strict=True)
        for real in user["params"]
        if _is_fresh(real, optimizer, fakes)
    ]
    made = [
        _missing_entry(optimizer, OptimizerState(name, key), value, fill, param)
        for (name, _), param in zip(ordered, fresh, strict=True)
        for key, (value, fill) in copy.state[param].first.items()
        if value is not None
    ]
    return tuple(made), undamped_groups(optimizer, fakes)


def _numbered(group: Group, index: int, book: HostBook) -> Group:
    """Return a group whose numbers are recorded, so that what is filled with one is known."""

    def numbered(entry: object, source: Hyperparameter) -> object:
        if isinstance(entry, tuple):
            places = (replace(source, item=item) for item in range(len(entry)))
            return tuple(map(numbered, entry, places))
        return book.given(source, entry) if isinstance(entry, float) else entry

    return {key: numbered(entry, Hyperparameter(index, key)) for key, entry in group.items()}


def _is_fresh(
    real: torch.Tensor, optimizer: torch.optim.Optimizer, fakes: Mapping[int, torch.Tensor]
) -> bool:
    state = optimizer.state.get(real, {})
    return fakes[id(real)].grad is not None and all(value is None for value in state.values())


def _first_group(
    group: Group, optimizer: torch.optim.Optimizer, fakes: Mapping[int, torch.Tensor], tape: Tape
) -> Group:
    fresh = [real for real in group["params"] if _is_fresh(real, optimizer, fakes)]
    with tape.fake:
        params = [fake_of(real) for real in fresh]
        for param in params:
            param.grad = torch.empty_like(param)
    return {**group, "params": params}


def _missing_entry(
    optimizer: torch.optim.Optimizer,
    source: OptimizerState,
    value: object,
    fill: float | Hyperparameter | None,
    param: torch.Tensor,
) -> Missing:
    if not isinstance(value, torch.Tensor):
        raise refused(optimizer, f"state {source.key!r} is a {type(value).__name__}")
    if fill is None and isinstance(optimizer, torch.optim.SGD):
        fill = -0.0
    if fill is None:
        raise refused(optimizer, f"state {source.key!r} is made from the first gradients")
    same = value.shape == param.shape and value.stride() == param.stride() and value.dim() > 0
    geometry = Geometry.of(value)
    return Missing(
        source, geometry.shape, value.dtype, geometry.device, fill, source.parameter if same else ""
    )


def undamped_groups(optimizer: torch.optim.Optimizer, fakes: Mapping[int, torch.Tensor]) -> tuple[int, ...]:
    """Return the groups that have no dampening on a step that makes their state: SGD's first one."""
    if not isinstance(optimizer, torch.optim.SGD):
        return ()
    damped = [i for i, group in enumerate(optimizer.param_groups) if group["momentum"] and group["dampening"]]
    for index in damped:
        params = [p for p in optimizer.param_groups[index]["params"] if fakes[id(p)].grad is not None]
        fresh = [_is_fresh(param, optimizer, fakes) for param in params]
        if any(fresh) and not all(fresh):
            raise refused(optimizer, "dampening, and momentum buffers for some parameters only")
    return tuple(damped)
