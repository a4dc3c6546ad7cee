"""Comparison of results, and faults that were put into programs on purpose."""

import copyreg
import re
import types

import pytest
import torch
from tests.torch.test_plans import make_step, random_plan, transformer
from torch.nn import functional

from peakfold.bridge.runtime.compare import Result, compare, error_of
from peakfold.bridge.runtime.target import Target, copied
from peakfold.bridge.runtime.verify import observe, verify
from peakfold.errors import UsageError
from peakfold.ir.graph import Value
from peakfold.ir.plan import Commit, Compute, Free, Plan, Run, Schedule


class TwoBranches(torch.nn.Module):
    """Two dropouts that do not depend on each other, and a weight that backward reads."""

    def __init__(self):
        super().__init__()
        self.first = torch.nn.Linear(6, 6)
        self.second = torch.nn.Linear(6, 6)
        self.norm = torch.nn.BatchNorm1d(6)

    def forward(self, x):
        hidden = self.norm(self.first(x))
        left = functional.dropout(hidden, 0.3)
        right = functional.dropout(hidden.tanh(), 0.3)
        return self.second(left - right)


def branches():
    torch.manual_seed(0)
    model = TwoBranches()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    return Target(model, lambda model, x: model(x).square().mean(), optimizer, (torch.randn(8, 6),))


def plain(graph):
    return Plan(graph.digest, (), "last", False)


def faulty(fault):
    return make_step(plain, schedule_of=fault)


def without_frees(schedule):
    return [step for step in schedule.steps if not isinstance(step, Free)]


def input_id(graph, name):
    return next(given.id for given in graph.inputs if given.name == name)


def lost(name):
    """Compute the new value of an input, and leave the old one where it is."""

    def fault(graph, schedule):
        given = input_id(graph, name)
        steps = [step for step in without_frees(schedule) if step != Commit(given)]
        steps = [kept_out(graph, step, given) for step in steps]
        assert steps != without_frees(schedule)
        return Schedule(tuple(steps))

    return fault


def kept_out(graph, step, given):
    if isinstance(step, Compute) and any(reuse.operand == Value(given) for reuse in step.reuses):
        return Compute(step.run)
    return step


def swapped_draws(graph, schedule):
    """Let the second dropout draw before the first."""
    steps = without_frees(schedule)
    first, second = (
        i for i, step in enumerate(steps) if isinstance(step, Compute) and graph.node[step.run.node].op.random
    )
    return Schedule(tuple(hoisted(graph, steps, steps[second].run.node, first)))


def hoisted(graph, steps, node, at):
    """Do a node, and all that it needs, at an earlier place."""
    needed = ancestors(graph, node)
    early = [step for step in steps[at:] if isinstance(step, Compute) and step.run.node in needed]
    return [*steps[:at], *early, *(step for step in steps[at:] if step not in early)]


def read_after_update(graph, schedule):
    """Replace a weight before the backward pass reads it."""
    weight = input_id(graph, "second.weight")
    steps = without_frees(schedule)
    reader = next(
        node.id
        for node in graph.nodes
        if node.origin.phase == "backward"
        and not node.is_view
        and any(graph.storage(value) == Value(weight) for value in node.inputs)
    )
    new = graph.new_value[weight].node
    assert reader not in ancestors(graph, new)
    steps = hoisted(graph, steps, new, steps.index(Compute(Run(reader))))
    if Commit(weight) in steps:
        steps.remove(Commit(weight))
        steps.insert(steps.index(Compute(Run(reader))), Commit(weight))
    return Schedule(tuple(steps))


def ancestors(graph, node):
    found, stack = set(), [node]
    while stack:
        top = stack.pop()
        if top in found or top not in graph.node:
            continue
        found.add(top)
        stack += [value.node for value in graph.node[top].inputs]
    return found


FAULTS = {
    "lost parameter": lost("second.bias"),
    "lost momentum": lost("second.bias.momentum_buffer"),
    "lost buffer": lost("norm.running_mean"),
    "swapped draws": swapped_draws,
    "read after update": read_after_update,
}


def test_without_a_fault_it_is_equal():
    assert verify(branches(), faulty(lambda graph, schedule: Schedule(tuple(without_frees(schedule))))).ok


@pytest.mark.parametrize("precision", ["working", "float64"])
@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_seen(fault, precision):
    found = verify(branches(), faulty(FAULTS[fault]), precision=precision)
    assert not found.ok
    assert not found.bit_equal
    assert found.worst


def test_a_second_run_that_draws_anew_is_seen():
    def careless(source):
        assert "generator=" in source
        return re.sub(r",\s*generator=\w+(\.clone_state\(\))?", "", source)

    plan = lambda graph: random_plan(graph, 1, 1.0)  # noqa: E731
    assert verify(transformer(), make_step(plan)).ok
    assert not verify(transformer(), make_step(plan, source_of=careless)).ok


