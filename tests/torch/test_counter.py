"""Random numbers from a key and a counter: the same in any order, again, in parts, and in eager."""

import pytest
import torch
from tests.torch.test_regions import FREE, agree, batch_plan, split_program
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

import peakfold
from peakfold.bridge.capture import capture_step
from peakfold.bridge.capture.keyed import Keyed, kept, new_key, normal, uniform, words
from peakfold.bridge.runtime.target import copied, doubled
from peakfold.bridge.runtime.verify import observe
from peakfold.errors import CaptureError
from peakfold.ir.plan import Plan
from peakfold.pipeline import prove
from peakfold.pipeline.exact import of_target, target_of
from peakfold.pipeline.program import emit_plan
from peakfold.pipeline.task import Task

KEY = torch.tensor([123, 456], dtype=torch.int32)
SHAPES = [(1 << 16,), (64, 1024), (1024, 64), (16, 4, 32, 32), (1, 70, 1, 900)]


@pytest.mark.parametrize("shape", SHAPES)
def test_bits_are_even_and_do_not_depend_on_their_neighbours(shape):
    signs = torch.where(words(shape, KEY, 3) < 0, -1.0, 1.0).squeeze()
    others = [signs.roll(1, dim) for dim in range(signs.dim())]
    second = torch.tensor([0, 1], dtype=torch.int32)
    near = [(KEY, 4, 0), (KEY, 3, 1), (KEY + 1, 3, 0), (KEY + second, 3, 0)]
    others += [torch.where(words(shape, *other) < 0, -1.0, 1.0).squeeze() for other in near]
    others += (
        [signs.roll((1, 1), (-1, -2)) * signs.roll(1, -1) * signs.roll(1, -2)] if signs.dim() > 1 else []
    )
    sums = [signs.sum(), *((signs * other).sum() for other in others)]
    assert max(abs(float(total)) for total in sums) < 4.5 * signs.numel() ** 0.5


@pytest.mark.parametrize("byte", [1, 2, 3])
def test_each_of_the_bytes_that_are_used_is_even(byte):
    bits = words((256, 1024), KEY, 0)
    counts = torch.bincount(((bits >> 8 * byte) & 255).flatten(), minlength=256).double()
    assert 0.6 < float(((counts - 1024) ** 2 / 1024).sum() / 255) < 1.4


@pytest.mark.parametrize("share", [0.0, 0.1, 0.5, 0.9, 1.0])
def test_a_mask_keeps_its_share(share):
    mask = kept((400, 500), share, KEY, 0)
    spread = (share * (1 - share) * mask.numel()) ** 0.5
    assert abs(float(mask.sum()) - share * mask.numel()) <= 4.5 * spread


def test_numbers_have_their_distribution():
    flat, bell = uniform((400, 500), torch.float32, KEY, 0), normal((400, 500), torch.float64, KEY, 0)
    assert abs(float(flat.mean()) - 0.5) < 0.004
    assert abs(float(flat.var()) - 1 / 12) < 0.002
    moments = [float((bell**power).mean()) for power in (1, 2, 3, 4)]
    assert moments == pytest.approx([0, 1, 0, 3], abs=0.06)


class Noisy(nn.Module):
    """Draws in every way that there is, some of it in what a checkpoint runs again."""

    def __init__(self, again=False):
        super().__init__()
        self.first, self.second = nn.Linear(6, 12), nn.Linear(12, 6)
        self.norm, self.again = nn.BatchNorm1d(12), again

    def inner(self, x):
        return functional.dropout(self.norm(self.first(x)).relu(), 0.4)

    def forward(self, x):
        y = checkpoint(self.inner, x, use_reentrant=False) if self.again else self.inner(x)
        y = torch.native_dropout(self.second(y), 0.3, True)[0]
        y = y + torch.randn_like(y) * torch.rand(y.shape) + torch.empty_like(y).uniform_(-1, 2)
        y = y * torch.bernoulli(torch.full_like(y, 0.5), 0.7) + torch.randint(0, 9, y.shape)
        return y + torch.empty(y.shape[::-1]).normal_(1.0, 0.1).t()


def noisy(again=False):
    torch.manual_seed(0)
    model = Noisy(again)
    adamw = torch.optim.AdamW(model.parameters())
    return Task(model, lambda m, x: m(x).square().mean(), adamw, (torch.randn(10, 6),), keyed=True)


def seen_of(task, program=None):
    """What steps leave; nothing is measured."""
    make = None if program is None else (lambda copy_: prove.make_step(of_target(task, copy_), program))
    return observe(target_of(task), make, steps=3)


