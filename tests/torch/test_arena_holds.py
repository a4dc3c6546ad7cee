"""Arenas that hold weights, optimizer state and batch too; arrays of other libraries; copies."""

import copy
import threading

import numpy as np
import pytest
import torch
from tests.torch.test_arena import fitted, loss_fn, net
from torch.profiler import ProfilerActivity, profile

import peakfold
from peakfold.bridge.runtime.lent import as_tensors
from peakfold.cli.failures import guarded
from peakfold.cli.main import app
from peakfold.errors import InfeasibleError, UsageError


class Model(torch.nn.Module):
    """Weights, buffers that change, and one that may be a part of a larger storage."""

    def __init__(self, whole=True):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.norm = torch.nn.Linear(8, 16), torch.nn.BatchNorm1d(16)
        self.last = torch.nn.Linear(16, 4)
        self.register_buffer("part", torch.linspace(0, 1, 4 if whole else 8)[:4])

    def forward(self, x):
        return self.last(torch.relu(self.norm(self.first(x)))) * self.part


def made(whole=True, **options):
    model, x = Model(whole), torch.randn(32, 8)
    optimizer = torch.optim.AdamW(model.parameters())
    step = peakfold.optimize_step(
        model, loss_fn, optimizer, (x,), "arena:1MiB", arena_holds="all", time_budget=1, **options
    )
    return step, model, optimizer, x


@pytest.fixture(scope="module")
def whole():
    return made()


def inside(step, tensor):
    arena = step.arena
    return 0 <= tensor.data_ptr() - arena.memory.address < arena.layout.arena


def eager(model, optimizer, x):
    loss, _ = loss_fn(model, x)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss.detach()


@pytest.mark.parametrize("whole", [True, False])
def test_all_lies_in_the_arena_and_every_bit_is_the_same(whole):
    step, model, optimizer, x = made(whole)
    other = copy.deepcopy(model)
    theirs = torch.optim.AdamW(other.parameters())
    parameters = [id(p) for p in model.parameters()]
    for _ in range(3):
        assert torch.equal(step(x), eager(other, theirs, x))
    for (name, mine), other_ in zip(model.state_dict().items(), other.state_dict().values(), strict=True):
        assert torch.equal(mine, other_)
        assert inside(step, mine) == (whole or name != "part")
    assert [id(p) for p in model.parameters()] == parameters
    state = [leaf for entry in optimizer.state.values() for leaf in entry.values()]
    assert state
    assert all(inside(step, leaf) for leaf in state)


def test_what_is_predicted_is_measured_to_the_byte(whole):
    report = whole[0].report
    assert report.equal.bit_equal
    assert report.optimized.peak_bytes == report.optimized.predicted_peak_bytes
    assert report.arena.held_bytes > 0
    assert report.arena.nbytes == whole[0].arena_bytes
    assert report.arena.copies == 0
    names = {block.name for block in report.arena.blocks}
    assert {"first.weight", "x"} & names or any("first.weight" in name for name in names)


def test_copies_are_counted_and_there_are_none_where_the_batch_lies_in_the_arena(whole):
    step, _, _, x = whole
    step(x)
    step(x)
    assert (step.arena.use.copies, step.arena.use.copied_bytes) == (1, x.nbytes)
    (placed,) = step.place(x)
    assert torch.equal(placed, x)
    assert inside(step, placed)
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        loss = step(placed)
    assert (step.arena.use.copies, step.arena.use.copied_bytes, step.arena.use.ordinary) == (0, 0, 0)
    events = [e for e in profiler.profiler.kineto_results.events() if e.name() == "[memory]"]
    assert [event.nbytes() for event in events] == []
    assert inside(step, loss)


def test_weights_that_were_replaced_are_brought_back(whole):
    step, model, _, x = whole
    (placed,) = step.place(x)
    step(placed)
    model.load_state_dict(copy.deepcopy(model.state_dict()))
    step(placed)
    assert step.arena.use.copies == 0
    model.first.weight.data = model.first.weight.data.clone()
    step(placed)
    assert step.arena.use.copies == 1
    assert inside(step, model.first.weight)


def test_weights_outlive_the_step():
    step, model, _, x = made(verify=False)
    step(x)
    kept = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    del step
    torch.full((1 << 16,), 3.0)
    assert all(torch.equal(tensor, kept[name]) for name, tensor in model.state_dict().items())


def test_smaller_batches_find_the_weights_where_they_are():
    step, model, x = fitted("arena:1MiB", arena_holds="all", verify=False)
    assert torch.equal(step(x), model(x))
    first = [p.data_ptr() for p in model.parameters()]
    most = step.arena_bytes + step.arena.layout.trace.kept_bytes
    for rows in (8, 32, 8):
        y = torch.randn(rows, 8)
        assert torch.equal(step(y), model(y))
        assert step.arena.use.copies == 1
    assert [p.data_ptr() for p in model.parameters()] == first
    assert step.arena_bytes <= most


