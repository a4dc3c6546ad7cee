"""Models beyond the seven: captured, bit-equal over steps of AdamW, and optimized."""

import pytest
import torch
from tests.torch.capture_support import equal_steps

import peakfold
from peakfold.bridge.capture import capture_step
from peakfold.errors import CaptureError, UsageError
from peakfold.pipeline.api import optimize_target
from peakfold.pipeline.request import request
from peakfold.workloads import BEYOND_NAMES, NAMES, build, load_target

pytest.importorskip("transformers", reason="the models are those of transformers")
pytest.importorskip("monai", reason="DenseNet is MONAI's")


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("PEAKFOLD_CACHE", str(tmp_path / "cache"))


def adamw(model):
    return torch.optim.AdamW(model.parameters(), lr=0.01)


@pytest.mark.parametrize("name", BEYOND_NAMES)
def test_captured_and_equal(name):
    target = build(name, "tiny")
    equal_steps(capture_step, target.model, target.loss_fn, adamw, target.batch)


@pytest.mark.parametrize("name", ["segformer", "mixtral", "moe", "lstm", "llama"])
def test_optimized_for_memory_and_verified(name):
    target = load_target(name, size="tiny", optimizer="adamw")
    step = peakfold.optimize_step(*target, latency=10.0, iterations=10, time_budget=1)
    assert step.report.equal.bit_equal
    assert step.report.optimized.peak_bytes <= step.report.eager.peak_bytes


@pytest.mark.parametrize("name", ["attention", "unet"])
def test_inference_is_a_target(name):
    target = build(name, "tiny", inference=True)
    assert (target.loss_fn, target.optimizer, target.model.training) == (None, None, False)
    asked = request(None, "10", 60, 5, 0, "eager", True)
    report = optimize_target(target, asked).report
    assert report.equal.bit_equal
    predicted = report.timelines.before
    assert predicted is not None
    assert abs(predicted.peak_bytes / report.eager.peak_bytes - 1) < 0.01


def test_inference_has_no_loss():
    with pytest.raises(UsageError, match="the target is inference"):
        build("attention", "tiny", inference=True).loss()


def test_names_are_not_taken_twice():
    assert not set(BEYOND_NAMES) & set(NAMES)


def test_experts_chosen_by_a_loop_over_data_are_refused():
    model, loss_fn, optimizer, batch = build("mixtral", "tiny")
    model.config._experts_implementation = "eager"
    with pytest.raises(
        CaptureError, match=r"the shape or value that aten.nonzero.default gives depends"
    ) as caught:
        capture_step(model, loss_fn, optimizer, batch)
    assert "modeling_mixtral.py" in caught.value.where


def test_no_weights_are_needed():
    target = build("llama", "cpu", device="meta")
    assert capture_step(*target).graph.nodes


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"size": "paper"}, "unknown size"),
        ({"dropout": 0.1}, "t5 is built without dropout"),
        ({"attention": "sdpa"}, "t5 has one attention only"),
    ],
)
def test_what_they_do_not_have(options, words):
    with pytest.raises(UsageError, match=words):
        build("t5", **{"size": "tiny", **options})


def test_hooks_that_a_library_puts_on_at_the_first_run_are_taken_off():
    """SegFormer's stages are collected by hooks; twice as many would mix them up."""
    target = build("segformer", "tiny")
    expected = build("segformer", "tiny").loss()
    capture_step(*target)
    assert torch.equal(target.loss(), expected)
