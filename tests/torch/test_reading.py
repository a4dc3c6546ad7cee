"""What is looked up for operators that are alike is what the rules say; regions around large tensors."""

from functools import cache

import pytest
import torch
from tests.torch.test_fission_axes import captured, computes_the_same, run, wide

from peakfold.ops.links import Links, call_of, links_of
from peakfold.ops.links.table import rule_of
from peakfold.pipeline.task import Task
from peakfold.plan.fission.candidates import candidates
from peakfold.plan.fission.dims import components
from peakfold.plan.fission.grow import Ground
from peakfold.plan.fission.prepare import prepare
from peakfold.plan.fission.reading import Reading
from peakfold.plan.fission.states import Factor, Partial
from peakfold.plan.fission.transfer import RefusedError, transfer
from peakfold.plan.fission.tree import Tree, first_parts, region_of

NAMES = ["bert", "resnet50", "unet"]


@cache
def prepared(name):
    return prepare(captured(name))


@pytest.mark.parametrize("name", NAMES)
def test_links_that_are_kept_are_those_of_the_rule(name):
    graph = prepared(name)
    for node in graph.nodes:
        rule = rule_of(node.op.name)
        call = call_of(node, tuple(graph.type(value) for value in node.inputs))
        assert links_of(graph, node) == ((rule(call) if rule else None) or Links())


@pytest.mark.parametrize("name", NAMES)
def test_states_that_are_looked_up_are_those_of_the_operator(name):
    graph = prepared(name)
    reading = Reading(graph)
    compared = 0
    for component in components(graph)[:4]:
        factors = dict(component.members)
        for some in (factors, {v: f for v, f in factors.items() if v.node % 3}):
            for summed in (False, True):
                for node in graph.nodes:
                    states = {v: some.get(v, Partial() if summed else None) for v in node.inputs}
                    one = outcome(reading.transfer, node, states, some)
                    assert one == outcome(transfer, node, links_of(graph, node), states, some)
                    compared += any(isinstance(state, Factor) for state in states.values())
    assert compared > 100


def outcome(made, *given):
    try:
        return made(*given)
    except RefusedError as error:
        return error.refusal


def test_tensors_of_one_size_that_are_joined_find_the_same():
    ground = Ground(Reading(prepared("bert")))
    made = [value for value in ground.reading.nbytes if ground.reading.nbytes[value]]
    for value in made[::5]:
        assert ground.joined(value) == Ground(ground.reading).joined(value)


def words():
    """A step of a model of language with many more words than anything else."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Embedding(256, 8), torch.nn.Linear(8, 8), torch.nn.Linear(8, 256))
    batch = (torch.randint(256, (4, 8)), torch.randint(256, (4, 8)))

    def loss(made, x, y):
        return torch.nn.functional.cross_entropy(made(x).flatten(0, 1), y.flatten())

    return Task(model, loss, torch.optim.SGD(model.parameters(), lr=0.1), batch)


def test_the_head_of_a_loss_is_one_loop_along_the_batch_and_along_the_sequence():
    graph = prepare(wide(words().capture().graph))
    hot = {value for value in graph.storages() if value.node in graph.node}
    found = [one for one in candidates(graph, hot, components(graph)) if one.source == "bridge"]
    heads = [one for one in found if any("log_softmax" in graph.node[r.node].op.name for r in one.runs)]
    assert {one.axis for one in heads} >= {"batch", "sequence"}
    values = run(graph)
    for one in heads:
        assert all(not item.k for item in one.runs)
        computes_the_same(graph, values, [region_of(one, first_parts(one))])
    along = [next(one for one in heads if one.axis == axis) for axis in ("batch", "sequence")]
    assert not Tree(tuple(along)).fits(1, (2, 1))
