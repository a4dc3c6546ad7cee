"""Python values that the model's code writes: a captured step would not write them again."""

import collections
import functools
import types

import numpy as np
import pytest
import torch
from torch import nn

from peakfold.bridge.capture import capture_inference, capture_step
from peakfold.bridge.capture.eager_memory import eager_memory
from peakfold.errors import CaptureError

TIMES: list[float] = []
CALLS = 0
TABLE: dict[int, torch.Tensor] = {}


class Writing(nn.Module):
    """Writes what a test says, in the first of its two modules."""

    shared: list[float] = []  # noqa: RUF012  that it is the class's own is what is tested

    def __init__(self, write):
        super().__init__()
        self.inner, self.fc, self.write = nn.Module(), nn.Linear(4, 2), write
        self.log, self.counts, self.seen, self.sizes, self.first = [], {"n": 0}, set(), None, True
        self.last = collections.deque(maxlen=3)
        self.nested, self.stats = {"a": [1.0]}, types.SimpleNamespace(n=0, log=[])
        self.history, self.grown, self.number = np.zeros(3), (), 0.5
        self.register_buffer("calls", torch.zeros((), dtype=torch.long))

    def forward(self, x):
        self.write(self, x)
        return self.fc(x)


def add_global(model, x):
    global CALLS
    CALLS += 1


def append_global(model, x):
    TIMES.append(3.5)


def helped(model, x):
    append_global(model, x)


def seen(model, x):
    model.seen.add(len(model.seen))


def history(model, x):
    model.history[0] += 1


def grown(model, x):
    model.grown = (*model.grown, 3.5)


def by_name(model, x):
    model.fresh = getattr(model, "fresh", 0) + 1


def rebound(model, x):
    model.log = [*model.log, 3.5]


def count(model, x):
    model.counts["n"] += 1


def added(model, x):
    model.stats.n += 1


def with_default(model, x, into=[]):  # noqa: B006  that it is kept is what is tested
    into.append(3.5)


EACH_TIME = {
    "a list": (lambda m, x: m.log.append(3.5), "the Python attribute log"),
    "a list made anew": (rebound, "the Python attribute log"),
    "a dict": (count, "the Python attribute counts"),
    "a set": (seen, "the Python attribute seen"),
    "a deque": (lambda m, x: m.last.append(len(m.last)), "the Python attribute last"),
    "a list in a dict": (lambda m, x: m.nested["a"].append(1.0), "the Python attribute nested"),
    "an object": (added, "the Python attribute stats.n"),
    "a list of an object": (lambda m, x: m.stats.log.append(1), "the Python attribute stats.log"),
    "an array": (history, "the Python attribute history"),
    "a tuple": (grown, "the Python attribute grown"),
    "an attribute that was not there": (by_name, "the Python attribute fresh"),
    "a module without code": (
        lambda m, x: m.inner.__dict__.update(n=m.inner.__dict__.get("n", 0) + 1),
        "the Python attribute inner.n",
    ),
    "a list of the class": (lambda m, x: m.shared.append(1.0), "the Python attribute Writing.shared"),
    "a global": (add_global, f"the global {__name__}.CALLS"),
    "a global list": (append_global, f"the global {__name__}.TIMES"),
    "a global list, by a helper": (helped, f"the global {__name__}.TIMES"),
    "a default": (with_default, "the Python attribute with_default.default_0"),
}


def mean(model, x):
    return model(x).square().mean()


def everything(model):
    """Return all that a test may write, as text."""
    return repr(
        (TIMES, CALLS, with_default.__defaults__, {k: v for k, v in vars(model).items() if k[0] != "_"})
    )


@pytest.mark.parametrize("case", EACH_TIME)
def test_what_each_run_changes_is_refused_and_put_back(case):
    write, name = EACH_TIME[case]
    model = Writing(write)
    before = everything(model)
    with pytest.raises(CaptureError, match=r"the forward pass changes") as caught:
        capture_step(model, mean, None, (torch.ones(3, 4),))
    lines = str(caught.value).splitlines()
    assert lines[0] == f"capture: the forward pass changes {name}"
    assert lines[1].startswith(f"  at: {__file__}:")
    assert "by each run" in lines[3]
    assert everything(model) == before


def test_inference_that_counts():
    model = Writing(count)
    with pytest.raises(CaptureError, match="the forward pass changes the Python attribute counts"):
        capture_inference(model, (torch.ones(3, 4),))
    assert model.counts == {"n": 0}


def test_the_line_that_changes_it_is_named():
    def write(model, x):
        assert model.log == []
        model.log.extend([1.0])
        model.log.clear()
        model.log.append(3.5) if x.shape[0] else None
        model.counts["n"] += 1

    text = 'model.counts["n"] += 1'
    with pytest.raises(CaptureError, match="attribute counts"):
        capture_step(
            Writing(lambda m, x: m.counts.update(n=m.counts["n"] + 1)), mean, None, (torch.ones(3, 4),)
        )
    with pytest.raises(CaptureError) as caught:
        capture_step(Writing(lambda m, x: write(m, x) or m.log.clear()), mean, None, (torch.ones(3, 4),))
    assert str(caught.value).splitlines()[1].endswith(text)


