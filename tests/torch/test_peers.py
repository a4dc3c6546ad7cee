"""Every peer computes the loss and the parameters of the eager step."""

import pytest
import torch

from peakfold.bench.peers import Peer, Step, catalog, chunk_counts, compiled, outermost
from peakfold.bridge.runtime.measure import peak_bytes, resident_bytes
from peakfold.errors import UsageError
from peakfold.workloads import NAMES, Target, block_classes, build

PER_SAMPLE = [name for name in NAMES if name != "resnet50"]
STEPS = 2


def ran(step: Step, target: Target) -> tuple[list[torch.Tensor], dict[str, torch.Tensor]]:
    torch.manual_seed(7)
    losses = [step() for _ in range(STEPS)]
    return losses, target.model.state_dict()


def both(name: str, peer: Peer, **options: object):
    mine, reference = (build(name, "tiny", optimizer="momentum", **options) for _ in range(2))
    eager = catalog(block_classes(name), 4)["eager"]
    return ran(peer(mine), mine), ran(eager(reference), reference)


def compared(name: str, state: dict[str, torch.Tensor]) -> list[str]:
    """All but the running statistics of BatchNorm, which a block that runs twice updates twice."""
    return [key for key in state if name != "resnet50" or ("running" not in key and "tracked" not in key)]


def peers_of(name: str, batch: int) -> dict[str, Peer]:
    return catalog(block_classes(name), batch)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("peer", ["checkpoint-1", "checkpoint-2", "checkpoint-3", "selective"])
def test_recomputation_is_bit_equal(name, peer):
    dropout = 0.0 if name == "resnet50" else 0.1
    (losses, state), (eager_losses, eager_state) = both(name, peers_of(name, 2)[peer], dropout=dropout)
    assert losses == eager_losses
    assert all(torch.equal(state[key], eager_state[key]) for key in compared(name, state))


@pytest.mark.parametrize("name", PER_SAMPLE)
@pytest.mark.parametrize("peer", ["accumulate-2", "accumulate-4", "accumulate-4+checkpoint-3"])
def test_accumulation_is_equal_up_to_the_order_of_sums(name, peer):
    (losses, state), (eager_losses, eager_state) = both(
        name, peers_of(name, 4)[peer], batch=4, dtype=torch.float64
    )
    torch.testing.assert_close(losses, eager_losses)
    torch.testing.assert_close(state, eager_state, rtol=1e-5, atol=1e-7)


def test_a_mapping_is_split_and_what_is_no_sample_goes_to_every_chunk():
    def target() -> Target:
        torch.manual_seed(0)
        model = torch.nn.Linear(3, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        batch = {"x": torch.randn(5, 3), "mask": {"y": torch.ones(5)}, "scale": torch.tensor(2.0), "power": 2}
        return Target(model, loss_fn, optimizer, batch)

    def loss_fn(model, *, x, mask, scale, power):
        out = model(x)
        return (scale * out.squeeze(1) * mask["y"]).pow(power).mean(), {"out": out}

    peers = catalog((torch.nn.Linear,), 5)
    one, two = target(), target()
    torch.testing.assert_close(peers["accumulate-2"](one)(), peers["eager"](two)())
    torch.testing.assert_close(one.model.state_dict(), two.model.state_dict())


def test_uneven_chunks_are_weighted():
    (losses, _), (eager_losses, _) = both("bert", peers_of("bert", 3)["accumulate-2"], batch=3)
    torch.testing.assert_close(losses, eager_losses)


@pytest.mark.parametrize("budget", [1.0, 0.1])
def test_compiled_step_is_equal(budget):
    def peer(target: Target) -> Step:
        return compiled(target, budget, backend="aot_eager_decomp_partition")

    (losses, state), (eager_losses, eager_state) = both("bert", peer)
    torch.testing.assert_close(losses, eager_losses)
    torch.testing.assert_close(state, eager_state, rtol=1e-4, atol=1e-5)


def test_each_compiled_step_keeps_to_its_own_budget():
    """One process compiles the same code under two budgets."""

    def peak(budget):
        target = build("bert", "tiny", batch=32)
        step = compiled(target, budget, backend="aot_eager_decomp_partition")
        return peak_bytes(step, resident=resident_bytes(target.model, target.optimizer, target.batch))

    first, lower, again = (peak(budget).peak_bytes for budget in (1.0, 0.3, 1.0))
    assert lower < first == again


def test_nested_blocks_are_wrapped_once():
    model = build("unet", "tiny").model
    names = [type(block).__name__ for block in outermost(model, block_classes("unet"))]
    assert names == ["TwoConv"] + ["Down"] * 4 + ["UpCat"] * 4


def test_catalog_ends_at_one_sample():
    assert chunk_counts(1) == []
    assert chunk_counts(16) == [2, 4, 8, 16]
    assert chunk_counts(10) == [2, 4, 8, 10]


def test_more_chunks_than_samples():
    with pytest.raises(UsageError, match="more chunks than samples") as error:
        peers_of("bert", 8)["accumulate-8"](build("bert", "tiny", batch=4))
    assert str(error.value) == "bench: more chunks than samples\n  expected: at most 4\n  got: 8"


def test_no_optimizer():
    model, loss_fn, _, batch = build("bert", "tiny")
    with pytest.raises(UsageError, match="a peer needs an optimizer"):
        peers_of("bert", 4)["eager"](Target(model, loss_fn, None, batch))
