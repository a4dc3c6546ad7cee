"""Every workload: captured steps equal eager's, and paper sizes are captured without weights."""

import copy

import pytest
import torch
from tests.torch.capture_support import assert_same_state, eager, run, same

from peakfold.bridge.capture import capture_step
from peakfold.bridge.capture.eager_memory import eager_memory
from peakfold.workloads import NAMES, build

torch.set_num_threads(1)

STEPS = 3
EAGER_MB = {
    "resnet50": 423.0,
    "bert": 387.0,
    "vit": 270.3,
    "unet": 270.5,
    "unetpp": 331.3,
    "gptneo": 450.1,
    "btlm": 328.2,
}
"""Measured peaks of the eager loop at cpu size, SGD; MB of 1e6 bytes."""


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("optimizer", ["sgd", "momentum", "adamw"])
def test_steps_equal_eager(name, optimizer):
    dropout = 0.0 if name == "resnet50" else 0.1
    ours = build(name, "tiny", optimizer, dropout)
    theirs = build(name, "tiny", optimizer, dropout)
    captured = capture_step(ours.model, ours.loss_fn, ours.optimizer, ours.batch)
    assert bool(dropout) is any(node.op.random for node in captured.graph.nodes)
    generators = [torch.manual_seed(5).get_state()] * 2
    for _ in range(STEPS):
        torch.set_rng_state(generators[0])
        loss, _ = run(captured, ours.model, ours.optimizer, ours.batch)
        generators[0] = torch.get_rng_state()
        torch.set_rng_state(generators[1])
        expected = eager(theirs.model, theirs.loss_fn, theirs.optimizer, theirs.batch)
        generators[1] = torch.get_rng_state()
        assert same(loss, expected)
        assert torch.equal(*generators)
        assert_same_state(ours.model, theirs.model, ours.optimizer, theirs.optimizer)
    assert captured.guards.check(ours.model, ours.optimizer, ours.batch) is None


@pytest.mark.parametrize("name", NAMES)
def test_paper_sizes_are_captured_from_meta_tensors(name):
    target = build(name, "paper", "sgd", device="meta")
    graph = capture_step(target.model, target.loss_fn, target.optimizer, target.batch).graph
    named = {given.name for given in graph.inputs if given.kind == "parameter"}
    assert named == {name for name, _ in target.model.named_parameters()}
    replaced = {graph.input[pair.input].name for pair in graph.state}
    trained = {given.name for given in graph.inputs if given.kind in ("parameter", "optimizer")}
    unused = {name for name in trained if name not in replaced}
    assert not unused or name == "unetpp"
    assert not target.optimizer.state
    roots = {graph.storage(value) for node in graph.nodes for value in node.outputs}
    assert len(set(graph.storages()) - roots) <= len(graph.inputs)


@pytest.mark.parametrize("name", EAGER_MB)
def test_eagers_peak_is_predicted_without_running(name):
    target = build(name, "cpu", device="meta")
    memory = eager_memory(target.model, target.loss_fn, target.optimizer, target.batch)
    error = 0.002 if name != "unetpp" else 0.015
    assert memory.peak_bytes / 1e6 == pytest.approx(EAGER_MB[name], rel=error)
    assert sum(memory.at_peak.values()) == memory.peak_bytes
    parameters = sum(p.numel() * p.element_size() for p in target.model.parameters())
    assert memory.at_peak["parameters"] == parameters


def test_optimizer_state_counts_although_it_is_not_there_yet():
    target = build("bert", "tiny", "adamw")
    before = copy.deepcopy(target.model.state_dict())
    memory = eager_memory(target.model, target.loss_fn, target.optimizer, target.batch)
    trained = sum(p.numel() * p.element_size() for p in target.model.parameters())
    count = sum(1 for _ in target.model.parameters())
    assert memory.at_peak["optimizer state"] == 2 * trained + 4 * count
    assert not target.optimizer.state
    assert all(same(before[name], value) for name, value in target.model.state_dict().items())
    assert all(p.grad is None for p in target.model.parameters())