def test_steps_that_share_an_arena_keep_their_own_weights():
    pairs = [fitted("arena:1MiB", arena_holds="all", verify=False) for _ in range(2)]
    expected = [model(x) for _, model, x in pairs]
    peakfold.share_arena(*(step for step, _, _ in pairs))
    for _ in range(2):
        for (step, _, x), result in zip(pairs, expected, strict=True):
            assert torch.equal(step(x), result)
    assert pairs[0][0].arena.use.copies == 1


def test_a_saved_step_holds_all_again(tmp_path):
    step, model, x = fitted("arena:1MiB", arena_holds="all")
    step.save(tmp_path / "step.zip")
    other = copy.deepcopy(model)
    again = peakfold.load(tmp_path / "step.zip", other)
    assert torch.equal(again(x), step(x))
    assert all(inside(again, p) for p in other.parameters())


def test_a_budget_for_all_is_kept_or_refused():
    least = fitted("arena:1MiB", arena_holds="all")[0].report.arena.nbytes
    assert fitted(f"arena:{least}", arena_holds="all")[0].report.arena.nbytes == least
    weights = sum(p.nbytes for p in net().parameters())
    with pytest.raises(InfeasibleError) as caught:
        fitted(f"arena:{weights}", arena_holds="all")
    assert caught.value.exit_code == 3
    assert weights < caught.value.lower_bound_bytes <= least


TARGET = """
import torch

def make():
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.GELU(), torch.nn.Linear(256, 8)).eval()
    return model, None, None, (torch.randn(128, 64),)
"""


@pytest.mark.parametrize(("memory", "code"), [("arena:64MiB", 0), ("arena:100kB", 3)])
def test_inference_on_the_command_line_stays_in_its_arena_or_is_refused(memory, code, tmp_path, capsys):
    (tmp_path / "model.py").write_text(TARGET)
    target = f"{tmp_path / 'model.py'}:make"
    out = tmp_path / "out"
    given = ["optimize", target, "--memory", memory, "--arena-holds", "all", "--time-budget", "1"]
    assert guarded(app, [*given, "--out", str(out)]) == code
    said = capsys.readouterr()
    if code:
        assert "arena: no arena of 100000 bytes holds any program: proved" in said.err
        assert "bound" in said.err
    else:
        assert (out / "report.html").is_file()
        assert guarded(app, ["verify", str(out)]) == 0


@pytest.mark.parametrize(
    ("options", "what"),
    [
        ({"memory": "1MiB"}, "the weights can lie in an arena only where the step has one"),
        ({"memory": None}, "the weights can lie in an arena only where the step has one"),
        ({"memory": "arena:1MiB", "offload": "host"}, "what lies in the arena for good cannot be offloaded"),
    ],
)
def test_what_cannot_be_held_is_refused(options, what):
    with pytest.raises(UsageError) as caught:
        peakfold.optimize_inference(net(), (torch.ones(4, 8),), arena_holds="all", **options)
    assert caught.value.what == what


def test_an_unknown_content_is_refused():
    with pytest.raises(UsageError, match="there is no such content of an arena"):
        fitted("arena:1MiB", arena_holds="weights")


def test_arrays_come_and_go_by_dlpack_without_copies():
    step, model, x = fitted("arena:1MiB")
    array = x.numpy()
    result = step(array)
    assert torch.equal(result, model(x))
    assert step.arena.use.copies == 0
    taken = np.from_dlpack(result)
    assert taken.ctypes.data == result.data_ptr()
    assert inside(step, result)
    expected = taken.copy()
    del result, step
    torch.full((1 << 16,), 3.0)
    assert (taken == expected).all()


def test_arrays_that_may_not_be_written_are_copied_and_counted():
    step, model, x = fitted("arena:1MiB", verify=False)
    array = x.numpy().copy()
    array.flags.writeable = False
    assert torch.equal(step(array), model(x))
    assert step.arena.use.copies == 1
    (tensor,), copies = as_tensors((array,))
    assert (copies.tensors, copies.nbytes) == (1, array.nbytes)
    tensor.mul_(2)
    assert (array == x.numpy()).all()


def test_unforeseen_allocations_of_other_threads_are_counted():
    step, _, x = fitted("arena:1MiB", verify=False)
    step(x)
    assert step.arena.use.elsewhere == 0
    stop, running = threading.Event(), threading.Event()

    def work():
        while not stop.is_set():
            torch.empty(1 << 12)
            running.set()

    thread = threading.Thread(target=work)
    thread.start()
    running.wait()
    seen = 0
    while not seen:
        step(x)
        seen = step.arena.use.elsewhere
        assert step.arena.use.ordinary == 0
    stop.set()
    thread.join()
    assert step.arena.use.elsewhere_bytes >= seen * 4
