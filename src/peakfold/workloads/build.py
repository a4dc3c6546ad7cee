"""Builds a workload by name."""

import difflib
import importlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from types import ModuleType
from typing import TypeVar

import torch
from torch import nn

from peakfold.errors import UsageError
from peakfold.workloads.beyond import BEYOND, Inputs, make
from peakfold.workloads.losses import LOSSES, make_batch
from peakfold.workloads.sizes import SIZES, ResNetSize
from peakfold.workloads.target import Target

T = TypeVar("T")

NAMES: tuple[str, ...] = tuple(SIZES)

BEYOND_NAMES: tuple[str, ...] = tuple(BEYOND)

OPTIMIZERS: dict[str, Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]] = {
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=0.01),
    "momentum": lambda parameters: torch.optim.SGD(parameters, lr=0.01, momentum=0.9, weight_decay=1e-4),
    "adam": lambda parameters: torch.optim.Adam(parameters, lr=1e-3),
    "adamw": lambda parameters: torch.optim.AdamW(parameters, lr=1e-3),
}

ATTENTIONS: dict[str, tuple[str, ...]] = {
    "bert": ("eager", "sdpa"),
    "bert_sdpa": ("sdpa",),
    "vit": ("eager", "sdpa"),
}


def build(
    name: str,
    size: str = "cpu",
    optimizer: str = "sgd",
    dropout: float = 0.0,
    attention: str | None = None,
    device: str = "cpu",
    batch: int | None = None,
    seed: int = 0,
    dtype: torch.dtype | None = None,
    inference: bool = False,
) -> Target:
    """The training step of a workload, in train mode; or its inference, in eval mode.

    Args:
        name: one of ``NAMES`` or ``BEYOND_NAMES``; ``bert_sdpa`` is ``bert`` with fused attention.
        size: ``"tiny"``, ``"cpu"`` or, of ``NAMES``, ``"paper"``.
        optimizer: ``"sgd"``, ``"momentum"``, ``"adam"`` or ``"adamw"``.
        dropout: the probability at every dropout of the model; ``resnet50`` has none.
        attention: ``"eager"`` or ``"sdpa"``; None is the workload's own.
        device: a device of torch; ``"meta"`` makes no storage at all. The numbers are drawn on the CPU.
        batch: samples in the batch; None is the size's own.
        seed: of weights and batch. Torch's global random state stays as it was.
        inference: the model alone on what it takes of the batch, without a loss.
        dtype: of parameters and images; None is float32, bfloat16 for ``paper`` of ``gptneo`` and ``btlm``.

    Raises:
        UsageError: an unknown name or value, a device that is not there, or a missing extra.

    Example:
        >>> target = build("gptneo", "paper", device="meta")
        >>> sum(parameter.numel() for parameter in target.model.parameters())
        1315575808
    """
    if name in BEYOND:
        _check_plain(name, dropout, attention)
        target = _beyond(name, size, optimizer, device, batch, seed, dtype or torch.float32)
        return _inference(target, BEYOND[name].inputs) if inference else target
    spec = _choose("size", size, _choose("workload", name, SIZES))
    make_optimizer = _choose("optimizer", optimizer, OPTIMIZERS)
    attention = _attention(name, attention)
    _check_numbers(dropout, batch)
    _check_device(device)
    if dropout and isinstance(spec, ResNetSize):
        raise UsageError("target", f"{name} has no dropout", got=str(dropout), expected="dropout 0")
    models = _models()
    dtype = dtype or (torch.bfloat16 if spec.half else torch.float32)
    with torch.random.fork_rng(), torch.device("meta" if device == "meta" else "cpu"):
        torch.manual_seed(seed)
        model: nn.Module = models.make_model(name, spec, dropout, attention).to(device, dtype)
        inputs, labels = make_batch(spec, batch or spec.batch, dtype)
    data = (inputs.to(device), labels.to(device))
    target = Target(model.train(), LOSSES[name], make_optimizer(model.parameters()), data)
    return _inference(target, lambda given: given[:1]) if inference else target


def _inference(target: Target, inputs: Callable[[tuple[torch.Tensor, ...]], Inputs]) -> Target:
    assert isinstance(target.batch, tuple)
    tensors = tuple(leaf for leaf in target.batch if isinstance(leaf, torch.Tensor))
    return Target(target.model.eval(), None, None, inputs(tensors))


def _beyond(
    name: str, size: str, optimizer: str, device: str, batch: int | None, seed: int, dtype: torch.dtype
) -> Target:
    """The training step of a model beyond the seven."""
    chosen = _choose("size", size, BEYOND[name].sizes)
    make_optimizer = _choose("optimizer", optimizer, OPTIMIZERS)
    _check_numbers(0.0, batch)
    _check_device(device)
    models = _models("beyond_models")
    with torch.random.fork_rng(), torch.device("meta" if device == "meta" else "cpu"):
        torch.manual_seed(seed)
        model, loss_fn, data = make(name, replace(chosen, batch=batch or chosen.batch), models)
    model = model.to(device, dtype)
    moved = tuple(t.to(device, dtype) if t.is_floating_point() else t.to(device) for t in data)
    return Target(model, loss_fn, make_optimizer(model.parameters()), moved)


def _check_plain(name: str, dropout: float, attention: str | None) -> None:
    if dropout:
        raise UsageError("target", f"{name} is built without dropout", got=str(dropout), expected="dropout 0")
    if attention is not None:
        raise UsageError(
            "target", f"{name} has one attention only", got=repr(attention), expected="none given"
        )


def block_classes(name: str) -> tuple[type[nn.Module], ...]:
    """The classes of the repeated blocks of a workload, which users wrap in checkpoints; they may nest.

    Raises:
        UsageError: an unknown name, or transformers or MONAI are missing.
    """
    _choose("workload", name, SIZES)
    blocks: tuple[type[nn.Module], ...] = _models().BLOCKS[name]
    return blocks


def _models(name: str = "models") -> ModuleType:
    try:
        return importlib.import_module(f"peakfold.workloads.{name}")
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] not in ("transformers", "monai"):
            raise
        raise UsageError(
            stage="target",
            what="the workloads need a package that is not installed",
            expected="transformers and monai",
            got=f"no module named {error.name!r}",
            hint="pip install 'peakfold[bench]'",
        ) from error


def _choose(kind: str, name: str, options: Mapping[str, T]) -> T:
    if name in options:
        return options[name]
    close = difflib.get_close_matches(name, options, n=1)
    raise UsageError(
        stage="target",
        what=f"unknown {kind}",
        expected=", ".join(options),
        got=repr(name),
        hint=f"did you mean {close[0]!r}?" if close else "",
    )


def _attention(name: str, attention: str | None) -> str:
    kinds = ATTENTIONS.get(name, ("eager",))
    if attention is None:
        return kinds[0]
    if attention not in kinds:
        raise UsageError(
            stage="target",
            what=f"{name} has no such attention",
            expected=" or ".join(kinds),
            got=repr(attention),
        )
    return attention


def _check_numbers(dropout: float, batch: int | None) -> None:
    if not 0.0 <= dropout < 1.0:
        raise UsageError(
            "target", "the dropout is out of range", expected="0 <= dropout < 1", got=str(dropout)
        )
    if batch is not None and batch < 1:
        raise UsageError("target", "the batch is too small", expected="at least 1 sample", got=str(batch))


def _check_device(device: str) -> None:
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise UsageError("target", "the device is not there", device, "cpu, meta or cuda", reason) from error
