"""Plans of the public problems, of chains and of what is small enough to see; files and commands."""

import json
from pathlib import Path

import numpy as np
import pytest
from tests.unit.memory.brute import legal
from tests.unit.memory.cut import backward, cut

from peakfold.cli.failures import guarded
from peakfold.cli.main import app
from peakfold.plan.memory import (
    Bound,
    Buffer,
    Problem,
    check_placement,
    exact,
    lower_bound,
    match,
    parts,
    plan,
    read_problem,
    read_solution,
    search,
    write_solution,
)
from peakfold.plan.memory.sections import columns, tables
from peakfold.plan.memory.tables import BACKWARD, DEAD, FORWARD, WIDE

PUBLIC = Path(__file__).parents[2] / "data" / "minimalloc"
CAPACITY = 1_048_576
BOUNDS = {"A": CAPACITY, "C": 1_039_360, "E": CAPACITY, "G": CAPACITY, "J": 989_184}
TIGHT = Problem((Buffer("a", 0, 2, 4), Buffer("b", 1, 3, 4), Buffer("c", 2, 4, 4), Buffer("d", 0, 4, 2)))
CROSSED = Problem(
    tuple(
        Buffer(n, *row)
        for n, row in zip(
            "abcdef", [(0, 2, 1), (1, 4, 2), (3, 6, 3), (5, 8, 4), (0, 8, 1), (2, 7, 2)], strict=True
        )
    )
)


def run(*arguments):
    return guarded(app, [str(argument) for argument in arguments])


@pytest.mark.parametrize("name", sorted(BOUNDS))
def test_public_problems_fit_their_capacity(name):
    problem = read_problem(PUBLIC / f"{name}.1048576.csv")
    assert lower_bound(problem).size == BOUNDS[name]
    placement = plan(problem, capacity=CAPACITY, time_budget=240)
    assert placement.fits
    assert legal(problem, placement.offsets)
    assert check_placement(problem.placed(placement.offsets), CAPACITY) == placement.arena <= CAPACITY


def test_public_problem_without_capacity_reaches_the_bound():
    placement = plan(read_problem(PUBLIC / "C.1048576.csv"), time_budget=240)
    assert (placement.arena, placement.status) == (BOUNDS["C"], "optimal")


@pytest.mark.parametrize("name", ["C", "G", "J"])
def test_public_problems_fit_backward_too(name):
    problem = backward(read_problem(PUBLIC / f"{name}.1048576.csv"))
    placement = plan(problem, capacity=CAPACITY, time_budget=240)
    assert placement.fits
    assert check_placement(problem.placed(placement.offsets), CAPACITY) == placement.arena


@pytest.mark.parametrize(("count", "seed"), [(150, 0), (150, 1), (250, 2), (350, 3), (450, 4)])
def test_rectangles_that_were_cut_are_put_together_without_slack(count, seed):
    problem = cut(count, seed)
    assert lower_bound(problem).size == CAPACITY
    placement = plan(problem, capacity=CAPACITY, time_budget=240)
    assert check_placement(problem.placed(placement.offsets), CAPACITY) == CAPACITY
    assert placement.status == "optimal"


@pytest.mark.parametrize("path", sorted(PUBLIC.glob("*.csv")), ids=lambda path: path.stem[0])
def test_without_any_time_there_is_a_legal_placement_and_its_gap(path):
    problem = read_problem(path)
    placement = plan(problem, time_budget=1e-9)
    assert check_placement(problem.placed(placement.offsets), placement.arena) == placement.arena
    assert placement.gap == placement.arena / placement.lower_bound - 1 < 0.5


def test_parts_of_which_one_is_hard_are_all_searched_to_the_end(monkeypatch):
    monkeypatch.setattr(parts, "FIRST_TURN", 1)
    hard = cut(60, 5)
    easy = [Buffer(f"x{i}", 1000 + 2 * i, 1002 + 2 * i, 64 * (i + 1)) for i in range(30)]
    problem = Problem((*hard.buffers, *easy))
    placement = plan(problem, capacity=CAPACITY, time_budget=240)
    assert placement.status == "optimal"
    assert check_placement(problem.placed(placement.offsets), CAPACITY) == CAPACITY


def training(layers, per=10, seed=0):
    """Lifetimes like those of a training step: kept activations, temporaries, gradients of weights."""
    random = np.random.default_rng(seed)
    sizes = [64 * (1 + int(x)) for x in np.exp(random.normal(8, 2, size=64))]
    end = 2 * layers * per + 2 * per
    rows = []
    for layer in range(layers):
        forward, backward = layer * per, end - (layer + 2) * per
        for j in range(per):
            size, short = sizes[int(random.integers(64))], 1 + int(random.integers(per))
            kept = random.random() < 0.4
            rows.append((forward + j, backward + per - j if kept else forward + j + short, size))
            rows.append((backward + j, backward + j + short, size))
        rows.append((backward + 1, end, sizes[layer % 64]))
    return Problem(tuple(Buffer(str(i), *row, alignment=64) for i, row in enumerate(rows)))