def test_a_stream_that_is_left_elsewhere_is_seen():
    def careless(source):
        return re.sub(r"generator=\w+(\.clone_state\(\))?", "generator=torch.default_generator", source)

    found = verify(transformer(), make_step(lambda graph: random_plan(graph, 1, 1.0), source_of=careless))
    assert not found.ok


def test_a_result_that_is_missing_or_too_many_is_an_infinite_error():
    one = [Result("w", "parameter", torch.ones(2))]
    assert compare(one, []).max_error == float("inf")
    assert compare([], one).worst == "w"
    assert compare(one, [Result("w", "parameter", torch.ones(3))]).max_error == float("inf")
    assert compare(one, [Result("w", "parameter", torch.ones(2).double())]).max_error == float("inf")


def test_nan_on_one_side_alone_is_an_infinite_error():
    nan, one = torch.tensor([float("nan"), 1.0]), torch.ones(2)
    assert error_of(nan, one) == error_of(one, nan) == float("inf")
    assert error_of(nan, nan) == 0.0


def test_roundoff_of_a_gradient_that_is_zero_counts_by_the_scale_of_its_role():
    big = Result("big", "gradient", torch.tensor([1.0], dtype=torch.float64))
    noise, other = (
        Result("noise", "gradient", torch.tensor([n], dtype=torch.float64)) for n in (1e-17, -2e-17)
    )
    assert compare([big, noise], [big, other]).max_error < 1e-9
    lost_part = Result("noise", "gradient", torch.tensor([1e-5], dtype=torch.float64))
    assert compare([big, noise], [big, lost_part]).max_error > 1e-9


def test_booleans_and_complex_numbers_are_compared():
    for left, right in ((True, False), (1 + 1j, 1 - 1j)):
        found = compare(
            [Result("x", "output", torch.tensor(left))], [Result("x", "output", torch.tensor(right))]
        )
        assert not found.bit_equal
        assert found.max_error > 0.5


def test_a_model_that_cannot_be_copied_is_a_usage_error():
    target = branches()
    target.model.kept = [torch.ones(2, requires_grad=True) * 2]
    with pytest.raises(UsageError) as caught:
        copied(target)
    text = str(caught.value)
    assert text.startswith("verify: the model or the batch cannot be copied, and copies are what is measured")
    assert "next: detach tensors that the model and the batch hold, or give the class named above" in text
    assert text.endswith("only verify=False without a budget copies nothing")


def test_a_view_of_a_dict_that_a_model_holds_is_copied():
    target, known = branches(), dict(copyreg.dispatch_table)
    target.model.under = {"of": [target.model.first], "rate": 1.0}
    target.model.views = [types.MappingProxyType(target.model.under)]
    made = copied(target).model
    assert made.views[0]["of"][0] is made.first
    assert made.first is not target.model.first
    made.under["rate"] = 2.0
    assert (made.views[0]["rate"], target.model.views[0]["rate"]) == (2.0, 1.0)
    with pytest.raises(TypeError, match="does not support item assignment"):
        made.views[0]["rate"] = 3.0
    assert copyreg.dispatch_table == known
    assert verify(target, make_step(plain)).ok


def test_a_scheduler_around_the_optimizer_does_not_reach_the_users():
    target = branches()
    torch.optim.lr_scheduler.ExponentialLR(target.optimizer, 0.9)
    before = target.model.first.weight.detach().clone()
    assert verify(target, make_step(plain)).ok
    assert torch.equal(target.model.first.weight, before)
    assert target.model.first.weight.grad is None


class Averaging(torch.nn.Module):
    """Returns the buffer that it updates, whole and in part."""

    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(3, 3)
        self.register_buffer("mean", torch.zeros(3))

    def forward(self, x):
        y = self.linear(x)
        with torch.no_grad():
            self.mean.mul_(0.5).add_(y.mean(0))
        return y, self.mean, self.mean[1:]


@pytest.mark.parametrize("precision", ["working", "float64"])
def test_buffers_that_are_outputs_are_compared_as_each_step_leaves_them(precision):
    torch.manual_seed(0)
    model = Averaging()

    def loss_fn(model, x):
        y, *seen = model(x)
        return y.square().mean(), seen

    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    target = Target(model, loss_fn, optimizer, (torch.randn(4, 3),))
    left = observe(target, None, precision=precision).results
    first, second, _ = (result.tensor for result in left if result.name.startswith("output 1 of"))
    assert not torch.equal(first, second)
    assert verify(target, make_step(plain), precision=precision).ok
