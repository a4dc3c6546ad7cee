"""What is written through a view is there in the whole, whatever the view is and wherever the whole lies."""

import copy

import pytest
import torch
from tests.torch.capture_support import eager, equal_steps, run
from torch import nn

from peakfold.bridge.capture import capture_step
from peakfold.errors import CaptureError


def as_complex(h):
    return torch.complex(h[:, :4], h[:, 4:])


def as_numbers(c):
    return torch.view_as_real(c).flatten(1)


def written(view, value=2.0):
    """Return how a copy of a tensor looks after its view was multiplied."""

    def write(h):
        whole = h.clone()
        view(whole).mul_(value)
        return whole

    return write


def complex_written(view):
    def write(h):
        whole = as_complex(h)
        view(whole).mul_(2.0)
        return as_numbers(whole)

    return write


def bits_written(kind, other, view):
    def write(h):
        whole = torch.ones(4, 8, dtype=kind)
        view(whole.view(other)).add_(1)
        return h * whole

    return write


VIEWS = {
    "unfold": written(lambda t: t.unfold(1, 2, 2)),
    "unfold of a part": written(lambda t: t[1:].unfold(1, 2, 2)),
    "unfold of later columns": written(lambda t: t[:, 3:].unfold(1, 2, 2)),
    "part of an unfold of a part": written(lambda t: t[1:].unfold(1, 2, 2)[..., 1]),
    "unfold of a transposed part": written(lambda t: t[1:, 2:].t().unfold(0, 2, 2)),
    "expanded part": written(lambda t: t[1:].unsqueeze(0).expand(1, -1, -1)),
    "as_strided": written(lambda t: t.as_strided((2, 2), (8, 1), 11)),
    "as_strided of a part": written(lambda t: t[:, 3:].as_strided((2, 2), (8, 1))),
    "as_strided of later rows": written(lambda t: t[2:].as_strided((2, 2), (8, 1), 20)),
    "real": complex_written(lambda c: c.real),
    "imaginary": complex_written(lambda c: c.imag),
    "real numbers": complex_written(torch.view_as_real),
    "real numbers of a part": complex_written(lambda c: torch.view_as_real(c[::2, 1:3])),
    "permuted numbers of a part": complex_written(lambda c: torch.view_as_real(c[::2, 1:]).permute(2, 0, 1)),
    "unfold of real numbers": complex_written(lambda c: torch.view_as_real(c).unfold(1, 2, 2)),
    "conjugate": complex_written(lambda c: c.conj()),
    "imaginary of a conjugate": complex_written(lambda c: c.conj().imag),
    "complex": written(lambda t: torch.view_as_complex(t.view(4, 4, 2))),
    "bits of another kind": bits_written(torch.float32, torch.int32, lambda t: t),
    "smaller bits": bits_written(torch.float32, torch.int16, lambda t: t[:, ::2]),
    "larger bits": bits_written(torch.int16, torch.int32, lambda t: t[1:]),
}


def sgd(model):
    return torch.optim.SGD(model.parameters(), lr=0.1)


def setting():
    torch.manual_seed(0)
    return nn.Linear(6, 8), (torch.randn(40)[16:].view(4, 6),)


@pytest.mark.parametrize("name", VIEWS)
def test_written_through(name):
    model, batch = setting()
    equal_steps(capture_step, model, lambda m, x: VIEWS[name](m(x)).cos().mean(), sgd, batch)


@pytest.mark.parametrize("view", [lambda x: x.unfold(1, 2, 3), lambda x: x.t().unfold(0, 2, 3)])
@pytest.mark.parametrize("part", [slice(None), slice(0, 4)])
def test_a_batch_that_lies_later_in_its_storage(view, part):
    def loss_fn(m, x):
        view(x).mul_(2.0)
        return m(x).cos().mean()

    mine, theirs = (setting()[1][0][:, part] for _ in range(2))
    model = nn.Linear(mine.shape[1], 8)
    twin = copy.deepcopy(model)
    captured = capture_step(model, loss_fn, sgd(model), (mine,))
    loss, _ = run(captured, model, sgd(model), (mine,))
    expected = eager(twin, loss_fn, sgd(twin), (theirs,), None)
    assert torch.equal(loss, expected)
    assert torch.equal(mine, theirs)
    assert all(map(torch.equal, model.parameters(), twin.parameters()))


@pytest.mark.parametrize("kind", [torch.optim.Adam, torch.optim.RMSprop, torch.optim.Adagrad])
def test_complex_parameters(kind):
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.randn(6, 3, dtype=torch.cfloat))

        def forward(self, x):
            return (x.to(torch.cfloat) @ self.weight).abs()

    _, batch = setting()
    equal_steps(capture_step, Net(), lambda m, x: m(x).mean(), lambda m: kind(m.parameters()), batch)


def test_what_cannot_be_scattered_is_refused_by_its_line():
    model, batch = setting()
    write = complex_written(lambda c: torch.view_as_real(c[1:]).unfold(1, 2, 2))
    with pytest.raises(CaptureError) as error:
        capture_step(model, lambda m, x: write(m(x)).mean(), sgd(model), batch)
    assert "aten.unfold.default, of a part" in error.value.what
    assert "test_written_views.py" in error.value.where


def test_a_complex_number_is_refused_by_its_line():
    model, batch = setting()
    with pytest.raises(CaptureError) as error:
        capture_step(model, lambda m, x: (as_complex(m(x)) * 1j).abs().mean(), sgd(model), batch)
    assert "an operator is given a complex" in error.value.what
    assert "test_written_views.py" in error.value.where
