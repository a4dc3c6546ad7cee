"""Recurrent layers as users write them: oneDNN's own kernel for LSTM, torch's operators for the others."""

import pytest
import torch
from tests.torch.capture_support import equal_steps
from torch import nn

import peakfold
from peakfold.bridge.capture import capture_step
from peakfold.bridge.capture.eager_memory import eager_memory
from peakfold.errors import CaptureError


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("PEAKFOLD_CACHE", str(tmp_path / "cache"))


def adamw(model):
    return torch.optim.AdamW(model.parameters(), lr=0.01)


def squared(model, x):
    return model(x)[0].square().mean()


def sequence():
    return (torch.randn(5, 3, 8, generator=torch.Generator().manual_seed(1)),)


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
@pytest.mark.parametrize(
    "options",
    [{}, {"num_layers": 2, "dropout": 0.3}, {"bidirectional": True}, {"batch_first": True}, {"bias": False}],
)
def test_layers(kind, options):
    torch.manual_seed(0)
    equal_steps(capture_step, kind(8, 16, **options), squared, adamw, sequence())


def test_projections_and_given_states():
    torch.manual_seed(0)

    def loss(model, x, h, c):
        y, (h, c) = model(x, (h, c))
        return y.square().mean() + h.mean() * c.mean()

    states = (torch.randn(1, 3, 4), torch.randn(1, 3, 16))
    equal_steps(capture_step, nn.LSTM(8, 16, proj_size=4), loss, adamw, (*sequence(), *states))


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])
def test_through_the_whole_pipeline(kind, tmp_path):
    torch.manual_seed(0)
    model = kind(8, 16, 2, dropout=0.2)
    optimizer = adamw(model)
    step = peakfold.optimize_step(model, squared, optimizer, sequence(), iterations=20, time_budget=1)
    assert step.report.equal.bit_equal
    step.save(tmp_path / "step")
    loaded = peakfold.load(tmp_path / "step", model, optimizer)
    torch.manual_seed(1)
    loss = loaded(*sequence())
    assert loss.isfinite()


@pytest.mark.parametrize("options", [{}, {"num_layers": 2}, {"bidirectional": True}, {"batch_first": True}])
def test_what_the_kernel_hides_is_predicted(options):
    """oneDNN reorders weights and states in both passes; eager and the program hold the same for it."""
    torch.manual_seed(0)
    model = nn.LSTM(32, 64, **options)
    step = peakfold.optimize_step(
        model, squared, adamw(model), (torch.randn(8, 8, 32),), iterations=20, time_budget=1
    )
    report = step.report
    assert report.optimized.predicted_peak_bytes == pytest.approx(report.optimized.peak_bytes, rel=0.01)
    assert report.timelines.before.peak_bytes == pytest.approx(report.eager.peak_bytes, rel=0.01)


def test_inference_runs_the_kernel_without_a_workspace():
    torch.manual_seed(0)
    model = nn.LSTM(32, 64, 2).eval()
    x = torch.randn(20, 8, 32)
    run = peakfold.optimize_inference(model, (x,), iterations=20, time_budget=1)
    with torch.no_grad():
        assert all(map(torch.equal, (run(x)[0], *run(x)[1]), (model(x)[0], *model(x)[1])))


def test_a_frozen_layer_that_passes_gradients_on():
    torch.manual_seed(0)
    model = nn.ModuleList([nn.Linear(8, 8), nn.LSTM(8, 8), nn.LSTM(8, 4)])
    model[1].requires_grad_(False)

    def loss(layers, x):
        return layers[2](layers[1](layers[0](x))[0])[0].square().mean()

    equal_steps(
        capture_step,
        model,
        loss,
        lambda m: torch.optim.AdamW([p for p in m.parameters() if p.requires_grad]),
        sequence(),
    )


def test_layers_with_and_without_gradients_are_refused():
    model = nn.ModuleList([nn.LSTM(8, 8), nn.LSTM(8, 4)])

    def loss(layers, x):
        with torch.no_grad():
            given = layers[0](x)[0]
        return layers[1](given)[0].square().mean()

    with pytest.raises(CaptureError, match="recurrent layers run both with and without gradients"):
        capture_step(model, loss, adamw(model), sequence())


def test_packed_sequences_read_lengths():
    model = nn.LSTM(8, 4)

    def loss(model, x, lengths):
        packed = nn.utils.rnn.pack_padded_sequence(x, lengths)
        return nn.utils.rnn.pad_packed_sequence(model(packed)[0])[0].square().mean()

    with pytest.raises(CaptureError):
        capture_step(model, loss, adamw(model), (*sequence(), torch.tensor([5, 3, 2])))


def test_the_workspace_counts_in_what_eager_holds():
    model = nn.LSTM(8, 16)
    found = eager_memory(model, squared, adamw(model), sequence())
    assert any(block.nbytes > 5 * 3 * 16 * 4 * 4 for block in found.held if "rnn_layer" in block.name)


@pytest.mark.parametrize("kind", [nn.GRU, nn.RNN])
def test_a_step_of_time_makes_its_own_piece_alone(kind):
    """A view of all steps of time at each read of one would be quadratic in the length."""
    torch.manual_seed(0)
    model = kind(8, 16)

    def pieces(length):
        x = torch.randn(length, 3, 8)
        step = peakfold.optimize_step(model, squared, adamw(model), (x,), iterations=5, verify=False)
        step(x)
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
            step(x)
        return sum(event.count for event in profiler.key_averages() if event.key == "aten::as_strided")

    short, long = pieces(6), pieces(12)
    assert long < 2.5 * short
