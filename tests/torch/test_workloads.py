"""The workloads: configurations, sizes, reproducibility, and that each trains."""

import subprocess
import sys

import pytest
import torch

from peakfold.errors import UsageError
from peakfold.workloads import NAMES, SIZES, Target, block_classes, build
from peakfold.workloads.build import OPTIMIZERS

PAPER_PARAMETERS = {
    "resnet50": 25_557_032,
    "bert": 109_514_298,
    "bert_sdpa": 109_514_298,
    "vit": 86_567_656,
    "unet": 7_904_578,
    "unetpp": 9_119_464,
    "gptneo": 1_315_575_808,
    "btlm": 2_635_437_056,
}


def step(target: Target) -> torch.Tensor:
    loss = target.loss()
    loss.backward()
    target.optimizer.step()
    target.optimizer.zero_grad()
    return loss


def parameters(target: Target) -> int:
    return sum(parameter.numel() for parameter in target.model.parameters())


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_tiny_trains(name, optimizer):
    target = build(name, "tiny", optimizer=optimizer)
    losses = [step(target).item() for _ in range(4)]
    assert target.model.training
    assert losses[-1] < losses[0]


@pytest.mark.parametrize("name", NAMES)
def test_tiny_is_small(name):
    assert parameters(build(name, "tiny")) < 100_000


@pytest.mark.parametrize("name", NAMES)
def test_paper_takes_no_storage(name):
    target = build(name, "paper", device="meta")
    tensors = [*target.model.parameters(), *target.model.buffers(), *target.batch]
    assert {tensor.device.type for tensor in tensors} == {"meta"}
    assert parameters(target) == PAPER_PARAMETERS[name]
    assert target.batch[0].shape[0] == SIZES[name]["paper"].batch


@pytest.mark.parametrize(("name", "dtype"), [("gptneo", torch.bfloat16), ("bert", torch.float32)])
def test_precision_of_paper_sizes(name, dtype):
    target = build(name, "paper", device="meta")
    assert {parameter.dtype for parameter in target.model.parameters()} == {dtype}
    wide = build(name, "paper", device="meta", dtype=torch.float64)
    assert {parameter.dtype for parameter in wide.model.parameters()} == {torch.float64}


@pytest.mark.parametrize("name", NAMES)
def test_same_seed_same_bits_and_torch_keeps_its_random_state(name):
    torch.manual_seed(3)
    before = torch.get_rng_state()
    one, two, other = (build(name, "tiny", seed=seed) for seed in (1, 1, 2))
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(one.batch[0], two.batch[0])
    assert not torch.equal(one.batch[0], other.batch[0])
    ones, twos = one.model.state_dict(), two.model.state_dict()
    assert all(torch.equal(ones[key], twos[key]) for key in ones)
    assert torch.equal(one.loss(), two.loss())


@pytest.mark.parametrize("name", [name for name in NAMES if name != "resnet50"])
def test_dropout_draws(name):
    target = build(name, "tiny", dropout=0.1)
    torch.manual_seed(0)
    first, second = target.loss(), target.loss()
    torch.manual_seed(0)
    again = target.loss()
    assert not torch.equal(first, second)
    assert torch.equal(first, again)
    assert torch.equal(build(name, "tiny").loss(), build(name, "tiny").loss())


@pytest.mark.parametrize("name", NAMES)
def test_blocks_are_in_the_model(name):
    model = build(name, "tiny").model
    assert sum(isinstance(module, block_classes(name)) for module in model.modules()) >= 2


def test_sdpa_computes_what_eager_attention_does():
    eager, fused = build("bert", "tiny"), build("bert_sdpa", "tiny")
    assert "Sdpa" in type(fused.model).__name__ or fused.model.config._attn_implementation == "sdpa"
    torch.testing.assert_close(eager.loss(), fused.loss())


def test_batch_override():
    assert [data.shape[0] for data in build("unet", "tiny", batch=3).batch] == [3, 3]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    ("dtype", "of_loss"), [(torch.float64, torch.float64), (torch.bfloat16, torch.float32)]
)
def test_loss_is_computed_in_no_less_than_float32(name, dtype, of_loss):
    target = build(name, "tiny", dtype=dtype)
    assert step(target).dtype == of_loss
    assert {parameter.dtype for parameter in target.model.parameters()} == {dtype}


def test_unpacks_into_the_four():
    target = build("bert", "tiny")
    model, loss_fn, optimizer, batch = target
    assert model is target.model
    assert optimizer is target.optimizer
    assert torch.equal(loss_fn(model, *batch), target.loss())


def test_mapping_batch_and_outputs():
    layer = torch.nn.Linear(2, 1)

    def loss_fn(model, *, x, y):
        out = model(x)
        return (out - y).square().mean(), {"out": out}

    target = Target(layer, loss_fn, None, {"x": torch.ones(3, 2), "y": torch.zeros(3, 1)})
    assert target.loss().dim() == 0


def test_naming_the_workloads_imports_no_models():
    code = "import sys, peakfold.workloads; print('transformers' in sys.modules, 'monai' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "False"]


@pytest.mark.parametrize("module", ["transformers", "monai"])
def test_missing_extra(monkeypatch, module):
    for name in [name for name in sys.modules if name.split(".")[0] == module or name.endswith(".models")]:
        if name.startswith(("peakfold", module)):
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.delattr("peakfold.workloads.models", raising=False)
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(UsageError) as error:
        build("bert", "tiny")
    assert error.value.exit_code == 2
    assert error.value.hint == "pip install 'peakfold[bench]'"
    assert "transformers and monai" in str(error.value)
