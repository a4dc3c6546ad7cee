"""What a softmax runs over, in parts: scores over a vocabulary, and of few queries over many keys."""

from functools import partial

import pytest
import torch
from tests.torch.test_regions import FREE, GRAPHS, agree, programs, same_results
from torch import nn
from torch.nn import functional

from peakfold.ir.plan import Plan, Region
from peakfold.pipeline.task import Task
from peakfold.plan.fission.derive import derive, derived
from peakfold.plan.fission.dims import components
from peakfold.plan.fission.prepare import prepare
from peakfold.plan.fission.program import outer_plan, planned
from peakfold.plan.fission.reading import Reading
from peakfold.plan.fission.stages import stages
from peakfold.plan.search.roots import _in_stages

PLACES = {"classes": 40, "queries": 32}


def over_places(graph, name, parts, anew=True):
    """A plan that splits what the softmax runs over, in as many loops as its sums need."""
    whole = prepare(graph)
    component = next(one for one in components(whole) if one.length == PLACES[name])
    pieces = stages(whole, component, anew=anew)
    regions = [Region(component.name, parts, piece.runs, None, piece.anchor) for piece in pieces]
    return Plan(graph.digest, regions=tuple(regions))


def task_of(name, loss=None):
    model, own, batch = programs()[name]
    return Task(model, loss or own, torch.optim.AdamW(model.parameters()), batch)


@pytest.mark.parametrize("anew", [False, True])
@pytest.mark.parametrize("parts", [2, 4, 7])
@pytest.mark.parametrize("name", sorted(PLACES))
def test_a_step_is_split_along_what_the_softmax_runs_over(name, parts, anew):
    plan = over_places(GRAPHS[name][0], name, parts, anew)
    assert len(plan.regions) == {"classes": 2, "queries": 4}[name]
    same_results(name, plan)
    agree(task_of(name), lambda graph: over_places(graph, name, parts, anew))


@pytest.mark.parametrize(
    "options",
    [
        {"reduction": "sum"},
        {"ignore_index": 3},
        {"label_smoothing": 0.1},
        {"weight": torch.arange(40.0)},
        {"weight": torch.arange(40.0), "reduction": "sum", "ignore_index": 0},
    ],
    ids=str,
)
def test_every_cross_entropy_is_split_along_its_classes(options):
    def loss(model, tokens, labels):
        given = {key: v.to(model.head.bias.dtype) if key == "weight" else v for key, v in options.items()}
        return functional.cross_entropy(model(tokens).flatten(0, 1), labels.flatten(), **given)

    agree(task_of("classes", loss), partial(over_places, name="classes", parts=3))


def test_a_loss_that_no_label_counts_in_has_the_gradients_of_eager():
    def loss(model, tokens, labels):
        none = torch.full_like(labels, -100).flatten()
        return torch.nan_to_num(functional.cross_entropy(model(tokens).flatten(0, 1), none))

    agree(task_of("classes", loss), partial(over_places, name="classes", parts=2))


@pytest.mark.parametrize("name", sorted(PLACES))
def test_no_score_of_the_forward_is_whole(name):
    graph = prepare(GRAPHS[name][0])
    bodies = derive(graph, over_places(graph, name, 4).regions).bodies.values()
    made = [value for body in bodies for value in body.made]
    forward = [value for value in made if graph.node[value.node].origin.phase == "forward"]
    assert forward
    assert all(PLACES[name] not in graph.tensor_type(value).shape for value in forward)


def test_a_softmax_of_many_rows_stays_one_operator():
    graph = GRAPHS["words"][0]
    kinds = {node.op.packet for node in prepare(graph).nodes}
    assert {"_softmax", "_log_softmax", "_softmax_backward_data"} <= kinds
    for name in PLACES:
        assert not [node.name for node in prepare(GRAPHS[name][0]).nodes if "softmax" in node.op.name]


class Head(nn.Module):
    def __init__(self):
        super().__init__()
        self.table, self.head = nn.Embedding(16, 8), nn.Linear(8, 4096)

    def forward(self, tokens):
        return self.head(self.table(tokens))


def test_the_peak_of_a_head_falls_with_the_parts_of_its_classes():
    def loss(model, tokens, labels):
        return functional.cross_entropy(model(tokens).flatten(0, 1), labels.flatten())

    model = Head()
    batch = (torch.randint(16, (1, 64)), torch.randint(4096, (1, 64)))
    graph = Task(model, loss, torch.optim.SGD(model.parameters()), batch).capture().graph
    whole = prepare(graph)
    classes = next(one for one in components(whole) if one.length == 4096)

    def peak(pieces, parts):
        regions = tuple(Region(classes.name, parts, p.runs, None, p.anchor) for p in pieces)
        plan = Plan(graph.digest, regions=regions)
        made = derived(graph, plan)
        return planned(made, outer_plan(plan, made), lambda _: FREE).timeline.peak

    kept, anew = (stages(whole, classes, anew=again) for again in (False, True))
    plain = peak((), 1)
    assert peak(anew, 8) < peak(anew, 2) < plain
    assert peak(anew, 8) < peak(kept, 8) < plain
    assert peak(anew, 8) < plain / 3
    assert not list(_in_stages(Reading(whole), set(), (classes,)))
    hot = set(whole.storages())
    assert any(
        one.every == tuple(run for p in anew for run in p.runs)
        for one in _in_stages(Reading(whole), hot, (classes,))
    )
