"""What is said about problems, solutions and capacities that cannot be."""

import json
from dataclasses import replace

import numpy as np
import pytest

from peakfold.cli.failures import guarded
from peakfold.cli.main import app
from peakfold.errors import InfeasibleError, PlanError, UsageError
from peakfold.plan.memory import Bound, Buffer, Problem, check_placement, lower_bound, plan, read_problem

HEADER = "id,lower,upper,size\n"
BAD = [
    ("", "the problem is empty", "row 1"),
    (HEADER, "the problem is empty", "row 1"),
    ("a,0,1,5\n", "no column id, lower, upper, size", "row 1"),
    ("id,lower,size\na,0,5\n", "no column upper", "row 1"),
    ("id,lower,lower,upper,size\na,0,0,1,5\n", "the column lower is there twice", "row 1"),
    (HEADER + "a,0,1\n", "the row is short", "row 2, column size"),
    (HEADER + "a,0,1,5\nb,0,1,0\n", "the size is not positive", "row 3, column size"),
    (HEADER + "a,0,1,-5\n", "the size is not positive", "row 2, column size"),
    (HEADER + "a,0,1,five\n", "this is not a whole number", "row 2, column size"),
    (HEADER + "a,0,1,1.5\n", "this is not a whole number", "row 2, column size"),
    (HEADER + "a,0,1,\n", "this is not a whole number", "row 2, column size"),
    (HEADER + "\na,3,3,5\n", "the lifetime is empty", "row 3, column upper"),
    (HEADER + "a,3,2,5\n", "the lifetime is empty", "row 2, column upper"),
    (
        HEADER + "a,0,1,5\nb,0,1,5\na,1,2,5\n",
        "the id 'a' is used twice, first by row 2",
        "row 4, column id",
    ),
    (HEADER + ",0,1,5\n", "the id is missing", "row 2, column id"),
    (HEADER + "a,0,1,9223372036854775808\n", "the size overflows", "row 2, column size"),
    (HEADER + "a,0,1,4611686018427387903\nb,0,1,5\n", "the sum of the sizes overflows", "row 3, column size"),
    (HEADER + "a,-9223372036854775809,1,5\n", "the lower overflows", "row 2, column lower"),
    (HEADER + "a,0,1," + "9" * 40 + "\n", "the size overflows", "row 2, column size"),
    (HEADER + "a,0,1," + "9" * 5000 + "\n", "the size overflows", "row 2, column size"),
    (HEADER + "a,-" + "9" * 5000 + ",1,5\n", "the lower overflows", "row 2, column lower"),
    (
        "id,lower,upper,size,alignment\na,0,1,5,3\n",
        "the alignment is not a power of two",
        "row 2, column alignment",
    ),
    (
        "id,lower,upper,size,alignment\na,0,1,5,0\n",
        "the alignment is not a power of two",
        "row 2, column alignment",
    ),
    ("id,lower,upper,size,offset\na,0,1,5,-1\n", "the offset is out of range", "row 2, column offset"),
    (
        "id,lower,upper,size,alignment\na,0,1,5,4611686018427387904\n",
        "the alignment overflows",
        "row 2, column alignment",
    ),
    (HEADER + "a,0,1,5\0\n", "this is not a whole number", "row 2, column size"),
    (HEADER + 'a,0,1,"5\n', "this is not CSV", "row 2"),
    (HEADER + "a,0,1,5\nb,0,1,5,,7\n", "the row is long", "row 3"),
    (b"\xff\xfe\x00PNG\x00", "this is not CSV", "row 1"),
    (HEADER.encode() + b"a,0,1,5\nb,\xff,1,5\n", "this is not CSV", "row 3"),
]


def run(*arguments):
    return guarded(app, [str(argument) for argument in arguments])


@pytest.mark.parametrize(("content", "what", "where"), BAD)
def test_a_bad_problem_is_refused_with_its_row(content, what, where, tmp_path, capsys):
    file = tmp_path / "p.csv"
    file.write_bytes(content if isinstance(content, bytes) else content.encode())
    assert run("plan", file, "-o", tmp_path / "s.csv") == 2
    message = capsys.readouterr().err
    assert message.startswith(f"memory: {what}\n  at: {file}")
    assert where in message.splitlines()[1]
    assert "expected: " in message
    assert "got: " in message
    assert "next: " in message
    assert not (tmp_path / "s.csv").exists()


