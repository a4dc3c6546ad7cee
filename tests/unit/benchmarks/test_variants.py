"""Every kind of variant has a solution without slack, which it comes with."""

import random

import pytest

from benchmarks.variants import GRAIN, KINDS, Packed, cut, variant
from peakfold.plan.memory import check_placement, lower_bound

SIDE = 96 * GRAIN


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("kind", [*KINDS, "glue"])
def test_variants_fit_their_capacity_and_no_less(kind, seed):
    rng = random.Random(seed)
    bases = [cut(Packed(0, SIDE, 0, SIDE), 20, rng) for _ in range(2)]
    thinned = [rng.sample(base, 16) for base in bases]
    problem, capacity = variant(kind, thinned, SIDE, rng, seal=True)
    assert check_placement(problem, capacity) == lower_bound(problem).size == capacity
    assert capacity > SIDE if kind == "glue" else capacity == SIDE


@pytest.mark.parametrize("kind", sorted(set(KINDS) - {"unchanged", "merged"}))
def test_variants_are_other_problems(kind):
    base = cut(Packed(0, SIDE, 0, SIDE), 40, random.Random(0))
    thinned = [base[i] for i in range(0, len(base), 2)]
    changed = (KINDS[kind](thinned, SIDE, random.Random(seed)) for seed in range(8))
    assert any(set(layout) != set(thinned) for layout in changed)


def test_what_touches_along_a_side_is_merged():
    halves = [Packed(0, 4, 0, 2), Packed(0, 4, 2, 5)]
    rng = random.Random(1)
    assert any(KINDS["merged"](halves, 5, rng) == [Packed(0, 4, 0, 5)] for _ in range(20))