@pytest.mark.parametrize(("again", "precision"), [(False, "working"), (True, "working"), (True, "float64")])
def test_a_program_draws_what_eager_draws_under_the_same_key(again, precision):
    task = noisy(again)
    if precision == "float64":
        task = of_target(task, doubled(copied(target_of(task))))
    captured = task.capture()
    assert not any(node.op.random for node in captured.graph.nodes)
    program = emit_plan(captured, Plan(captured.graph.digest), FREE)
    found = prove.judge(seen_of(task), seen_of(task, program))
    assert found.bit_equal, found.worst


def test_numbers_change_from_step_to_step_and_follow_the_seed_of_torch():
    task = noisy()
    step = peakfold.optimize_step(
        task.model, task.loss_fn, None, task.batch, rng="counter", iterations=5, verify=False
    )

    def losses():
        torch.manual_seed(7)
        return [float(step(*task.batch)) for _ in range(3)]

    first = losses()
    assert len(set(first)) == 3
    assert first == losses()


def test_a_program_without_random_operators_takes_nothing_from_the_stream():
    model = nn.Linear(3, 1)
    captured = capture_step(model, lambda m, x: m(x).sum(), None, (torch.ones(2, 3),), keyed=True)
    assert captured.binding.key == -1
    assert not captured.binding.constants


def test_numbers_that_nothing_reads_still_take_the_key():
    def loss_fn(model, x):
        functional.dropout(x, 0.5)
        return model(x).sum()

    task = Task(nn.Linear(3, 1), loss_fn, None, (torch.ones(2, 3),), keyed=True)
    captured = task.capture()
    program = emit_plan(captured, Plan(captured.graph.digest), FREE)
    assert prove.judge(seen_of(task), seen_of(task, program)).bit_equal


def test_recomputing_keeps_no_mask():
    """Under half of eager's memory every mask is made again, and every bit stays."""
    torch.manual_seed(0)
    layers = [
        part
        for _ in range(4)
        for part in (nn.Linear(32, 256), nn.ReLU(), nn.Dropout(0.2), nn.Linear(256, 32))
    ]
    model = nn.Sequential(*layers)
    adamw = torch.optim.AdamW(model.parameters())
    step = peakfold.optimize_step(
        model,
        lambda m, x: m(x).square().mean(),
        adamw,
        (torch.randn(512, 32),),
        "60%",
        iterations=300,
        rng="counter",
    )
    assert step.report.equal.bit_equal
    assert step.report.optimized.peak_bytes == step.report.optimized.predicted_peak_bytes


def test_a_step_is_saved_with_its_key(tmp_path):
    task = noisy()
    step = peakfold.optimize_step(
        task.model, task.loss_fn, None, task.batch, rng="counter", iterations=5, verify=False
    )
    step.save(tmp_path / "step")
    loaded = peakfold.load(tmp_path / "step", task.model)
    torch.manual_seed(3)
    here = float(step(*task.batch))
    torch.manual_seed(3)
    assert float(loaded(*task.batch)) == here


def test_a_region_makes_its_own_part_of_every_mask():
    """With eager's stream masks are drawn whole before a region; with keys a part makes its part."""

    def drawn_outside(keyed):
        torch.manual_seed(0)
        layers = (nn.Linear(6, 12), nn.ReLU(), nn.Dropout(0.2), nn.Linear(12, 6), nn.Dropout(0.1))
        model = nn.Sequential(*layers)
        sgd = torch.optim.SGD(model.parameters(), lr=0.1)
        task = Task(model, lambda m, x: m(x).square().mean(), sgd, (torch.randn(8, 6),), keyed=keyed)
        program = split_program(task, lambda graph: batch_plan(graph, 2))
        (body,) = (repeat.nest.graph for repeat in program.nest.loops.values())
        drawn = [one for one in body.inputs if one.name.startswith(("2.", "4.")) and one.kind == "constant"]
        return task, [one.type.shape for one in drawn]

    assert drawn_outside(False)[1] == [(8, 12), (8, 6)]
    task, drawn = drawn_outside(True)
    assert drawn == [(8,), (8,)]  # the places of the samples
    agree(task, lambda graph: batch_plan(graph, 2))


def test_an_operator_without_keyed_numbers_is_refused_by_name():
    def loss_fn(model, x):
        return model(x).sum() + torch.multinomial(torch.ones(4), 2).sum()

    with pytest.raises(CaptureError) as caught:
        capture_step(nn.Linear(3, 1), loss_fn, None, (torch.ones(2, 3),), keyed=True)
    assert "no form of aten.multinomial.default with keyed random numbers" in str(caught.value)
    assert "use rng='eager'" in str(caught.value)


def test_eager_under_keys_leaves_the_stream_after_the_key():
    torch.manual_seed(1)
    with Keyed():
        torch.rand(5)
    after = torch.get_rng_state()
    torch.manual_seed(1)
    new_key().random_()
    assert torch.equal(after, torch.get_rng_state())