def test_a_missing_problem_is_refused(tmp_path, capsys):
    assert run("plan", tmp_path / "none.csv") == 2
    assert "the problem cannot be read" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("content", "what"),
    [(None, "cannot be read"), ("", "is empty"), (HEADER, "is empty")],
)
def test_what_is_wrong_with_a_solution_is_not_said_of_the_problem(content, what, tmp_path, capsys):
    problem, solution = tmp_path / "p.csv", tmp_path / "s.csv"
    problem.write_text(HEADER + "a,0,1,5\n")
    if content is not None:
        solution.write_text(content)
    assert run("check", problem, solution) == 2
    assert capsys.readouterr().err.startswith(f"memory: the solution {what}\n  at: {solution}")


def test_a_solution_that_cannot_be_written_is_refused(tmp_path, capsys):
    file = tmp_path / "p.csv"
    file.write_text(HEADER + "a,0,1,5\n")
    assert run("plan", file, "-o", tmp_path / "none" / "s.csv") == 2
    assert "the solution cannot be written" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("capacity", "what", "where"),
    [
        (7, "the capacity is below the largest buffer", "buffer b, row 3 (2 of 3)"),
        (
            12,
            "the capacity is below the lower bound",
            "time 1, where 2 buffers are live, the largest: buffer b, row 3: 8, ",
        ),
    ],
)
def test_a_capacity_that_no_arena_can_have(capacity, what, where, tmp_path, capsys):
    file = tmp_path / "p.csv"
    file.write_text(HEADER + "a,0,2,5\nb,1,3,8\nc,2,4,2\n")
    figures = tmp_path / "figures.json"
    args = ("--capacity", capacity, "-o", tmp_path / "s.csv", "--json", figures)
    assert run("plan", file, *args) == 3
    message = capsys.readouterr().err
    assert f"{what}: proved" in message
    assert where in message
    assert "best arena 13 bytes; lower bound 13 bytes" in message
    assert "next: raise --capacity to 13, for which there is a placement" in message
    found = json.loads(figures.read_text())
    assert (found["arena"], found["lower_bound"], found["status"]) == (13, 13, "infeasible")
    assert not (tmp_path / "s.csv").exists()
    assert run("plan", file, "--capacity", 13, "-o", tmp_path / "s.csv") == 0


def test_the_library_keeps_the_bound_in_the_error():
    with pytest.raises(InfeasibleError) as caught:
        plan(Problem((Buffer("a", 0, 2, 5), Buffer("b", 1, 3, 8))), capacity=12)
    assert caught.value.lower_bound_bytes == 13


def test_proved_infeasible_says_so_with_the_best_arena_and_the_bound(tmp_path, capsys):
    file = tmp_path / "p.csv"
    file.write_text("id,lower,upper,size,alignment\na,0,2,3,4\nb,1,3,3,4\nc,0,3,3,4\n")
    assert run("plan", file, "--capacity", 10, "--json", "-", "-o", tmp_path / "s.csv") == 3
    captured = capsys.readouterr()
    assert "no arena of this capacity holds the buffers: proved" in captured.err
    assert "best arena 11 bytes; lower bound 11 bytes" in captured.err
    figures = json.loads(captured.out)
    assert (figures["status"], figures["arena"], figures["lower_bound"]) == ("infeasible", 11, 11)
    assert "raise --capacity to 11, for which there is a placement" in captured.err
    assert run("plan", file, "--capacity", 11) == 0
    assert not (tmp_path / "s.csv").exists()


@pytest.mark.parametrize(
    ("option", "value"),
    [("--capacity", "0"), ("--capacity", "-4"), ("--time-budget", "0"), ("--time-budget", "nan")],
)
def test_options_out_of_range(option, value, tmp_path, capsys):
    file = tmp_path / "p.csv"
    file.write_text(HEADER + "a,0,1,5\n")
    assert run("plan", file, option, value) == 2
    message = capsys.readouterr().err
    assert f"at: {option}" in message
    assert "next: " in message


TWO = Problem((Buffer("a", 0, 2, 5), Buffer("b", 1, 3, 8)))
PROBLEM = HEADER + "a,0,2,5\nb,1,3,8\n"
SOLVED = "id,lower,upper,size,offset\n"


