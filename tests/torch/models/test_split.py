"""Models beyond the seven, in parts: an emitted step of each leaves what the whole does, in float64."""

import pytest
import torch

from benchmarks.random_plans import Subject, subject_of
from peakfold.bridge.runtime.compare import BOUND
from peakfold.ir.plan import Plan, Region, Run
from peakfold.pipeline.task import Task
from peakfold.plan.fission.assign import Refusal, assign
from peakfold.plan.fission.dims import Component
from peakfold.plan.fission.stages import stages
from peakfold.plan.fission.widest import widest
from peakfold.workloads import BEYOND_NAMES, load_target

pytest.importorskip("transformers", reason="the models are those of transformers")
pytest.importorskip("monai", reason="DenseNet is MONAI's")

ALONG = {"moe": "hidden", "attention": "sequence"}
"""Axes; of all others the batch. Experts rank the tokens of a whole batch, and attention has one sample."""
IN_STAGES = {"t5", "densenet", "segformer", "mixtral", "moe", "attention"}
"""Coupled in between: by statistics, by keys of all queries, or by what every sample reads of a table."""
SINGLE = ("lstm", "mixtral")
"""Whose kernels have no float64."""
ROUNDINGS = 100 * torch.finfo(torch.float32).eps
LEAST = 0.4
"""Share of the steps, updates apart, that are done in parts."""


def subject(name: str) -> Subject:
    if name not in SINGLE:
        return subject_of(name, "adamw")
    return Subject.of(name, Task.of(load_target(name, size="tiny", optimizer="adamw")))


def axis_of(found: Subject, name: str) -> Component:
    return next(one for one in found.long if one.name == ALONG.get(name, "batch"))


@pytest.mark.parametrize("name", BEYOND_NAMES)
def test_a_step_in_parts_is_equal(name):
    found = subject(name)
    graph, axis = found.prepared, axis_of(found, name)
    if name in IN_STAGES:
        regions = [Region(axis.name, 2, p.runs, None, p.anchor) for p in stages(graph, axis)]
    else:
        regions = [Region(axis.name, 2, widest(graph, axis))]
    steps = [node for node in graph.nodes if not node.is_view and node.origin.phase != "update"]
    inside = {run.node for region in regions for run in region.runs}
    assert len(inside) >= LEAST * len(steps)
    plan = Plan(found.graph.digest, regions=tuple(regions))
    assert found.error(found.source(plan)) <= (ROUNDINGS if name in SINGLE else BOUND)


def test_what_couples_the_tokens_of_a_batch_is_said():
    """Experts with room for so many tokens rank all of them: that runs whole, and says so."""
    found = subject_of("moe", "adamw")
    graph = found.prepared
    ranked = next(node for node in graph.nodes if node.op.packet in ("cumsum", "sort", "topk"))
    axis = next(one for one in found.long if any(value == ranked.inputs[0] for value, _ in one.members))
    refused = assign(graph, [Run(node.id) for node in graph.nodes if node.origin.phase == "forward"], axis)
    assert isinstance(refused, Refusal)
    assert graph.node[refused.node].name in refused.why
