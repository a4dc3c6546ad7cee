"""A sample of `python -m benchmarks.figures plans` and `faults`, on small programs."""

import random

import pytest
import torch
from tests.torch.test_regions import programs

from benchmarks import faults, figures
from benchmarks.faults import FAULTS, SPLIT, faulty, noise_of, seeded, split_plan
from benchmarks.random_plans import SMALL, Subject, plans, random_plan
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


def test_one_random_plan_of_a_small_step_can_be_made_again():
    (both,) = plans(SMALL, "adamw", 4, 2, 0)
    alone = [plans(SMALL, "adamw", number, 1, 0)[0] for number in (4, 5)]
    assert both["plans"] == 2
    assert both["wrong"] == 0
    assert both["regions"] == sum(row["regions"] for row in alone)
    assert both["max_error"] == max(row["max_error"] for row in alone)


def test_plans_are_written_as_they_are_made_and_not_made_again(tmp_path, monkeypatch):
    made, file = [], str(tmp_path / "plans.json")

    def each(workload, figure, optimizer, first, count, seed):
        made.append((workload, optimizer, first, count))
        if len(made) == 3:
            raise KeyboardInterrupt
        return [{"workload": workload, "optimizer": optimizer, "first": first, "seed": seed}]

    monkeypatch.setattr(figures, "_each", each)
    with pytest.raises(KeyboardInterrupt):
        figures.plans("bert,vit", "adamw", 5, 0, 3, file)
    assert len(figures.known_rows(file, "plans")) == 2
    figures.plans("bert,vit", "adamw", 5, 0, 3, file)
    broken_off = [("bert", "adamw", 0, 3), ("vit", "adamw", 0, 3), ("bert", "adamw", 3, 2)]
    assert made == [*broken_off, ("bert", "adamw", 3, 2), ("vit", "adamw", 3, 2)]
    assert len(figures.known_rows(file, "plans")) == 4


def sources(found):
    """The program as it is, and in parts, with the noise between both."""
    whole, split = found.source(Plan(found.graph.digest)), found.source(split_plan(found))
    assert max(found.error(whole), found.error(split)) <= BOUND
    return whole, split, noise_of(found, whole, split)


@pytest.mark.parametrize("name", sorted(set(programs()) - {"classes"}))  # one sample: nothing is summed
def test_every_fault_is_caught(name):
    found = subject(name, momentum)
    whole, split, noise = sources(found)
    rows = {
        fault: seeded(found, split if fault in SPLIT else whole, fault, noise, 3, random.Random(0))
        for fault in FAULTS
    }
    assert all(row["caught"] == row["seeded"] for row in rows.values()), rows
    one_draw = {"swapped order of random operators"}
    assert {fault for fault, row in rows.items() if row["seeded"]} >= set(FAULTS) - one_draw


def test_a_comparison_that_tells_nothing_is_found_out(monkeypatch):
    found = subject("mlp", momentum)
    whole, _, noise = sources(found)
    monkeypatch.setattr(faults, "BOUND", float("inf"))
    row = seeded(found, whole, "lost update", noise, 2, random.Random(0))
    assert (row["seeded"], row["caught"], len(row["unseen"])) == (2, 0, 2)


def test_two_draws_in_the_other_order_are_seen():
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Linear(6, 8), torch.nn.Dropout(0.5), torch.nn.Linear(8, 8), torch.nn.Dropout(0.5)
    ).double()
    batch = (torch.randn(4, 6, dtype=torch.float64),)
    task = Task(model, lambda m, x: m(x).square().mean(), momentum(model.parameters()), batch)
    found = Subject.of("drops", task)
    swapped = list(
        faulty(found.source(split_plan(found)), "swapped order of random operators", random.Random(0))
    )
    assert swapped
    assert all(found.error(source) > BOUND for source in swapped)


def test_a_place_where_a_fault_changes_nothing_is_no_place():
    torch.manual_seed(0)
    layers = torch.nn.Conv2d(2, 3, 3, padding=1), torch.nn.InstanceNorm2d(3), torch.nn.Conv2d(3, 2, 1)
    model = torch.nn.Sequential(*layers).double()
    batch = (torch.randn(4, 2, 6, 6, dtype=torch.float64),)
    adamw = torch.optim.AdamW(model.parameters(), lr=0.1, weight_decay=0.1)
    task = Task(model, lambda m, x: m(x).sigmoid().square().mean(), adamw, batch)
    found = Subject.of("bias", task)
    _, _, noise = sources(found)
    whole = found.source(Plan(found.graph.digest, updates="early"))
    row = seeded(found, whole, "update before a late read", noise, 9, random.Random(0))
    assert row == {"seeded": 2, "caught": 2, "places without effect": 2}


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