@pytest.mark.parametrize(
    ("rows", "what", "where"),
    [
        (
            "a,0,2,5,0\n\nb,1,3,8,4\n",
            "two live buffers overlap",
            "buffer a, row 2 and buffer b, row 4, both live at 1",
        ),
        ("a,0,2,5,0\n", "the solution is for another problem", "buffer b, row 3 of the problem"),
        (
            "b,1,3,9,5\na,0,2,5,0\n",
            "the solution is for another problem",
            "buffer b, row 2 of the solution",
        ),
        (
            "a,0,2,5,0\nb,1,3,8,5\nc,1,3,8,20\n",
            "the solution is for another problem",
            "buffer c, row 4 of the solution",
        ),
    ],
)
def test_a_wrong_solution_is_named(rows, what, where, tmp_path, capsys):
    problem, solution = tmp_path / "p.csv", tmp_path / "s.csv"
    problem.write_text(PROBLEM)
    solution.write_text(SOLVED + rows)
    assert run("check", problem, solution) == 2
    message = capsys.readouterr().err
    assert f"check: {what}\n  at: {where}" in message
    assert all(label in message for label in ("expected: ", "got: ", "next: "))


ALIGNED = "id,lower,upper,size,alignment"


@pytest.mark.parametrize(
    ("columns", "rows", "code"),
    [
        ("id,lower,upper,size,offset", ("a,0,2,5,0", "b,1,3,8,16"), 0),
        (ALIGNED + ",offset", ("a,0,2,5,1,0", "b,1,3,8,16,16"), 0),
        (ALIGNED + ",offset", ("a,0,2,5,2,0", "b,1,3,8,16,16"), 2),
        (ALIGNED + ",offset", ("a,0,2,5,2,0", "b,1,3,8,1,16"), 2),
        (ALIGNED + ",offset", ("a,0,2,5,1,0", "b,1,3,8,8,16"), 2),
    ],
)
def test_alignments_of_a_solution_are_those_of_its_problem(columns, rows, code, tmp_path, capsys):
    problem, solution = tmp_path / "p.csv", tmp_path / "s.csv"
    problem.write_text(ALIGNED + "\na,0,2,5,1\nb,1,3,8,16\n")
    solution.write_text("\n".join((columns, *rows)) + "\n")
    assert run("check", problem, solution) == code
    assert ("the solution is for another problem" in capsys.readouterr().err) == (code != 0)


def test_an_illegal_solution_is_illegal_in_the_json_too(tmp_path, capsys):
    problem, solution = tmp_path / "p.csv", tmp_path / "s.csv"
    problem.write_text(PROBLEM)
    solution.write_text(SOLVED + "a,0,2,5,0\nb,1,3,8,4\n")
    assert run("check", problem, solution, "--json", "-") == 2
    captured = capsys.readouterr()
    found = json.loads(captured.out)
    assert (found["arena"], found["lower_bound"], found["status"]) == (None, 13, "illegal")
    assert found["fault"]["what"] == "two live buffers overlap"
    assert found["fault"]["got"] == "[0, 5) and [4, 12)"
    assert "two live buffers overlap" in captured.err
    solution.write_text(SOLVED + "a,0,2,5,0\nb,1,3,8,5\n")
    assert run("check", problem, solution, "--json", "-") == 0
    assert json.loads(capsys.readouterr().out) == {
        "arena": 13,
        "lower_bound": 13,
        "status": "legal",
        "fault": None,
    }


def test_leading_zeros_are_no_overflow(tmp_path):
    file = tmp_path / "p.csv"
    file.write_text(HEADER + f"a,-{'0' * 5000}3,{'0' * 50},{'0' * 5000}8\n")
    assert read_problem(file).buffers == (Buffer("a", -3, 0, 8),)


@pytest.mark.parametrize("name", ["\x1b[31mred", "bell\x07", "\x9b31m", "del\x7f", "back\rhome"])
def test_no_control_character_of_a_file_reaches_the_terminal(name, tmp_path, capsys):
    file = tmp_path / "p.csv"
    for row in (f"{name},0,1,5\n{name},0,1,5\n", f"{name},0,1,x\n", f"a,0,1,{name}\n", f"{name},0\n"):
        file.write_text(HEADER + row, encoding="utf-8", newline="")
        run("plan", file)
        message = capsys.readouterr().err
        assert all(letter.isprintable() for letter in message.replace("\n", ""))


def test_a_solution_without_offsets(tmp_path, capsys):
    (tmp_path / "p.csv").write_text(PROBLEM)
    assert run("check", tmp_path / "p.csv", tmp_path / "p.csv") == 2
    message = capsys.readouterr().err
    assert "the solution has no offset here" in message
    assert "buffer a, row 2, column offset" in message


def test_the_checker_names_alignment_and_the_end():
    problem = Problem((Buffer("a", 0, 1, 8, alignment=16),))
    with pytest.raises(PlanError, match="an offset is not aligned"):
        check_placement(problem.placed([8]))
    with pytest.raises(PlanError, match="a buffer ends outside the arena"):
        check_placement(problem.placed([16]), arena=20)


