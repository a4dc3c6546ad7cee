"""A training step, or inference, before anything is done to it: the four things that a user has."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import nn

from peakfold.errors import UsageError

Loss = torch.Tensor | tuple[torch.Tensor, object]
LossFn = Callable[..., Loss]


@dataclass(frozen=True)
class Target:
    """A model, its loss, its optimizer and one batch.

    Attributes:
        model: the module, in the mode (train or eval) that the step runs in.
        loss_fn: ``loss_fn(model, *batch)`` (``**batch`` for a mapping) returns the loss, or (loss, outputs);
            None for inference: ``model(*batch)`` without gradients.
        optimizer: None where only gradients are wanted.
        batch: the arguments of one step; a tuple, or a mapping of keyword arguments.

    Example:
        >>> layer = nn.Linear(2, 1)
        >>> target = Target(layer, lambda model, x: model(x).sum(), None, (torch.ones(3, 2),))
        >>> model, loss_fn, optimizer, batch = target
        >>> target.loss().shape
        torch.Size([])
    """

    model: nn.Module
    loss_fn: LossFn | None
    optimizer: torch.optim.Optimizer | None
    batch: tuple[object, ...] | Mapping[str, object]

    def __iter__(self) -> Iterator[object]:
        """The four in the order in which ``optimize_step`` takes them."""
        return iter((self.model, self.loss_fn, self.optimizer, self.batch))

    @property
    def training(self) -> LossFn:
        """The loss of a training step.

        Raises:
            UsageError: the target is inference.
        """
        if self.loss_fn is None:
            raise UsageError("target", "the target is inference", expected="a loss function", got="None")
        return self.loss_fn

    def loss(self) -> torch.Tensor:
        """The loss of one forward pass over the batch, without the outputs."""
        if isinstance(self.batch, Mapping):
            result = self.training(self.model, **self.batch)
        else:
            result = self.training(self.model, *self.batch)
        return result[0] if isinstance(result, tuple) else result
