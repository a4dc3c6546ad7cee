"""The optimizer's own step, run on the captured program's tensors.

The algorithm is the user's: ``type(optimizer).step`` runs on a shadow of the optimizer whose groups hold
fake parameters and recorded numbers. So every operator of the update is eager's, in eager's order.
"""

from collections import OrderedDict, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from peakfold.bridge.capture.binding import Hyperparameter, OptimizerState
from peakfold.bridge.capture.captured import Missing
from peakfold.bridge.capture.fakes import FakeModule, fake_of
from peakfold.bridge.capture.storage import Geometry
from peakfold.bridge.capture.tape import Tape
from peakfold.errors import CaptureError

Group = dict[str, Any]


@dataclass(frozen=True)
class Shadow:
    """A stand-in for the user's optimizer.

    Attributes:
        optimizer: of the user's class, with fake parameters.
        names: name of each fake parameter, by id.
        states: the fake tensors that stand for optimizer state.
        missing: what of the state does not exist yet.
        undamped: groups that have no dampening on a step that makes their state.
    """

    optimizer: torch.optim.Optimizer
    names: Mapping[int, str]
    states: Mapping[OptimizerState, torch.Tensor]
    missing: tuple[Missing, ...]
    undamped: tuple[int, ...]

    def step(self, tape: Tape, real: Mapping[int, torch.Tensor]) -> None:
        """Run the user's step, its hooks included."""
        with torch.no_grad(), HostReads(tape, real):
            _run(self.optimizer)

    def state_now(self) -> Iterator[tuple[OptimizerState, torch.Tensor]]:
        """Yield each state with the tensor that holds it now."""
        for fake, state in self.optimizer.state.items():
            for key, tensor in state.items():
                source = OptimizerState(self.names[id(fake)], key)
                if source in self.states:
                    yield source, tensor
                elif tensor is not None:
                    raise refused(self.optimizer, f"state {key!r} is made on a later step than the first")


class HostReads(TorchFunctionMode):
    """Inside, ``tensor.item()`` gives a recorded number, and real parameters mean their fakes."""

    def __init__(self, tape: Tape, fakes: Mapping[int, torch.Tensor]) -> None:
        super().__init__()
        self.tape = tape
        self.fakes = fakes

    def __torch_function__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if func is torch.Tensor.item:
            return self.tape.item(args[0])
        return func(*(self._fake(arg) for arg in args), **(kwargs or {}))

    def _fake(self, arg: Any) -> Any:
        if isinstance(arg, torch.Tensor):
            return self.fakes.get(id(arg), arg)
        if isinstance(arg, list | tuple) and type(arg) in (list, tuple):
            return type(arg)(map(self._fake, arg))
        return arg


def _run(optimizer: torch.optim.Optimizer) -> None:
    try:
        type(optimizer).step(optimizer)
    except CaptureError:
        raise
    except Exception as error:
        raise refused(optimizer, f"{type(error).__name__}: {error}") from error


def refused(optimizer: torch.optim.Optimizer, got: str) -> CaptureError:
    """Return the error for an optimizer that cannot be captured."""
    return CaptureError(
        stage="capture",
        what=f"the optimizer {type(optimizer).__name__} cannot be captured",
        expected="an optimizer whose step() needs gradients only, and whose state is tensors",
        got=got,
        hint="pass optimizer=None: the step leaves gradients, and the optimizer runs by itself",
    )


