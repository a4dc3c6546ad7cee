import torch

from peakfold.bridge.runtime import measure


def test_peak_is_resident_plus_the_running_maximum():
    def step():
        first = torch.empty(1000)
        second = torch.empty(500)
        del first
        return second

    found = measure.peak_bytes(step, resident=100)
    assert (found.peak_bytes, found.before_bytes) == (100 + 6000, 100)
    assert found.events == (4000, 2000, -4000, -2000)


def test_resident_counts_each_storage_once_and_lazily_made_state():
    model = torch.nn.Linear(3, 2)
    optimizer = torch.optim.AdamW(model.parameters())
    x = torch.zeros(4, 3)
    batch = {"x": x, "again": x[1:]}
    step = measure.eager_step(model, lambda m, x, again: m(x).sum(), optimizer, batch)
    assert measure.resident_bytes(model, optimizer, batch) == 32 + 48
    step()
    assert measure.resident_bytes(model, optimizer, batch) == 32 + 48 + 2 * 32 + 8


def test_eager_step_without_optimizer_adds_to_the_gradient():
    model = torch.nn.Linear(3, 2)
    step = measure.eager_step(model, lambda m, x: (m(x).sum(), None), None, (torch.ones(4, 3),))
    step()
    loss = step()
    assert not loss.requires_grad
    assert torch.equal(model.bias.grad, torch.full((2,), 8.0))


def test_seconds_run_every_variant_equally_often():
    calls = []
    found = measure.interleaved_cpu_seconds(
        {"a": lambda: calls.append("a"), "b": lambda: calls.append("b")}, repeats=3, warmup=1
    )
    assert set(found) == {"a", "b"}
    assert calls.count("a") == calls.count("b") == 4
    assert all(0 <= seconds < 60 for seconds in found.values())


def test_a_spent_time_budget_still_counts_one_round():
    calls = []
    measure.interleaved_cpu_seconds({"a": lambda: calls.append("a")}, 5, 0, budget_seconds=0.0)
    assert calls == ["a"]
