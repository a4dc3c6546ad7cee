"""The tables against torch's own operators, and against the operators of the workloads."""

import pytest
import torch

from peakfold.bridge.capture.step import capture_step
from peakfold.ops.known import KNOWN, barriers, known
from peakfold.workloads.build import NAMES, build


def test_every_known_operator_is_one_of_torch():
    assert [name for name in KNOWN if not hasattr(torch.ops.aten, name.removeprefix("aten."))] == []


CASES = [*((name, "adamw") for name in (*NAMES, "bert_sdpa")), ("vit", "momentum")]


@pytest.mark.parametrize(("name", "optimizer"), CASES)
def test_no_workload_has_an_operator_without_an_entry(name, optimizer):
    dropout = 0.0 if name == "resnet50" else 0.1
    target = build(name, "tiny", optimizer, dropout)
    captured = capture_step(target.model, target.loss_fn, target.optimizer, target.batch)
    assert barriers(captured.graph) == ()


def test_a_custom_operator_is_a_barrier():
    assert not known("mylib.fused.default")