def shadow(optimizer: torch.optim.Optimizer, module: FakeModule, tape: Tape) -> Shadow:
    """Make the shadow of an optimizer; the fake parameters have their gradients by now."""
    names = _names(optimizer, module)
    fakes = module.fake
    _check_flags(optimizer)
    missing, undamped = _missing(optimizer, module, tape)
    state: dict[torch.Tensor, dict[str, Any]] = {}
    tensors: dict[OptimizerState, torch.Tensor] = {}
    for real in _parameters(optimizer):
        held = optimizer.state.get(real, {})
        made = {m.source.key: m for m in missing if m.source.parameter == names[id(real)]}
        for key in dict.fromkeys((*held, *made)):
            fake = _state_tensor(optimizer, key, held.get(key), made.get(key), fakes[id(real)], tape)
            tensors[OptimizerState(names[id(real)], key)] = fake
            state.setdefault(fakes[id(real)], {})[key] = fake
    for source, fake in tensors.items():
        tape.add_input(fake, f"{source.parameter}.{source.key}", "optimizer")
    groups = [_recorded(group, index, fakes, tape) for index, group in enumerate(optimizer.param_groups)]
    copy = _copy(optimizer, groups, state)
    return Shadow(copy, {id(fakes[i]): name for i, name in names.items()}, tensors, missing, undamped)


def updated_names(optimizer: torch.optim.Optimizer, module: FakeModule) -> frozenset[str]:
    """Return the names of the parameters that an optimizer updates."""
    return frozenset(_names(optimizer, module).values())


def _parameters(optimizer: torch.optim.Optimizer) -> Iterator[torch.Tensor]:
    for group in optimizer.param_groups:
        yield from group["params"]


def _names(optimizer: torch.optim.Optimizer, module: FakeModule) -> dict[int, str]:
    names = {id(real): name for name, real, _ in module.parameters}
    for real in _parameters(optimizer):
        if id(real) not in names:
            raise CaptureError(
                stage="capture",
                what="the optimizer updates a tensor that is not a parameter of the model",
                expected="parameters of the model",
                got=f"a tensor of shape {tuple(real.shape)}",
                hint="make the optimizer from model.parameters() of the model that is passed",
            )
    return {id(real): names[id(real)] for real in _parameters(optimizer)}


def _check_flags(optimizer: torch.optim.Optimizer) -> None:
    for group in optimizer.param_groups:
        for flag in ("fused", "capturable", "differentiable"):
            if group.get(flag):
                raise refused(optimizer, f"{flag}=True")
        for key, entry in group.items():
            if isinstance(entry, torch.Tensor):
                raise refused(optimizer, f"{key} is a tensor, not a number")


def _copy(
    optimizer: torch.optim.Optimizer, groups: list[Group], state: Mapping[torch.Tensor, Group]
) -> torch.optim.Optimizer:
    copy = object.__new__(type(optimizer))
    copy.__dict__.update(optimizer.__dict__)
    copy.__dict__.pop("step", None)
    copy.param_groups = groups
    copy.state = defaultdict(dict, state)
    return copy


def _without_hooks(copy: torch.optim.Optimizer) -> torch.optim.Optimizer:
    """Return the copy for a step on the side, which is no step of the user's."""
    copy._optimizer_step_pre_hooks = OrderedDict()
    copy._optimizer_step_post_hooks = OrderedDict()
    return copy


def _recorded(group: Group, index: int, fakes: Mapping[int, torch.Tensor], tape: Tape) -> Group:
    made: Group = {}
    for key, value in group.items():
        if key == "params":
            made[key] = [fakes[id(real)] for real in value]
        else:
            made[key] = _recorded_entry(value, Hyperparameter(index, key), tape)
    return made


def _recorded_entry(value: object, source: Hyperparameter, tape: Tape) -> object:
    if isinstance(value, bool):
        return value
    if isinstance(value, float) or (isinstance(value, int) and source.key == "lr"):
        item = "" if source.item < 0 else f".{source.item}"
        return tape.add_scalar(f"optimizer.{source.group}.{source.key}{item}", float(value), source)
    if isinstance(value, tuple):
        entries = (Hyperparameter(source.group, source.key, item) for item in range(len(value)))
        return tuple(map(lambda v, s: _recorded_entry(v, s, tape), value, entries))
    return value


