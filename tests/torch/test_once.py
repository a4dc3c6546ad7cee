"""What no input has a part in is computed once: the same bits, step after step."""

import pytest
import torch
from tests.torch.capture_support import assert_types_hold, same
from tests.torch.test_quicker import Call
from torch import nn

import peakfold
from peakfold.bridge.capture import capture_inference
from peakfold.bridge.runtime.interpret import interpret
from peakfold.bridge.runtime.once import with_graph
from peakfold.errors import InfeasibleError
from peakfold.graph.rewrite.liveness import peak
from peakfold.graph.rewrite.passes.once import ComputedOnce
from peakfold.pipeline import optimize
from peakfold.pipeline.request import request
from peakfold.pipeline.task import Task


@pytest.fixture(autouse=True, scope="module")
def costs(tmp_path_factory):
    """What operators cost is measured once for all tests here."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PEAKFOLD_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


OPERATORS = (
    torch.add,
    torch.mul,
    lambda a, b: a.sigmoid(),
    lambda a, b: torch.where(b > 0, a, a.neg()),
    lambda a, b: a.expand(6, 6)[:, 1:].sum(0, keepdim=True),
    lambda a, b: torch.cat((a.expand(6, 6), b.expand(6, 6)))[3:9],
)


def random_program(seed):
    """Operators on tensors that are made, and on what is given, as it comes."""
    draw = torch.Generator().manual_seed(seed)

    def pick(count):
        return int(torch.randint(count, (), generator=draw))

    steps = [(OPERATORS[pick(len(OPERATORS))], pick(64), pick(64)) for _ in range(12)]

    def run(x):
        made = [x, torch.arange(6.0), torch.ones(6, 6).tril(), torch.full((), 2.0)]
        for operator, a, b in steps:
            result = operator(made[a % len(made)], made[b % len(made)])
            made.append(result if result.shape[-1:] == (6,) else result.sum() + torch.zeros(6))
        return tuple(made[-4:])

    return run


@pytest.mark.parametrize("block", range(2))
def test_random_programs_with_constants_give_the_same_bits(block):
    x, folded = torch.randn(6, 6, generator=torch.Generator().manual_seed(0)), 0
    for seed in range(12 * block, 12 * (block + 1)):
        captured = capture_inference(Call(random_program(seed)), (x,))
        for raises in (False, True):
            graph = ComputedOnce(raises)(captured.graph).graph
            done = with_graph(captured, graph)
            tensors = (x, *done.binding.constants)
            values = interpret(graph, {i.id: t for i, t in zip(graph.inputs, tensors, strict=True)}, {})
            assert_types_hold(graph, values)
            expected = random_program(seed)(x)
            assert all(map(same, expected, (values[out.value] for out in graph.outputs))), seed
            assert raises or peak(graph) <= peak(captured.graph)
            folded += len(graph.inputs) > len(captured.graph.inputs)
    assert folded > 8


class Rotated(nn.Module):
    """Attention over a window, with a table of positions that is made in every step."""

    def __init__(self):
        super().__init__()
        self.into, self.out = nn.Linear(16, 16), nn.Linear(16, 16)

    def forward(self, x):
        length = x.shape[1]
        at = torch.arange(length, dtype=torch.float32)
        table = torch.cos(at[:, None] * torch.exp(-at[None] / length))
        mask = torch.ones(length, length, dtype=torch.bool).tril()
        h = self.into(x)
        scores = (h @ h.mT + table).masked_fill(~mask, -1e9)
        return self.out(scores.softmax(-1) @ h)


def setting():
    torch.manual_seed(0)
    model = Rotated()
    return (
        model,
        lambda m, x: m(x).square().mean(),
        torch.optim.AdamW(model.parameters()),
        (torch.randn(2, 12, 16),),
    )


def test_constants_are_kept_when_asked_and_the_step_is_equal(tmp_path):
    step = peakfold.optimize_step(*setting(), keep_constants=True)
    kept = [given.name for given in step.compiled.graph.inputs if given.kind == "constant"]
    assert len(kept) == 2
    assert not any(node.op.packet in ("arange", "tril", "cos") for node in step.compiled.graph.nodes)
    assert step.report.equal.bit_equal
    assert step.report.equal.max_error <= step.report.equal.bound
    assert any("2 constants computed once" in note for note in step.report.notes)
    model, loss_fn, adamw, batch = setting()
    step.save(tmp_path / "saved")
    loaded = peakfold.load(tmp_path / "saved", model, adamw)
    other = setting()[0]
    other.load_state_dict(model.state_dict())
    assert same(loaded(*batch), loss_fn(other, *batch).detach())


def asked(memory=None, verify=False, **options):
    return request(memory, None, 1, 100, 0, "eager", verify, **options)


def test_a_plan_of_a_program_that_keeps_constants_is_applied_again():
    first = optimize.optimize(Task(*setting()), asked(keep_constants=True))
    again = optimize.optimize(Task(*setting()), asked(plan=first.report.texts.plan, verify=True))
    assert again.report.texts.plan == first.report.texts.plan
    assert again.report.equal.ok


def test_a_budget_that_leaves_no_room_for_constants_is_kept_without_them():
    with pytest.raises(InfeasibleError) as refused:
        optimize.optimize(Task(*setting()), asked("1%"))
    least = refused.value.lowest_peak_bytes
    found = optimize.optimize(Task(*setting()), asked(least, keep_constants=True))
    assert found.report.optimized.predicted_peak_bytes <= least
    assert any("computed in every run" in note for note in found.report.notes)


def test_a_step_of_another_length_has_constants_of_its_own():
    model, loss_fn, _, batch = setting()
    step = peakfold.optimize_step(model, loss_fn, None, batch, keep_constants=True)
    longer = torch.randn(2, 20, 16)
    assert same(step(longer), loss_fn(model, longer).detach())
    assert same(step(*batch), loss_fn(model, *batch).detach())
