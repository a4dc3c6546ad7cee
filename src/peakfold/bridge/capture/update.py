"""The optimizer's own step, run on the captured program's tensors.

The algorithm is the user's: ``type(optimizer).step`` runs on a shadow of the optimizer whose groups hold
fake parameters and recorded numbers. So every operator of the update is eager's, in eager's order.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import _disable_current_modes

from peakfold.bridge.capture.binding import Hyperparameter, OptimizerState
from peakfold.bridge.capture.captured import Missing
from peakfold.bridge.capture.fakes import FakeModule, fake_of
from peakfold.bridge.capture.filled import NumbersIntoTensors
from peakfold.bridge.capture.first_state import Fills, missing_state
from peakfold.bridge.capture.host import extremes_recorded
from peakfold.bridge.capture.namespaces import OwnStep
from peakfold.bridge.capture.optimizer_guards import OF_SCHEDULERS
from peakfold.bridge.capture.optimizers import (
    Group,
    check_keeps_numbers,
    copy_of,
    names_of,
    parameters_of,
    refused,
    run_step,
    without_hooks,
)
from peakfold.bridge.capture.tape import Tape
from peakfold.bridge.capture.truths import Call, StateNumber, number_of, readable
from peakfold.ir.graph import Arg, Value


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
        numbers: states that are one number each, with what they hold now.
    """

    optimizer: torch.optim.Optimizer
    names: Mapping[int, str]
    states: Mapping[OptimizerState, torch.Tensor]
    rates: Mapping[Hyperparameter, torch.Tensor]
    missing: tuple[Missing, ...]
    undamped: tuple[int, ...]
    numbers: Mapping[OptimizerState, tuple[StateNumber, float]]

    def step(self, tape: Tape, real: Mapping[int, torch.Tensor]) -> None:
        """Run the user's step, its hooks included."""
        known = {tape.value(self.states[source]).node: held for source, held in self.numbers.items()}
        with torch.no_grad(), extremes_recorded(), HostReads(tape, real, known):
            before = [dict(group) for group in self.optimizer.param_groups], dict(self.optimizer.__dict__)
            run_step(self.optimizer)
            check_keeps_numbers(self.optimizer, *before)

    def state_now(self) -> Iterator[tuple[OptimizerState, torch.Tensor]]:
        """Yield each state with the tensor that holds it now."""
        for fake, state in self.optimizer.state.items():
            for key, tensor in state.items():
                source = OptimizerState(self.names[id(fake)], key)
                if source in self.states:
                    yield source, tensor
                elif tensor is not None:
                    raise refused(self.optimizer, f"state {key!r} is made on a later step than the first")


class HostReads(NumbersIntoTensors):
    """Inside, ``tensor.item()`` gives a recorded number, and real parameters mean their fakes."""

    def __init__(
        self,
        tape: Tape,
        fakes: Mapping[int, torch.Tensor],
        known: Mapping[int, tuple[StateNumber, float]],
    ) -> None:
        super().__init__()
        self.tape = tape
        self.fakes = fakes
        self.known = known

    def __torch_function__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if func is torch.Tensor.item:
            return self.tape.item(args[0], *self._read_from(args[0]))
        return super().__torch_function__(func, types, tuple(map(self._fake, args)), kwargs)

    def _read_from(self, tensor: torch.Tensor) -> tuple[StateNumber | None, float | None]:
        """Return the state that a number is read from, with its value; None where it depends on more."""
        value = self.tape.value(tensor)
        calls: list[Call] = []
        while value.node not in self.known:
            node = next((node for node in reversed(self.tape.nodes) if node.id == value.node), None)
            source = None if node is None else node.args[0]
            if node is None or not node.op.pure or not isinstance(source, Value):
                return None, None
            rest = tuple(map(self._number, node.args[1:]))
            if not all(isinstance(arg, int | float) for arg in (*rest, *dict(node.kwargs).values())):
                return None, None
            calls.append(cast(Call, (node.op.name, rest, node.kwargs)))
            value = source
        start, now = self.known[value.node]
        number = replace(start, calls=tuple(reversed(calls)))
        with _disable_current_modes():
            return number, number.of(now)

    def _number(self, arg: Arg) -> Arg:
        """Return the number that a constant tensor holds; any other argument as it is."""
        constant = self.tape.constants.get(arg.node) if isinstance(arg, Value) else None
        if constant is None or not readable(constant):
            return arg
        with _disable_current_modes():
            return float(constant)

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
    numbers: dict[OptimizerState, tuple[StateNumber, float]] = {}
    for real in parameters_of(optimizer):
        held = optimizer.state.get(real, {})
        made = {m.source.key: m for m in missing if m.source.parameter == names[id(real)]}
        for key in dict.fromkeys((*held, *made)):
            fake = _state_tensor(optimizer, key, held.get(key), made.get(key), fakes[id(real)], tape)
            tensors[OptimizerState(names[id(real)], key)] = fake
            numbers |= _number(optimizer, OptimizerState(names[id(real)], key), held.get(key), made.get(key))
            state.setdefault(fakes[id(real)], {})[key] = fake
    for source, fake in tensors.items():
        tape.add_input(fake, f"{source.parameter}.{source.key}", "optimizer")
    rates: dict[Hyperparameter, torch.Tensor] = {}
    groups = [
        _recorded(group, index, fakes, tape, rates) for index, group in enumerate(optimizer.param_groups)
    ]
    copy = copy_of(optimizer, groups, state)
    of_fakes = {id(fakes[i]): name for i, name in names.items()}
    return Shadow(copy, of_fakes, tensors, rates, missing, undamped, numbers)


def _number(
    optimizer: torch.optim.Optimizer, source: OptimizerState, held: object, made: Missing | None
) -> Mapping[OptimizerState, tuple[StateNumber, float]]:
    """Return what a state holds now, where it is one number that can be read."""
    if isinstance(held, torch.Tensor) and readable(held):
        with _disable_current_modes():
            return {source: (StateNumber(source.parameter, source.key, 0.0, held.dtype), float(held))}
    if made is None or made.shape or not made.dtype.is_floating_point:
        return {}
    start = made.value
    now = number_of(start, optimizer) if isinstance(start, Hyperparameter) else start
    return {source: (StateNumber(source.parameter, source.key, start, made.dtype), now)}


def _check_flags(optimizer: torch.optim.Optimizer) -> None:
    if "step" in OwnStep(optimizer):
        raise refused(optimizer, "its step() was replaced on this object alone")
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
    item = "" if source.item < 0 else f".{source.item}"
    name = f"optimizer.{source.group}.{source.key}{item}"
    if isinstance(value, torch.Tensor):
        with tape.fake:
            fake = fake_of(value)
        rates[source] = fake
        tape.add_input(fake, name, "optimizer")
        return fake
    if isinstance(value, float) or (isinstance(value, int) and source.key == "lr"):
        return tape.add_scalar(name, float(value), source)
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