def _state_tensor(
    optimizer: torch.optim.Optimizer,
    key: str,
    held: object,
    made: Missing | None,
    like: torch.Tensor,
    tape: Tape,
) -> torch.Tensor:
    with tape.fake:
        if isinstance(held, torch.Tensor):
            return fake_of(held)
        if made is None:
            raise refused(optimizer, f"state {key!r} is a {type(held).__name__}")
        if made.like:
            return torch.empty_like(like, dtype=made.dtype, requires_grad=False)
        return torch.empty(made.shape, dtype=made.dtype, device=made.device)


# -- state that does not exist yet -------------------------------------------------------------


_READS = (torch.ops.aten._local_scalar_dense.default, torch.ops.aten.item.default)


class _Fills(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes what factory operators fill new tensors with."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
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
        value = _filled(func, args)
        if value is not None:
            self.fill[result.untyped_storage()._cdata] = value
            self.alive.append(result)
        return result

    def of(self, value: object) -> float | None:
        """Return what a tensor is filled with now, None where that is not known."""
        return self.fill.get(value.untyped_storage()._cdata) if isinstance(value, torch.Tensor) else None


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

    def __init__(self, fills: _Fills) -> None:
        super().__init__()
        self.fills = fills
        self.first: dict[str, tuple[Any, float | None]] = {}

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


def _missing(
    optimizer: torch.optim.Optimizer, module: FakeModule, tape: Tape
) -> tuple[tuple[Missing, ...], tuple[int, ...]]:
    """Run the first step of the parameters without state on the side, to see what it makes."""
    fakes = module.fake
    groups = [_first_group(group, optimizer, fakes, tape) for group in optimizer.param_groups]
    fresh = [param for group in groups for param in group["params"]]
    if not fresh:
        return (), ()
    fills = _Fills()
    state: dict[torch.Tensor, Any] = {param: _FirstValues(fills) for param in fresh}
    copy = _without_hooks(_copy(optimizer, groups, state))
    with _disable_current_modes(), tape.fake, fills, torch.no_grad():
        _run(copy)
    names = _names(optimizer, module)
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
    return tuple(made), _undamped(optimizer, fakes)


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
    fill: float | None,
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


def _undamped(optimizer: torch.optim.Optimizer, fakes: Mapping[int, torch.Tensor]) -> tuple[int, ...]:
    if not isinstance(optimizer, torch.optim.SGD):
        return ()
    damped = [i for i, group in enumerate(optimizer.param_groups) if group["momentum"] and group["dampening"]]
    for index in damped:
        params = [p for p in optimizer.param_groups[index]["params"] if fakes[id(p)].grad is not None]
        fresh = [_is_fresh(param, optimizer, fakes) for param in params]
        if any(fresh) and not all(fresh):
            raise refused(optimizer, "dampening, and momentum buffers for some parameters only")
    return tuple(damped)


def mirrored(
    optimizer: torch.optim.Optimizer, module: FakeModule, mode: FakeTensorMode
) -> torch.optim.Optimizer:
    """Return a copy of an optimizer on fake parameters, with the state that it has after a step.

    Call it in the fake mode. Its numbers are the user's own; nothing is recorded.
    """
    fakes = module.fake
    _names(optimizer, module)
    state = {
        fakes[id(real)]: {k: fake_of(v) if isinstance(v, torch.Tensor) else v for k, v in held.items()}
        for real, held in optimizer.state.items()
        if id(real) in fakes
    }
    groups = [
        {**group, "params": [fakes[id(real)] for real in group["params"]]} for group in optimizer.param_groups
    ]
    copy = _copy(optimizer, groups, state)
    fresh = [p for group in groups for p in group["params"] if not state.get(p)]
    for parameter in fresh:
        parameter.grad = torch.empty_like(parameter) if parameter.requires_grad else None
    first = _without_hooks(_copy(optimizer, groups, copy.state))
    first.state = copy.state
    with _Fills(), torch.no_grad():
        _run(first)
    for parameter in fresh:
        parameter.grad = None
    return copy
