"""Gradients that begin anew in each step: what a loop without an optimizer here clears between steps."""

from dataclasses import dataclass, field

import torch


@dataclass(frozen=True)
class Begun:
    """The parameters that have no gradient before a step.

    A program is captured for gradients that stand before the step, or for none. Run several times on the
    same model, only clearing keeps it at what it was captured for.

    Attributes:
        parameters: those that have none.
        sums: of the gradients that were cleared, by place.

    Example:
        >>> weight = torch.nn.Parameter(torch.zeros(1))
        >>> begun = Begun((weight,))
        >>> for step in range(3):
        ...     begun.clear()
        ...     weight.grad = torch.ones(1)
        >>> begun.leave_sums()
        >>> weight.grad
        tensor([3.])
    """

    parameters: tuple[torch.nn.Parameter, ...]
    sums: dict[int, torch.Tensor] = field(default_factory=dict)

    @staticmethod
    def of(model: torch.nn.Module, optimizer: torch.optim.Optimizer | None) -> "Begun":
        """Return those of a model; with an optimizer none, for its loop clears what it clears."""
        if optimizer is not None:
            return Begun(())
        return Begun(tuple(parameter for parameter in model.parameters() if parameter.grad is None))

    def clear(self) -> None:
        """Take the gradients away, into the sums."""
        for i, parameter in enumerate(self.parameters):
            if parameter.grad is None:
                continue
            self.sums[i] = self._sum(i, parameter.grad)
            parameter.grad = None

    def leave_sums(self) -> None:
        """Leave the sums of all gradients since the first, as if they had been added up in ``.grad``."""
        self.clear()
        for i, total in self.sums.items():
            self.parameters[i].grad = total

    def _sum(self, i: int, gradient: torch.Tensor) -> torch.Tensor:
        return self.sums[i].add_(gradient) if i in self.sums else gradient.detach().clone()
