"""Models that fill caches in their first forward pass are captured before it has run, or refused by line.

A captured step makes such a cache in each step. That is the same where a run with the cache computes the
very same as one without, and where what is in it changes with no step.
"""

import copy

import pytest
import torch
from tests.torch.capture_support import run
from torch import nn
from torch.utils.checkpoint import checkpoint

from peakfold.bridge.capture import capture_inference, capture_step
from peakfold.bridge.capture.eager_memory import eager_memory
from peakfold.errors import CaptureError

WIDTH = 8
SHARED: dict[int, torch.Tensor] = {}
LONGEST, TABLE = 0, None


class Rotary(nn.Module):
    """Keeps what a test says in its forward pass."""

    def __init__(self, keep):
        super().__init__()
        self.fc, self.norm, self.drop = nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH), nn.Dropout(0.1)
        self.keep, self.longest, self.table, self.first, self.tables = keep, 0, None, True, {}
        frequencies = 1.0 / 10000 ** (torch.arange(WIDTH) / WIDTH)
        self.register_buffer("frequencies", frequencies, persistent=False)
        self.register_buffer("none", None, persistent=False)
        self.register_buffer("grown", self.angles(2), persistent=False)
        self.register_buffer("saved", self.angles(2))
        self.register_buffer("filled", torch.zeros(5, WIDTH), persistent=False)

    def angles(self, length):
        return torch.outer(torch.arange(length).float(), self.frequencies).cos()

    def forward(self, x):
        return self.drop(self.norm((self.fc(x) * self.keep(self, x)).transpose(1, 2)))


class Layers(nn.Module):
    def __init__(self, keep):
        super().__init__()
        self.layers = nn.ModuleList(Rotary(keep) for _ in range(2))

    def forward(self, x):
        for layer in self.layers:
            x = layer(x).transpose(1, 2)
        return x


def if_longer(model, x):
    if x.shape[1] > model.longest:
        model.longest = x.shape[1]
        model.table = model.angles(x.shape[1])
    return model.table[: x.shape[1]]


def if_none(model, x):
    if model.table is None:
        model.table = model.angles(x.shape[1])
    return model.table


def by_length(model, x):
    if x.shape[1] not in model.tables:
        model.tables[x.shape[1]] = model.angles(x.shape[1])
    return model.tables[x.shape[1]]


def pair(model, x):
    if not hasattr(model, "pair"):
        model.pair = (model.angles(x.shape[1]), x.shape[1])
    return model.pair[0]


def attribute(model, x):
    if x.shape[1] > model.longest:
        model.longest, model.grown = x.shape[1], model.angles(x.shape[1])
    return model.grown[: x.shape[1]]


def registered(model, x):
    if model.grown.shape[0] < x.shape[1]:
        model.register_buffer("grown", model.angles(x.shape[1]), persistent=False)
    return model.grown[: x.shape[1]]


def missing(model, x):
    if model.none is None:
        model.none = model.angles(x.shape[1])
    return model.none


def shared(model, x):
    if x.shape[1] not in SHARED:
        SHARED[x.shape[1]] = model.angles(x.shape[1])
    return SHARED[x.shape[1]]


def global_table(model, x):
    global LONGEST, TABLE
    if x.shape[1] > LONGEST:
        LONGEST, TABLE = x.shape[1], torch.arange(x.shape[1]).float()[:, None].cos()
    return TABLE


def from_python(model, x):
    if model.table is None:
        model.table = torch.tensor([[1.0 / (i + 1)] for i in range(x.shape[1])])
    return model.table


def checkpointed(model, x):
    return checkpoint(if_longer, model, x, use_reentrant=False)


def whether_first(model, x):
    if model.first:
        model.first = False
    return 2.0


CACHES = (if_longer, if_none, by_length, pair, attribute, registered, missing, shared, global_table,
          from_python, checkpointed, whether_first)  # fmt: skip


def loss(model, x):
    return model(x).square().mean()


def held(model):
    """Return what the modules of a model hold, in order, as text."""
    tables = [dict(vars(module)) for module in model.modules()]
    for table in tables:
        table.update({key: sorted(value) for key, value in table.items() if isinstance(value, set)})
    return repr(tables), LONGEST, str(SHARED)


@pytest.mark.parametrize("keep", CACHES)
def test_a_model_that_has_not_run_is_captured_as_one_that_has(keep):
    """Its steps are eager's, bit by bit, and nothing of it is changed, by the estimate neither."""
    global LONGEST, TABLE
    SHARED.clear()
    LONGEST, TABLE = 0, None
    torch.manual_seed(0)
    model, x = Layers(keep), torch.randn(3, 5, WIDTH)
    twin = copy.deepcopy(model)
    optimizers = [torch.optim.AdamW(one.parameters(), lr=0.01) for one in (model, twin)]
    before = held(model)
    captured = capture_step(model, loss, optimizers[0], (x,))
    eager_memory(model, loss, optimizers[0], (x,))
    assert held(model) == before
    assert captured.guards.check(model, optimizers[0], (x,)) is None
    for step in range(2):
        torch.manual_seed(step)
        ours = run(captured, model, optimizers[0], (x,))[0]
        torch.manual_seed(step)
        theirs = loss(twin, x)
        optimizers[1].zero_grad()
        theirs.backward()
        optimizers[1].step()
        assert torch.equal(ours, theirs)
    for (name, one), other in zip(model.state_dict().items(), twin.state_dict().values(), strict=True):
        assert torch.equal(one, other), name
    SHARED.clear()
    capture_inference(Layers(keep).eval(), (x,))


