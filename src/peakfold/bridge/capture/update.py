"""The optimizer's own step, run on the captured program's tensors.

The algorithm is the user's: ``type(optimizer).step`` runs on a shadow of the optimizer whose groups hold
fake parameters and recorded numbers. So every operator of the update is eager's, in eager's order.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.overrides import TorchFunctionMode

from peakfold.bridge.capture.binding import Hyperparameter, OptimizerState
from peakfold.bridge.capture.captured import Missing
from peakfold.bridge.capture.fakes import FakeModule, fake_of
from peakfold.bridge.capture.first_state import Fills, missing_state
from peakfold.bridge.capture.optimizer_guards import OF_SCHEDULERS
from peakfold.bridge.capture.optimizers import (
    Group,
    copy_of,
    names_of,
    parameters_of,
    refused,
    run_step,
    without_hooks,
)
from peakfold.bridge.capture.tape import Tape


@dataclass(frozen=True)
class Shadow:
    """A stand-in for the user's optimizer.

    Attributes:
        optimizer: of the user's class, with fake parameters.
        names: name of each fake parameter, by id.
        states: the fake tensors that stand for optimizer state.
        rates: the fake tensors that stand for learning rates which are tensors.
        missing: what of the state does not exist yet.
        undamped: groups that have no dampening on a step that makes their state.
    """

    optimizer: torch.optim.Optimizer
    names: Mapping[int, str]
    states: Mapping[OptimizerState, torch.Tensor]
    rates: Mapping[Hyperparameter, torch.Tensor]
    missing: tuple[Missing, ...]
    undamped: tuple[int, ...]

    def step(self, tape: Tape, real: Mapping[int, torch.Tensor]) -> None:
        """Run the user's step, its hooks included."""
        with torch.no_grad(), HostReads(tape, real):
            run_step(self.optimizer)

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


def shadow(optimizer: torch.optim.Optimizer, module: FakeModule, tape: Tape) -> Shadow:
    """Make the shadow of an optimizer; the fake parameters have their gradients by now."""
    names = names_of(optimizer, module)
    fakes = module.fake
    _check_flags(optimizer)
    missing, undamped = missing_state(optimizer, module, tape)
    state: dict[torch.Tensor, dict[str, Any]] = {}
    tensors: dict[OptimizerState, torch.Tensor] = {}
    for real in parameters_of(optimizer):
        held = optimizer.state.get(real, {})
        made = {m.source.key: m for m in missing if m.source.parameter == names[id(real)]}
        for key in dict.fromkeys((*held, *made)):
            fake = _state_tensor(optimizer, key, held.get(key), made.get(key), fakes[id(real)], tape)
            tensors[OptimizerState(names[id(real)], key)] = fake
            state.setdefault(fakes[id(real)], {})[key] = fake
    for source, fake in tensors.items():
        tape.add_input(fake, f"{source.parameter}.{source.key}", "optimizer")
    rates: dict[Hyperparameter, torch.Tensor] = {}
    groups = [
        _recorded(group, index, fakes, tape, rates) for index, group in enumerate(optimizer.param_groups)
    ]
    copy = copy_of(optimizer, groups, state)
    return Shadow(copy, {id(fakes[i]): name for i, name in names.items()}, tensors, rates, missing, undamped)


def _check_flags(optimizer: torch.optim.Optimizer) -> None:
    for group in optimizer.param_groups:
        for flag in ("fused", "capturable", "differentiable"):
            if group.get(flag):
                raise refused(optimizer, f"{flag}=True")
        for key, entry in group.items():
            if not isinstance(entry, torch.Tensor) or key == OF_SCHEDULERS:
                continue
            if key != "lr" or entry.requires_grad:
                raise refused(optimizer, f"{key} is a tensor, not a number")


def _recorded(
    group: Group,
    index: int,
    fakes: Mapping[int, torch.Tensor],
    tape: Tape,
    rates: dict[Hyperparameter, torch.Tensor],
) -> Group:
    made: Group = {}
    for key, value in group.items():
        if key == "params":
            made[key] = [fakes[id(real)] for real in value]
        elif key == OF_SCHEDULERS:
            made[key] = value
        else:
            made[key] = _recorded_entry(value, Hyperparameter(index, key), tape, rates)
    return made


def _recorded_entry(
    value: object, source: Hyperparameter, tape: Tape, rates: dict[Hyperparameter, torch.Tensor]
) -> object:
    if isinstance(value, bool):
        return value
    if isinstance(value, torch.Tensor):
        with tape.fake:
            fake = fake_of(value)
        rates[source] = fake
        tape.add_input(fake, f"optimizer.{source.group}.{source.key}", "optimizer")
        return fake
    if isinstance(value, float) or (isinstance(value, int) and source.key == "lr"):
        item = "" if source.item < 0 else f".{source.item}"
        return tape.add_scalar(f"optimizer.{source.group}.{source.key}{item}", float(value), source)
    if isinstance(value, tuple):
        entries = (Hyperparameter(source.group, source.key, item) for item in range(len(value)))
        return tuple(map(lambda v, s: _recorded_entry(v, s, tape, rates), value, entries))
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


def mirrored(
    optimizer: torch.optim.Optimizer, module: FakeModule, mode: FakeTensorMode
) -> torch.optim.Optimizer:
    """Return a copy of an optimizer on fake parameters, with the state that it has after a step.

    Call it in the fake mode. Its numbers are the user's own; nothing is recorded.
    """
    fakes = module.fake
    names_of(optimizer, module)
    state = {
        fakes[id(real)]: {k: fake_of(v) if isinstance(v, torch.Tensor) else v for k, v in held.items()}
        for real, held in optimizer.state.items()
        if id(real) in fakes
    }
    groups = [
        {**group, "params": [fakes[id(real)] for real in group["params"]]} for group in optimizer.param_groups
    ]
    copy = copy_of(optimizer, groups, state)
    fresh = [p for group in groups for p in group["params"] if not state.get(p)]
    for parameter in fresh:
        parameter.grad = torch.empty_like(parameter) if parameter.requires_grad else None
    first = without_hooks(copy_of(optimizer, groups, copy.state))
    first.state = copy.state
    with Fills(), torch.no_grad():
        run_step(first)
    for parameter in fresh:
        parameter.grad = None
    return copy
