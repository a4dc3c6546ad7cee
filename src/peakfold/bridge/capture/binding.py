"""How a captured Graph is bound to the user's own objects: where each input comes from."""

from dataclasses import dataclass

import torch
from torch.utils import _pytree as pytree


@dataclass(frozen=True, slots=True)
class Parameter:
    """The module's parameter of this name (the first of its names where it is tied)."""

    name: str


@dataclass(frozen=True, slots=True)
class BufferOf:
    """The module's buffer of this name."""

    name: str


@dataclass(frozen=True, slots=True)
class GradientOf:
    """``.grad`` of the parameter of this name: read where gradients add to what is there."""

    name: str


@dataclass(frozen=True, slots=True)
class OptimizerState:
    """``optimizer.state[parameter][key]``, a tensor."""

    parameter: str
    key: str


@dataclass(frozen=True, slots=True)
class Hyperparameter:
    """A number of ``optimizer.param_groups[group]``.

    Attributes:
        group: index of the group.
        key: name in the group, e.g. ``"lr"``.
        item: index where the entry is a tuple, as ``betas`` is; -1 for a plain number.
    """

    group: int
    key: str
    item: int = -1


@dataclass(frozen=True, slots=True)
class BatchLeaf:
    """Leaf ``index`` of the flattened ``(args, kwargs)`` of the batch; a tensor or a number."""

    index: int


@dataclass(frozen=True, slots=True)
class Constant:
    """``Captured.constants[index]``, a tensor that the model's code made or held."""

    index: int


@dataclass(frozen=True, slots=True)
class ScalerState:
    """A tensor of the gradient scaler: ``"scale"`` or ``"growth_tracker"``."""

    key: str


Source = (
    Parameter | BufferOf | GradientOf | OptimizerState | Hyperparameter | BatchLeaf | Constant | ScalerState
)


@dataclass(frozen=True, slots=True)
class Verbatim:
    """A Python object that the program returns as it is."""

    value: object


@dataclass(frozen=True)
class Binding:
    """One Source for each graph input, and the form of what is returned.

    Attributes:
        sources: one for each of ``Graph.inputs``, in order.
        batch: tree of the batch ``(args, kwargs)``; its leaves are what BatchLeaf counts.
        outputs: tree of the second thing that ``loss_fn`` returns (or of the result of inference);
            None where there is none.
        output_leaves: one for each leaf of ``outputs``: an index into ``Graph.outputs``, or the
            Python object itself, wrapped, where the leaf is not a tensor.
        constants: tensors for the Constant sources.
        gradients: (parameter name, index into ``Graph.outputs``) of the outputs that become ``.grad``
            of a parameter that has none; of a tensor of the batch, its leaf instead of a name.
        key: index of the constant that is drawn anew before each step, which random numbers are made
            from; -1 for none.
    """

    sources: tuple[Source, ...]
    batch: pytree.TreeSpec
    outputs: pytree.TreeSpec | None
    output_leaves: tuple[int | Verbatim, ...]
    constants: tuple[torch.Tensor, ...]
    gradients: tuple[tuple[str | int, int], ...] = ()
    key: int = -1
