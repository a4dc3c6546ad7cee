"""Budgets of arenas a little below what a plan needs: another plan is looked for, not the same one again."""

import pytest
import torch
from torch import nn

import peakfold


class Blocks(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 16, 3, padding=1), nn.Conv2d(16, 16, 3, padding=1)
        self.norm, self.wide = nn.BatchNorm2d(16), nn.Linear(256, 64)
        self.scale, self.out = nn.LayerNorm(64), nn.Linear(64, 10)

    def forward(self, x):
        x = torch.relu(self.norm(self.first(x)))
        x = torch.relu(self.second(x)) + x
        x = nn.functional.adaptive_avg_pool2d(x, 4).flatten(1)
        return self.out(torch.relu(self.scale(self.wide(x))))


def arena_of(memory):
    torch.manual_seed(0)
    model = Blocks()
    batch = (torch.randn(16, 3, 32, 32), torch.randint(0, 10, (16,)))
    step = peakfold.optimize_step(
        model,
        lambda m, x, y: nn.functional.cross_entropy(m(x), y),
        torch.optim.Adam(model.parameters()),
        batch,
        memory=f"arena:{memory}",
        iterations=300,
        verify=False,
    )
    return step.report.arena.nbytes


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("PEAKFOLD_CACHE", str(tmp_path))


def test_a_budget_one_byte_below_an_arena_is_kept_where_smaller_ones_are():
    largest = arena_of(1 << 30)
    smaller = arena_of(largest * 9 // 10)
    for budget in (largest - 1, largest - 64, smaller, (smaller + largest) // 2):
        assert arena_of(budget) <= budget