def test_what_the_loss_closes_over():
    calls, losses = 0, []

    def counted(model, x):
        nonlocal calls
        calls += 1
        return mean(model, x)

    def logged(model, x):
        losses.append(0.5)
        return mean(model, x)

    for function, name in ((counted, "calls"), (logged, "losses")):
        with pytest.raises(CaptureError) as caught:
            capture_step(nn.Linear(4, 2), function, None, (torch.ones(3, 4),))
        where = f"{function.__qualname__} closes over"
        assert str(caught.value).startswith(f"capture: the forward pass changes {name}, which {where}")
    assert (calls, losses) == (0, [])


def test_a_hook_that_counts():
    model, sizes = nn.Linear(4, 2), []
    model.register_forward_hook(lambda module, args, output: sizes.append(len(output)))
    with pytest.raises(CaptureError, match="sizes, which"):
        capture_step(model, mean, None, (torch.ones(3, 4),))
    assert sizes == []


def size(model, x):
    model.counts["n"] = len(x)


def test_what_the_first_run_alone_changes_is_there_before():
    """Who runs the model may read it."""
    model = Writing(size)
    with pytest.raises(CaptureError) as caught:
        capture_step(model, mean, None, (torch.ones(3, 4),))
    text = str(caught.value)
    assert text.startswith(
        f"capture: the first forward pass changes the Python attribute counts\n  at: {__file__}"
    )
    assert "next: run the model once on a batch of these shapes" in text
    model(torch.ones(3, 4))
    capture_step(model, mean, None, (torch.ones(3, 4),))


def positions(model, x):
    if model.sizes is None:
        model.sizes = torch.arange(len(x))


def by_length(model, x):
    if len(x) not in TABLE:
        TABLE[len(x)] = torch.arange(len(x))


def by_shape(model, x):
    model.nested.setdefault("shapes", {}).setdefault(tuple(x.shape), [len(x)])


def missing(model, x):
    if not hasattr(model, "lengths"):
        model.lengths = [len(x)]


def tensors(model, x):
    model.calls += 1


def made_anew(model, x):
    model.local, model.number = {"n": [len(x)]}, float("nan")
    model.number = 0.5


@pytest.mark.parametrize("write", [positions, by_length, by_shape, missing, tensors, made_anew])
def test_caches_and_counters_that_are_tensors(write):
    """They are as they were after a capture, and hold no fake tensor; a run in between changes nothing."""
    model = Writing(write)
    before = everything(model), dict(TABLE)
    for _ in range(2):
        captured = capture_step(model, mean, None, (torch.ones(3, 4),))
        assert (everything(model), dict(TABLE)) == before
        eager_memory(model, mean, None, (torch.ones(3, 4),))
        assert (everything(model), dict(TABLE)) == before
    assert len(captured.graph.state) == (write is tensors)
    model(torch.ones(3, 4))
    capture_step(model, mean, None, (torch.ones(3, 4),))
    TABLE.clear()


def test_a_run_more_leaves_nothing_in_the_graph():
    """A cache has the model run a second time; dropout and running statistics count once."""

    class Both(nn.Module):
        def __init__(self, sizes):
            super().__init__()
            self.norm, self.drop, self.sizes = nn.BatchNorm1d(4), nn.Dropout(0.5), sizes

        def forward(self, x):
            self.sizes.setdefault("n", len(x))
            return self.drop(self.norm(x))

    first, later = (
        capture_step(Both(sizes), mean, None, (torch.ones(3, 4),)).graph for sizes in ({}, {"n": 3})
    )
    assert [(n.op, n.stream) for n in first.nodes] == [(n.op, n.stream) for n in later.nodes]
    assert first.state == later.state


@functools.lru_cache
def cached_global(count):
    return torch.arange(count).float() / count


class Cached(nn.Module):
    """Reads tensors that functions made once."""

    def __init__(self, way):
        super().__init__()
        self.fc, self.way = nn.Linear(4, 2), way

    @functools.lru_cache  # noqa: B019  that a method keeps what it made is what is tested
    def method(self, count):
        return torch.arange(count).float() / count

    def helper(self, count):
        return cached_global(count)

    def forward(self, x):
        return self.fc(x + self.way(self)).square().mean()


_made = functools.cache(lambda: torch.ones(4))


@pytest.mark.parametrize(
    "way",
    [
        lambda model: cached_global(4),
        lambda model: model.method(4),
        lambda model: model.helper(4),
        lambda model: _made(),
    ],
    ids=["global", "method", "helper", "of a lambda"],
)
@pytest.mark.parametrize("is_warm", [False, True])
def test_no_tensor_of_the_capture_stays_in_a_cache(way, is_warm):
    cached_global.cache_clear(), Cached.method.cache_clear(), _made.cache_clear()
    torch.manual_seed(0)
    model = Cached(way)
    x = torch.randn(3, 4)
    if is_warm:
        model(x)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    capture_step(model, lambda model, x: model(x), optimizer, (x,))
    eager_memory(model, lambda model, x: model(x), optimizer, (x,))
    assert float(model(x)) == float(model(x))
    assert float(way(model).sum()) == float(way(model).sum())
