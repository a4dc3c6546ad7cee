"""``peakfold check``: whether a file that peakfold wrote, or a person edited, says what is legal."""

import ast
from pathlib import Path
from typing import Annotated

import typer

from peakfold.cli import memory
from peakfold.cli.calls import read_plan
from peakfold.cli.output import Output
from peakfold.errors import PeakfoldError, PlanError, UsageError
from peakfold.ir.graph import Graph
from peakfold.ir.text import parse_graph, parse_plan

TABLE, PROGRAM = ".csv", ".py"

FileOf = Annotated[
    Path,
    typer.Argument(metavar="FILE", help="A problem (.csv), a graph (graph.txt) or a program (step.py)."),
]
OtherOf = Annotated[
    Path | None, typer.Argument(metavar="[OTHER]", help="The problem's solution, or a plan for the graph.")
]


def check_command(file: FileOf, other: OtherOf = None, json: memory.JsonOf = None) -> None:
    """Check a solution against its problem, a graph, a plan for a graph, or an emitted program."""
    if file.suffix == TABLE:
        memory.check_solution(file, _required(other), json)
    elif file.suffix == PROGRAM:
        _say(check_program(_text(file), file))
    else:
        graph = parse_graph(_text(file))
        _say(check_graph_text(graph) if other is None else check_plan_text(graph, read_plan(other)))


def check_graph_text(graph: Graph) -> str:
    """Return in words that a graph is legal.

    Raises:
        PlanError: it is not.
    """
    from peakfold.plan.check import check_graph

    wrong = check_graph(graph)
    if wrong:
        raise PlanError(stage="check", what="the graph is not legal", where=wrong[0].where, got=wrong[0].what)
    return f"legal: {len(graph.nodes)} nodes, {len(graph.inputs)} inputs, {len(graph.state)} state"


def check_plan_text(graph: Graph, text: str) -> str:
    """Return in words that a plan is legal for a graph.

    Raises:
        PlanError: it is not.
    """
    from peakfold.cost.costs import Costs
    from peakfold.plan.check import require_legal
    from peakfold.plan.fission.derive import Splitter, derived
    from peakfold.plan.fission.program import outer_plan, planned

    plan = parse_plan(text, graph, Splitter())
    found = derived(graph, plan)
    nests = list(planned(found, outer_plan(plan, found), lambda _: Costs({}, {})).nests())
    for nest in nests:
        require_legal(nest.graph, nest.schedule)
    steps = sum(len(nest.schedule.steps) for nest in nests)
    again = sum(len(nest.plan.recompute) for nest in nests)
    return f"legal: {steps} steps, {again} results computed again"


def check_program(text: str, file: Path) -> str:
    """Return in words that an emitted program is Python and has its step.

    Raises:
        PlanError: it is not.
    """
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError) as error:
        raise PlanError(
            stage="check", what="the program is not Python", where=str(file), got=str(error)
        ) from None
    names = [node.name for node in tree.body if isinstance(node, ast.FunctionDef)]
    if "step" not in names:
        raise PlanError(
            stage="check",
            what="the program has no step",
            where=str(file),
            expected="def step(..), as in step.py of --out DIR",
            got=", ".join(names) or "no function",
        )
    return f"legal: a program of {len(text.splitlines())} lines"


def _required(solution: Path | None) -> Path:
    if solution is None:
        raise UsageError(
            stage="check",
            what="the solution is missing",
            expected="check PROBLEM.csv SOLUTION.csv",
            hint="make one with peakfold plan PROBLEM.csv -o SOLUTION.csv",
        )
    return solution


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise _unreadable(file, error) from None


def _unreadable(file: Path, error: OSError | UnicodeDecodeError) -> PeakfoldError:
    reason = error.strerror if isinstance(error, OSError) else None
    return UsageError(
        stage="check",
        what="the file cannot be read",
        where=str(file),
        expected="a problem (.csv), a graph (graph.txt) or a program (step.py)",
        got=reason or type(error).__name__,
    )


def _say(line: str) -> None:
    Output().tables.print(line, markup=False, highlight=False, soft_wrap=True)