def test_a_run_in_between_is_noticed():
    model, x = Layers(if_longer), torch.randn(3, 5, WIDTH)
    guards = capture_step(model, loss, None, (x,)).guards
    model(x)
    assert "captured as" in guards.check(model, None, (x,)) or "replaced" in guards.check(model, None, (x,))
    assert capture_step(model, loss, None, (x,)).guards.check(model, None, (x,)) is None


def scales(model, x):
    if model.first:
        model.first = False
        return 2.0
    return 1.0


def scales_where_missing(model, x):
    if model.table is None:
        model.table = torch.ones(())
        return 2.0
    return 1.0


def detaches(model, x):
    factor = model.fc.weight.mean()
    if model.first:
        model.first, factor = False, factor.detach()
    return factor


def draws(model, x):
    if model.first:
        model.first = False
        torch.rand(3)
    return torch.rand(x.shape[1], WIDTH)


def initializes(model, x):
    if model.first:
        model.first = False
        with torch.no_grad():
            model.fc.bias.copy_(-x.mean((0, 1)))
    return 1.0


def fills(model, x):
    if model.first:
        model.first = False
        model.filled.copy_(model.angles(5))
    return model.filled


def of_parameters(model, x):
    if model.table is None:
        model.table = model.fc.weight.detach().mean()
    return model.table


def of_the_batch(model, x):
    if model.table is None:
        model.table = x.detach().mean()
    return model.table


def of_statistics(model, x):
    if model.table is None:
        model.table = model.norm.running_mean.clone()
    return model.table


def of_random_numbers(model, x):
    if model.table is None:
        model.table = torch.rand(())
    return model.table


def saved(model, x):
    if model.saved.shape[0] < x.shape[1]:
        model.saved = model.angles(x.shape[1])
    return model.saved


def last_shape(model, x):
    model.seen_last = model.longest = x.shape[1]
    return 1.0


REFUSED = {
    scales: "model.first = False",
    scales_where_missing: "model.table = torch.ones(())",
    detaches: "model.first, factor = False, factor.detach()",
    draws: "model.first = False",
    initializes: "model.first = False",
    fills: "model.first = False",
    of_parameters: "model.table = model.fc.weight.detach().mean()",
    of_the_batch: "model.table = x.detach().mean()",
    of_statistics: "model.table = model.norm.running_mean.clone()",
    of_random_numbers: "model.table = torch.rand(())",
    saved: "model.saved = model.angles(x.shape[1])",
    last_shape: "model.seen_last = model.longest = x.shape[1]",
}


@pytest.mark.parametrize("keep", REFUSED)
def test_what_is_no_cache_is_refused_by_its_line(keep):
    torch.manual_seed(0)
    model, x = Rotary(keep), torch.randn(3, 5, WIDTH)
    before = held(model)
    with pytest.raises(CaptureError, match=r"the (first )?forward pass (changes|keeps|makes)") as caught:
        capture_step(model, loss, torch.optim.SGD(model.parameters(), lr=0.1), (x,))
    assert caught.value.where.startswith(f"{__file__}:")
    assert caught.value.where.endswith(REFUSED[keep])
    assert held(model) == before


LAST, SEEN = None, {}


def auxiliary(model, x):
    model.aux = x.mean()
    return 1.0


def appended(model, x):
    model.tables.setdefault("losses", []).append(x.sum())
    return 1.0


def by_helper(model, x):
    setattr(*(model, "last", x.detach()))
    return 1.0


def to_a_global(model, x):
    global LAST
    LAST = x.detach()
    return 1.0


def into_a_global(model, x):
    SEEN["x"] = x.detach()
    return 1.0


def onto_an_object(model, x):
    model.norm.held = [x.detach()]
    return 1.0


KEPT = {
    auxiliary: ("the Python attribute layers.0.aux", "model.aux = x.mean()"),
    appended: (
        "the Python attribute layers.0.tables",
        'model.tables.setdefault("losses", []).append(x.sum())',
    ),
    by_helper: ("the Python attribute layers.0.last", 'setattr(*(model, "last", x.detach()))'),
    to_a_global: (f"the global {__name__}.LAST", "LAST = x.detach()"),
    into_a_global: (f"the global {__name__}.SEEN", 'SEEN["x"] = x.detach()'),
    onto_an_object: ("the Python attribute layers.0.norm.held", "model.norm.held = [x.detach()]"),
}


@pytest.mark.parametrize("keep", KEPT)
def test_a_tensor_that_each_run_keeps_is_refused_by_its_line(keep):
    words, line = KEPT[keep]
    model, x = Layers(keep), torch.randn(3, 5, WIDTH)
    before = held(model)
    for capture in (
        lambda: capture_step(model, loss, None, (x,)),
        lambda: capture_inference(model, (x,)),
    ):
        with pytest.raises(CaptureError) as caught:
            capture()
        assert caught.value.what == f"the forward pass keeps a tensor in {words}"
        assert caught.value.where.startswith(f"{__file__}:")
        assert caught.value.where.endswith(f": {line}")
        assert held(model) == before
        assert (LAST, SEEN) == (None, {})


def test_tensors_that_hooks_and_losses_keep_are_refused_by_their_line():
    stored, losses = [], {}

    def hook(module, args, output):
        stored.append(output)

    def keeps(model, x):
        losses["last"] = loss(model, x)
        return losses["last"]

    model, x = nn.Linear(WIDTH, 2), torch.randn(3, WIDTH)
    with pytest.raises(CaptureError) as caught:
        capture_step(model, keeps, None, (x,))
    assert caught.value.where.endswith('losses["last"] = loss(model, x)')
    model.register_forward_hook(hook)
    with pytest.raises(CaptureError) as caught:
        capture_step(model, loss, None, (x,))
    assert caught.value.where.endswith(": stored.append(output)")
    assert (stored, losses) == ([], {})
