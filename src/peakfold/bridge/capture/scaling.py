"""A gradient scaler around loss and optimizer, as ``torch.amp.GradScaler`` does it."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import torch

from peakfold.bridge.capture.binding import ScalerState
from peakfold.bridge.capture.trace import Trace
from peakfold.ir.graph import State


@dataclass
class Scaling:
    """The scaler's tensors and numbers.

    Attributes:
        scaler: the user's.
        trace: of the capture.
        scale_tensor: fake tensor of the scale.
        tracker: fake tensor that counts steps without an infinite gradient.
        found_inf: 1 where a gradient is not finite.
    """

    scaler: torch.amp.GradScaler
    trace: Trace
    scale_tensor: torch.Tensor
    tracker: torch.Tensor
    found_inf: torch.Tensor

    @staticmethod
    def begin(scaler: torch.amp.GradScaler | None, trace: Trace) -> "Scaling | None":
        """Make the scaler's tensors inputs; None without a scaler, or for one that is switched off."""
        if scaler is None or not scaler.is_enabled():
            return None
        device = torch.device(scaler._device)
        with trace.tape.fake:
            scale = torch.empty((), dtype=torch.float32, device=device)
            tracker = torch.empty((), dtype=torch.int32, device=device)
        trace.add(scale, "scaler.scale", "optimizer", ScalerState("scale"))
        trace.add(tracker, "scaler.growth_tracker", "optimizer", ScalerState("growth_tracker"))
        found = torch.full((), 0.0, dtype=torch.float32, device=device)
        return Scaling(scaler, trace, scale, tracker, found)

    def scale(self, loss: torch.Tensor) -> torch.Tensor:
        """Return the scaled loss."""
        return loss * self.scale_tensor.to(device=loss.device, non_blocking=True)

    def unscale(self, gradients: Iterable[torch.Tensor]) -> None:
        """Divide gradients by the scale in place, and note whether all are finite."""
        with torch.no_grad():
            inverse = self.scale_tensor.double().reciprocal().float()
            for gradient in gradients:
                torch._amp_foreach_non_finite_check_and_unscale_([gradient], self.found_inf, inverse)

    def unless_infinite(self, pairs: list[State]) -> Iterator[State]:
        """Yield the pairs with old values where a gradient is not finite, and the scaler's own."""
        with torch.no_grad():
            finite = self.found_inf == 0
            for pair in pairs:
                yield self.trace.tape.choose(finite, pair)
            torch._amp_update_scale_(
                self.scale_tensor,
                self.tracker,
                self.found_inf,
                self.scaler.get_growth_factor(),
                self.scaler.get_backoff_factor(),
                self.scaler.get_growth_interval(),
            )
        yield from self.trace.replaced(ScalerState("scale"), self.scale_tensor)
        yield from self.trace.replaced(ScalerState("growth_tracker"), self.tracker)