def test_the_library_refuses_what_is_no_problem():
    with pytest.raises(PlanError, match="the problem is empty"):
        Problem(())
    with pytest.raises(PlanError, match="the size is not positive"):
        Problem((Buffer("a", 0, 1, 0),))


WHOLE = {"lower": 0, "upper": 1, "size": 5, "alignment": 1, "offset": 0}


@pytest.mark.parametrize("column", WHOLE)
@pytest.mark.parametrize("number", [1.0, "1", True, float("nan")])
def test_the_library_takes_whole_numbers_alone(column, number):
    with pytest.raises(PlanError, match=f"the {column} is not a whole number"):
        Problem((Buffer("a", **{**WHOLE, column: number}),))
    assert Problem((Buffer("a", **{**WHOLE, "size": np.int64(5)}),)).buffers[0].size == 5


KINDS = (np.int8, np.int16, np.int32, np.int64, np.uint8, np.uint16, np.uint32, np.uint64)


@pytest.mark.parametrize("kind", KINDS)
def test_whole_numbers_of_numpy_do_not_wrap_around(kind):
    most = min(int(np.iinfo(kind).max), 2**60)
    size = kind(most)
    rows = [(kind(0), kind(2), size, kind(1)), (kind(1), kind(3), size, kind(1))]
    problem = Problem(tuple(Buffer(str(i), *row) for i, row in enumerate(rows)))
    kinds = {type(n) for b in problem.buffers for n in (b.lower, b.upper, b.size, b.alignment)}
    assert kinds == {int}
    assert lower_bound(problem) == Bound(2 * most, 1, (0, 1))
    found = plan(problem, seed=kind(3))
    assert (found.arena, found.lower_bound, found.status) == (2 * most, 2 * most, "optimal")
    with pytest.raises(InfeasibleError, match=f"{2 * most} bytes or more"):
        plan(problem, capacity=size)
    placed = Problem(tuple(replace(b, offset=kind(most * i)) for i, b in enumerate(problem.buffers)))
    assert check_placement(placed) == 2 * most
    with pytest.raises(PlanError, match="ends outside the arena"):
        check_placement(placed, arena=size)
    with pytest.raises(PlanError, match="two live buffers overlap"):
        check_placement(problem.placed([size, kind(most - 1)]))


def test_a_sum_of_whole_numbers_of_numpy_overflows_nowhere():
    with pytest.raises(PlanError, match="the sum of the sizes overflows"):
        Problem(tuple(Buffer(str(i), 0, 2, np.int64(2**62 - 1)) for i in range(5)))
    with pytest.raises(PlanError, match="the size overflows"):
        Problem((Buffer("a", 0, 2, np.uint64(2**64 - 1)),))


@pytest.mark.parametrize("truth", [True, np.True_])
def test_truth_values_are_no_numbers(truth):
    with pytest.raises(PlanError, match="the size is not a whole number"):
        Problem((Buffer("a", 0, 1, truth),))
    with pytest.raises(PlanError, match="the offset is not a whole number"):
        TWO.placed([0, truth])
    with pytest.raises(PlanError, match="the arena is not a whole number"):
        check_placement(TWO.placed([0, 5]), arena=truth)
    with pytest.raises(UsageError, match="the capacity is not a whole number"):
        plan(TWO, truth)
    with pytest.raises(UsageError, match="the seed is not a whole number"):
        plan(TWO, seed=truth)


def test_offsets_are_not_rounded():
    with pytest.raises(PlanError, match="the offset is not a whole number"):
        TWO.placed([0, 5.5])


@pytest.mark.parametrize("offsets", [[], [0], [0, 5, 13]])
def test_the_library_refuses_offsets_of_another_problem(offsets):
    with pytest.raises(PlanError, match="the offsets are for another problem"):
        TWO.placed(offsets)


@pytest.mark.parametrize("limits", [(13.5, 1.0), ("13", 1.0), (13, float("nan")), (13, -1.0)])
def test_the_library_refuses_limits_that_are_none(limits):
    with pytest.raises(UsageError):
        plan(TWO, *limits)


def test_cells_beside_the_header_may_be_empty_and_paths_may_be_text(tmp_path):
    file = tmp_path / "p.csv"
    file.write_text(HEADER + "a,0,1,5,\n")
    assert read_problem(str(file)).buffers == (Buffer("a", 0, 1, 5),)
