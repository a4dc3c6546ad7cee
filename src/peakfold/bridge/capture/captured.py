"""What capture returns."""

from dataclasses import dataclass

import torch

from peakfold.bridge.capture.binding import Binding, Hyperparameter, OptimizerState
from peakfold.bridge.capture.guards import Guards
from peakfold.ir.graph import Graph


@dataclass(frozen=True, slots=True)
class Missing:
    """Optimizer state that does not exist before the first step, and what it starts from.

    Attributes:
        source: the state.
        shape: of the tensor to make.
        dtype: of the tensor to make.
        device: of the tensor to make.
        value: what it is filled with. SGD's momentum buffer starts from -0.0, which makes the
            steady update equal, bit for bit, to SGD's special first one. A number of the groups
            counts as it is on the first step.
        like: name of the parameter whose strides it takes, as ``zeros_like`` does; empty for none.
    """

    source: OptimizerState
    shape: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device
    value: float | Hyperparameter
    like: str


@dataclass(frozen=True)
class Captured:
    """One program: what it computes, what it is bound to, and when it holds.

    Attributes:
        graph: the program.
        binding: where its inputs come from, in the order of ``graph.inputs``.
        guards: what must hold for the program to be the user's.
        missing: optimizer state to make before the first step.
        first_scalars: values by input id that replace the user's on a step that made ``missing``
            state: SGD has no dampening on its first step.
        decided: whether some branch was decided when it was captured, since no input has a part in it.
    """

    graph: Graph
    binding: Binding
    guards: Guards
    missing: tuple[Missing, ...] = ()
    first_scalars: tuple[tuple[int, float], ...] = ()
    decided: bool = False
