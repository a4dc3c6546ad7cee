"""The inputs of a program, fetched from the user's live objects before each call."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import cast

import torch

from peakfold.bridge.capture.binding import (
    BatchLeaf,
    BufferOf,
    Constant,
    GradientOf,
    Hyperparameter,
    OptimizerState,
    Parameter,
    ScalerState,
    Source,
)
from peakfold.bridge.capture.captured import Missing
from peakfold.bridge.capture.keyed import draw_key
from peakfold.bridge.runtime.compiled import Compiled
from peakfold.errors import CaptureError
from peakfold.ir.types import TensorType

GRADIENT_START = -0.0
"""What a gradient that does not exist yet starts from: -0.0 + g is g, bit for bit, for every g."""

Fetch = Callable[[list[object]], object]


@dataclass(frozen=True)
class Subject:
    """The user's own objects.

    Attributes:
        model: the module.
        optimizer: the optimizer; None for gradients alone and for inference.
        scaler: the gradient scaler, or None.
    """

    model: torch.nn.Module
    optimizer: torch.optim.Optimizer | None = None
    scaler: torch.amp.GradScaler | None = None


class Binder:
    """Fetches tensors and numbers by input name, always those that the user's objects hold now."""

    def __init__(self, compiled: Compiled, subject: Subject) -> None:
        self._compiled = compiled
        self._subject = subject
        self._links: dict[tuple[int, str], tuple[Mapping[str, object], str, object]] = {}
        pairs = list(zip(compiled.graph.inputs, compiled.binding.sources, strict=True))
        self._tensors = [
            (given.name, self._fetch(source, given.type)) for given, source in pairs if _is_tensor(given.type)
        ]
        self._scalars = [
            (given.name, self._fetch(source, given.type))
            for given, source in pairs
            if not _is_tensor(given.type)
        ]
        names = {given.id: given.name for given in compiled.graph.inputs}
        self._missing = [
            (missing, self._held(missing.source.parameter, "_parameters")) for missing in compiled.missing
        ]
        self._first = {names[id_]: number for id_, number in compiled.first_scalars}
        self._made: list[tuple[torch.Tensor, str]] = []
        self._begun: list[torch.Tensor] = []
        self._before: tuple[float, int] = (0.0, 0)

    def is_current(self) -> bool:
        """Whether no module on the way to a parameter or buffer has been replaced since."""
        return all(modules.get(name) is child for modules, name, child in self._links.values())

    def fetch(self, leaves: list[object]) -> tuple[dict[str, torch.Tensor], dict[str, float]]:
        """Return (tensors, numbers) by input name; makes optimizer state that is missing.

        Args:
            leaves: the leaves of the batch's ``(args, kwargs)``.
        """
        self._begun = []
        self._make_missing()
        tensors = {name: fetch(leaves) for name, fetch in self._tensors}
        scalars = {name: fetch(leaves) for name, fetch in self._scalars}
        if self._made:
            scalars |= self._first
            self._before = self._scale()
        return tensors, scalars  # type: ignore[return-value]

    def take_back(self) -> None:
        """Remove the state that was made for a step which the gradient scaler then skipped.

        Eager makes it in the first step that is not skipped.
        """
        if self._made and self._skipped():
            self._unmake()

    def undo(self) -> None:
        """Remove what was made for a step that did not run: optimizer state, and gradients to add to."""
        self._unmake()
        for owner in self._begun:
            owner.grad = None

    def _unmake(self) -> None:
        optimizer = self._subject.optimizer
        for owner, key in self._made if optimizer is not None else ():
            assert optimizer is not None
            del optimizer.state[owner][key]
            if not optimizer.state[owner]:
                del optimizer.state[owner]

    def _make_missing(self) -> None:
        """Make the optimizer's state where it is missing."""
        self._made = []
        for missing, parameter in self._missing:
            owner = cast(torch.Tensor, parameter([]))
            assert self._subject.optimizer is not None
            state = self._subject.optimizer.state[owner]
            if state.get(missing.source.key) is None:
                state[missing.source.key] = self._start(missing)
                self._made.append((owner, missing.source.key))

    def _scale(self) -> tuple[float, int]:
        """Return the scaler's scale, and its count of steps since that changed."""
        scaler = self._subject.scaler
        if scaler is None or scaler._scale is None or scaler._growth_tracker is None:
            return 0.0, 0
        return float(scaler._scale), int(scaler._growth_tracker)

    def _skipped(self) -> bool:
        """Whether the scaler skipped the step that just ran: it lowers the scale, or starts to count anew."""
        scaler = self._subject.scaler
        if scaler is None or not scaler.is_enabled():
            return False
        (before, count), (after, now) = self._before, self._scale()
        return after < before or (now == 0 and count + 1 != scaler.get_growth_interval())

    def _start(self, missing: Missing) -> torch.Tensor:
        value = missing.value
        if isinstance(value, Hyperparameter):
            value = cast(float, self._hyperparameter(value)([]))
        if missing.like:
            parameter = self._subject.model.get_parameter(missing.like).detach()
            return torch.full_like(parameter, value, dtype=missing.dtype, memory_format=torch.preserve_format)
        return torch.full(missing.shape, value, dtype=missing.dtype, device=missing.device)

    def _fetch(self, source: Source, kind: object) -> Fetch:
        if isinstance(source, Parameter):
            return self._held(source.name, "_parameters")
        if isinstance(source, BufferOf):
            return self._held(source.name, "_buffers")
        if isinstance(source, GradientOf):
            assert isinstance(kind, TensorType)
            return self._gradient(source.name, kind)
        if isinstance(source, OptimizerState):
            return self._optimizer_state(source)
        if isinstance(source, Hyperparameter):
            return self._hyperparameter(source)
        if isinstance(source, BatchLeaf):
            return lambda leaves, index=source.index: leaves[index]  # type: ignore[misc]
        if isinstance(source, Constant):
            constant = self._compiled.binding.constants[source.index]
            if source.index == self._compiled.binding.key:
                return lambda leaves: _drawn(constant)
            return lambda leaves: constant
        assert isinstance(kind, TensorType)
        return self._scaler_state(source, kind)

    def _held(self, name: str, table: str) -> Fetch:
        *path, attribute = name.split(".")
        module = self._subject.model
        for part in path:
            child = module._modules[part]
            assert child is not None
            self._links[id(module), part] = (module._modules, part, child)
            module = child
        holder: Mapping[str, object] = getattr(module, table)
        return lambda leaves: holder[attribute]

    def _gradient(self, name: str, kind: TensorType) -> Fetch:
        parameter = self._held(name, "_parameters")

        def fetch(leaves: list[object]) -> object:
            owner = parameter(leaves)
            assert isinstance(owner, torch.Tensor)
            if owner.grad is None:
                empty = torch.empty_strided(kind.shape, kind.strides, dtype=owner.dtype, device=owner.device)
                owner.grad = empty.fill_(GRADIENT_START)
                self._begun.append(owner)
            return owner.grad

        return fetch

    def _optimizer_state(self, source: OptimizerState) -> Fetch:
        parameter = self._held(source.parameter, "_parameters")
        optimizer = self._subject.optimizer
        assert optimizer is not None
        return lambda leaves: optimizer.state[cast(torch.Tensor, parameter(leaves))][source.key]

    def _hyperparameter(self, source: Hyperparameter) -> Fetch:
        optimizer = self._subject.optimizer
        assert optimizer is not None
        if source.item < 0:
            return lambda leaves: optimizer.param_groups[source.group][source.key]
        return lambda leaves: optimizer.param_groups[source.group][source.key][source.item]

    def _scaler_state(self, source: ScalerState, kind: TensorType) -> Fetch:
        scaler = self._subject.scaler
        if scaler is None:
            raise CaptureError(
                stage="bind",
                what="the step was captured with a gradient scaler and is bound without one",
                expected="the GradScaler that the loop uses",
                hint="pass scaler=",
            )
        attribute = {"scale": "_scale", "growth_tracker": "_growth_tracker"}[source.key]
        device = torch.device(kind.device)

        def fetch(leaves: list[object]) -> object:
            if getattr(scaler, attribute) is None:
                scaler._lazy_init_scale_growth_tracker(device)
            return getattr(scaler, attribute)

        return fetch


def _drawn(key: torch.Tensor) -> torch.Tensor:
    draw_key(key)
    return key


def _is_tensor(kind: object) -> bool:
    return isinstance(kind, TensorType)
