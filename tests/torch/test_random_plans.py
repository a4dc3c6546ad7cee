"""A sample of `python -m benchmarks.figures plans` and `faults`, on small programs."""

import random

import pytest
import torch
from tests.torch.test_regions import programs

from benchmarks.faults import FAULTS, SPLIT, faulty, split_plan
from benchmarks.random_plans import Subject, random_plan
from peakfold.bridge.runtime.compare import BOUND
from peakfold.errors import PlanError
from peakfold.ir.plan import Plan
from peakfold.pipeline.task import Task

PLANS = 6


def wide(item):
    return item.double() if item.is_floating_point() else item


def subject(name, optimizer):
    model, loss_fn, batch = programs()[name]
    model = model.double()
    batch = tuple(wide(leaf) for leaf in batch)
    return Subject.of(name, Task(model, loss_fn, optimizer(model.parameters()), batch))


def momentum(parameters):
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9)


@pytest.mark.parametrize("name", sorted(programs()))
def test_random_plans_compute_the_same(name):
    found = subject(name, torch.optim.AdamW)
    rng = random.Random(name)
    regions = ran = 0
    for _ in range(PLANS):
        plan = random_plan(found, rng)
        try:
            source = found.source(plan)
        except PlanError:
            continue
        assert found.error(source) <= BOUND, plan
        regions += len(plan.regions)
        ran += 1
    assert regions
    assert ran > PLANS // 2


@pytest.mark.parametrize("name", sorted(programs()))
def test_every_fault_is_caught(name):
    found = subject(name, momentum)
    whole, split = found.source(Plan(found.graph.digest)), found.source(split_plan(found))
    assert max(found.error(whole), found.error(split)) <= BOUND
    seeded = set()
    for fault in FAULTS:
        clean = split if fault in SPLIT else whole
        for source in faulty(clean, fault, 3, random.Random(0)):
            seeded.add(fault)
            assert found.error(source) > BOUND, fault
    one_draw = {"swapped order of random operators"}
    assert seeded >= set(FAULTS) - one_draw


def test_two_draws_in_the_other_order_are_seen():
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Linear(6, 8), torch.nn.Dropout(0.5), torch.nn.Linear(8, 8), torch.nn.Dropout(0.5)
    ).double()
    batch = (torch.randn(4, 6, dtype=torch.float64),)
    task = Task(model, lambda m, x: m(x).square().mean(), momentum(model.parameters()), batch)
    found = Subject.of("drops", task)
    sources = list(
        faulty(found.source(split_plan(found)), "swapped order of random operators", 9, random.Random(0))
    )
    assert sources
    assert all(found.error(source) > BOUND for source in sources)


class Masked(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = torch.nn.Linear(6, 6)
        self.register_buffer("mask", torch.ones(6, dtype=torch.bool))

    def forward(self, x):
        return torch.where(self.mask, self.fc(x), 0.0)


def test_inputs_keep_their_types():
    model = Masked().double()
    batch = (torch.randn(4, 6, dtype=torch.float64),)
    task = Task(model, lambda m, x: m(x).square().mean(), momentum(model.parameters()), batch)
    found = Subject.of("masked", task)
    types = {item.id: item.type.dtype for item in found.graph.inputs if item.id in found.tensors}
    assert "bool" in types.values()
    assert all(str(tensor.dtype) == f"torch.{types[ident]}" for ident, tensor in found.tensors.items())
    assert found.error(found.source(Plan(found.graph.digest))) == 0.0