@pytest.mark.parametrize(("layers", "buffers"), [(10, 210), (95, 1_995)])
def test_training_steps_are_planned_within_half_a_percent(layers, buffers):
    problem = training(layers)
    assert len(problem.buffers) == buffers
    placement = plan(problem, time_budget=20)
    check_placement(problem.placed(placement.offsets), placement.arena)
    assert placement.gap <= 0.005


def test_a_large_training_step_is_planned_within_half_a_percent():
    problem = training(950)
    placement = plan(problem, time_budget=2)
    assert len(problem.buffers) == 19_950
    check_placement(problem.placed(placement.offsets), placement.arena)
    assert placement.gap <= 0.005


@pytest.mark.parametrize(("is_limit", "above"), [(True, 8), (False, 32)])
def test_a_long_search_for_a_capacity_hardly_aims_above_it(is_limit, above):
    best = search.Best(np.zeros(1, np.int64), 200, 100, 100, is_limit, np.ones(1, np.int64))
    fractions = search._fractions(best, 0)
    early, late = ([next(fractions) for _ in range(64)] for _ in range(2))
    assert sum(fraction > 0 for fraction in early) == 32
    assert sum(fraction > 0 for fraction in late) == above


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("way", [FORWARD, BACKWARD, WIDE])
def test_one_search_decides_eight_aligned_buffers(seed, way):
    random = np.random.default_rng(seed)
    rows = [(int(at), int(at + width), int(size)) for at, width, size in random.integers(1, 8, (8, 3))]
    problem = Problem(tuple(Buffer(str(i), *row, 64) for i, row in enumerate(rows)))
    table = columns(problem)
    memory = exact.Memory(np.zeros(len(table.total)), way)
    forever = exact.Clock(float("inf"))
    capacity = plan(problem).arena - 1
    assert exact.attempt(tables(table), table, capacity, memory, forever)[0] == DEAD


def test_the_bound_says_where_and_what():
    assert lower_bound(TIGHT) == Bound(size=10, time=1, live=(0, 1, 3))


def test_solutions_are_read_as_written(tmp_path):
    placement = plan(CROSSED)
    write_solution(tmp_path / "s.csv", CROSSED, placement.offsets)
    assert read_solution(tmp_path / "s.csv") == CROSSED.placed(placement.offsets)
    assert match(CROSSED, read_solution(tmp_path / "s.csv")) == CROSSED.placed(placement.offsets)
    assert [p.name for p in tmp_path.iterdir()] == ["s.csv"]


def test_solutions_are_matched_by_id_and_keep_the_alignment_of_the_problem(tmp_path):
    problem = Problem((Buffer("x", 0, 2, 8, 16), Buffer("y", 1, 3, 8, 16)))
    (tmp_path / "s.csv").write_text("id,lower,upper,size,offset\ny,1,3,8,16\nx,0,2,8,0\n")
    placed = match(problem, read_solution(tmp_path / "s.csv"))
    assert [b.offset for b in placed.buffers] == [0, 16]
    assert check_placement(placed) == 24


def test_columns_may_come_in_any_order_with_blank_lines(tmp_path):
    (tmp_path / "p.csv").write_text(
        "\ufeffsize, upper,lower,id,alignment,note\n8,2,0,x,64,hello\n\n4,3,1,y,,\n"
    )
    assert read_problem(tmp_path / "p.csv") == Problem((Buffer("x", 0, 2, 8, 64), Buffer("y", 1, 3, 4)))


def test_plan_and_check_commands(tmp_path, capsys):
    problem, solution = PUBLIC / "G.1048576.csv", tmp_path / "s.csv"
    assert run("plan", problem, "--capacity", CAPACITY, "-o", solution, "--json", "-") == 0
    figures = json.loads(capsys.readouterr().out)
    assert list(figures) == ["arena", "lower_bound", "seconds", "status"]
    assert (figures["arena"], figures["lower_bound"], figures["status"]) == (CAPACITY, CAPACITY, "optimal")
    assert run("check", problem, solution) == 0
    assert "legal: 308 buffers, arena 1048576 bytes, lower bound 1048576" in capsys.readouterr().out


def test_the_same_seed_writes_the_same_bytes(tmp_path):
    problem = PUBLIC / "A.1048576.csv"
    for name in ("one", "two"):
        assert run("plan", problem, "--capacity", CAPACITY, "--time-budget", 240, "-o", tmp_path / name) == 0
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()
