"""The search kernel against its twin in plain Python, and against brute force."""

import numpy as np
import pytest
from tests.unit.memory.brute import least_arena, legal
from tests.unit.memory.plain import Plain

from peakfold.plan.memory import Buffer, Problem, kernel, lower_bound
from peakfold.plan.memory.sections import columns, tables
from peakfold.plan.memory.tables import BACKWARD, DEAD, FORWARD, FOUND, LIMIT, WIDE, Order, start

WAYS = (FORWARD, BACKWARD, WIDE)
NAMES = {FOUND: "found", DEAD: "dead", LIMIT: "limit"}


def random_problem(seed, count=7, alignments=(1,)):
    random = np.random.default_rng(seed)
    buffers = []
    for i in range(count):
        lower, width, size = (int(x) for x in random.integers([0, 1, 1], [8, 7, 12]))
        buffers.append(Buffer(str(i), lower, lower + width, size, int(random.choice(alignments))))
    return Problem(tuple(buffers))


def random_order(seed, count, most_lead):
    random = np.random.default_rng(seed)
    return Order(random.permutation(count).astype(np.int64), random.integers(0, most_lead + 1, count))


@pytest.mark.parametrize("seed", range(25))
@pytest.mark.parametrize("lead", [0, 10])
@pytest.mark.parametrize("alignments", [(1,), (1, 4)])
@pytest.mark.parametrize("way", WAYS)
def test_kernel_and_twin_decide_as_brute_force_does(seed, alignments, lead, way):
    early = bool(seed % 2)
    problem = random_problem(seed, alignments=alignments)
    least = least_arena(problem)
    order = random_order(seed, len(problem.buffers), lead)._replace(way=way, early=early)
    arrays = tables(columns(problem))
    for capacity in range(lower_bound(problem).size, least + 2):
        state = start(arrays)
        result = NAMES[kernel.advance(arrays, state, order, capacity, 100_000)]
        twin = Plain(problem.buffers, order, capacity)
        assert result == twin.run(100_000) == ("found" if capacity >= least else "dead")
        if result == "found":
            assert legal(problem, state.head.tolist())
            assert legal(problem, [twin.offset[i] for i in range(len(problem.buffers))])


@pytest.mark.parametrize("seed", range(20))
def test_without_dead_ends_both_place_alike(seed):
    problem = random_problem(seed, count=30, alignments=(1, 2, 8))
    order = random_order(seed, 30, 50)
    arrays = tables(columns(problem))
    state = start(arrays)
    twin = Plain(problem.buffers, order, 10_000)
    assert kernel.advance(arrays, state, order, 10_000, 31) == FOUND
    assert twin.run(31) == "found"
    assert state.head.tolist() == [twin.offset[i] for i in range(30)]


def test_a_search_can_be_interrupted_and_goes_on_alike():
    problem = random_problem(3, count=25)
    arrays, order = tables(columns(problem)), random_order(0, 25, 0)
    capacity = lower_bound(problem).size + 1
    whole, parts = start(arrays), start(arrays)
    result = kernel.advance(arrays, whole, order, capacity, 2_000)
    for _ in range(2_000):
        if kernel.advance(arrays, parts, order, capacity, 1) != LIMIT:
            break
    assert parts.counter.tolist() == whole.counter.tolist()
    assert parts.head.tolist() == whole.head.tolist()
    assert result in NAMES


def test_sections_are_the_largest_live_sets():
    problem = random_problem(5, count=40)
    arrays = tables(columns(problem))
    rows = zip(arrays.member_start[:-1], arrays.member_start[1:], strict=True)
    got = [set(arrays.member[a:b].tolist()) for a, b in rows]
    assert got == Plain(problem.buffers, random_order(0, 40, 0), 0).sections
