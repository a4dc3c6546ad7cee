"""A forward pass that writes into tensors beside the model is refused: a captured step has copies of them."""

import pytest
import torch

from peakfold.bridge.capture import capture_step
from peakfold.errors import CaptureError

OUTSIDE = torch.zeros(1)


class Net(torch.nn.Module):
    def __init__(self, way):
        super().__init__()
        self.fc, self.way, self.beside = torch.nn.Linear(3, 3), way, torch.zeros(3)
        self.register_buffer("mean", torch.zeros(3))

    def forward(self, x):
        return self.fc(x) * self.way(self, x.detach())


def _loss(model, x):
    return model(x).square().mean()


HELD = {
    "add": lambda net, x: net.beside.add_(1),
    "through a view": lambda net, x: net.beside.view(3)[1:].add_(1).sum(),
    "copy": lambda net, x: net.beside.copy_(x.mean(0)),
    "copy into a part": lambda net, x: net.beside[:1].copy_(x.mean()),
    "item": lambda net, x: net.beside.__setitem__(0, x.mean()) or 1,
    "global": lambda net, x: OUTSIDE.add_(1),
    "average": lambda net, x: net.beside.mul_(0.9).add_(x.mean(0), alpha=0.1),
    "out": lambda net, x: torch.add(x.mean(0), 1, out=net.beside),
}
FREE = {
    "made from numbers": lambda net, x: torch.tensor([1.0, 2.0, 3.0]).add_(x.mean(0)),
    "made": lambda net, x: torch.zeros(3).add_(x.mean(0)),
    "buffer": lambda net, x: net.mean.mul_(0.9).add_(x.mean(0), alpha=0.1),
    "clone": lambda net, x: net.beside.clone().add_(x.mean(0)),
    "read": lambda net, x: net.beside + OUTSIDE,
}


@pytest.mark.parametrize("way", HELD.values(), ids=HELD)
def test_writes_that_later_steps_would_not_do_are_refused(way):
    with pytest.raises(CaptureError, match="writes into a tensor that is no buffer") as caught:
        capture_step(Net(way), _loss, None, (torch.ones(2, 3),))
    assert "test_held_tensors.py:" in str(caught.value)
    assert not OUTSIDE.any()


@pytest.mark.parametrize("way", FREE.values(), ids=FREE)
def test_writes_to_buffers_and_to_what_is_made_are_not(way):
    capture_step(Net(way), _loss, None, (torch.ones(2, 3),))
