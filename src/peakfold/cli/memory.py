"""``peakfold plan`` and ``peakfold check``: a CSV problem to a CSV solution, and back."""

import json as text
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from peakfold.cli.output import Output
from peakfold.errors import InfeasibleError, PlanError, UsageError
from peakfold.files import is_stdout, place_of

if TYPE_CHECKING:
    from peakfold.plan.memory import Placement

ProblemOf = Annotated[
    Path, typer.Argument(metavar="PROBLEM.csv", help="Rows id,lower,upper,size[,alignment].")
]
JsonOf = Annotated[
    str | None, typer.Option("--json", metavar="FILE|-", help="Write the figures as JSON; - is stdout.")
]


def plan_command(
    problem: ProblemOf,
    solution: Annotated[
        Path | None,
        typer.Option("-o", "--output", metavar="SOLUTION.csv|-", help="Write offsets here; - is stdout."),
    ] = None,
    capacity: Annotated[
        int | None, typer.Option("--capacity", metavar="N", help="Bytes of the arena; least when left out.")
    ] = None,
    time_budget: Annotated[
        float, typer.Option("--time-budget", metavar="S", help="Seconds of searching.")
    ] = 10.0,
    seed: Annotated[int, typer.Option("--seed", help="Of the search.", min=0)] = 0,
    json: JsonOf = None,
) -> None:
    """Give every buffer of a CSV file an offset in one arena."""
    from peakfold.plan.memory import plan, read_problem
    from peakfold.plan.memory.csvfile import solution_text

    _check_options(capacity, time_budget)
    read = read_problem(problem)
    _check_places(solution, json)
    output = Output(json, file=solution)
    output.check()
    try:
        placement = plan(read, capacity, time_budget, seed)
    except InfeasibleError as error:
        free = plan(read, None, time_budget, seed)
        output.write_json(text.dumps(_figures(free) | {"status": "infeasible"}) + "\n")
        raise _proved(error, free) from error
    if placement.fits:
        output.write_file(solution_text(read, placement.offsets))
    output.write_json(text.dumps(_figures(placement)) + "\n")
    if not placement.fits:
        raise _too_small(placement, capacity)
    _say(
        output,
        f"arena {placement.arena} bytes, lower bound {placement.lower_bound}, "
        f"{100 * placement.gap:.2f} % above it, {placement.status}",
    )


def check_solution(problem: Path, solution: Path, json: str | None) -> None:
    """Check a solution: no two live buffers overlap, alignment, and the problem is the same."""
    from peakfold.plan.memory import check_placement, lower_bound, match, read_problem, read_solution

    _check_places(None, json)
    output = Output(json)
    output.check()
    read = read_problem(problem)
    placed = read_solution(solution)
    bound = lower_bound(read).size
    try:
        arena = check_placement(match(read, placed))
    except PlanError as error:
        fault = {name: getattr(error, name) for name in ("what", "where", "expected", "got")}
        figures = {"arena": None, "lower_bound": bound, "status": "illegal", "fault": fault}
        output.write_json(text.dumps(figures) + "\n")
        raise
    figures = {"arena": arena, "lower_bound": bound, "status": "legal", "fault": None}
    output.write_json(text.dumps(figures) + "\n")
    _say(output, f"legal: {len(read.buffers)} buffers, arena {arena} bytes, lower bound {bound}")


def _check_options(capacity: int | None, time_budget: float) -> None:
    if capacity is not None and capacity <= 0:
        hint = "leave --capacity out for the least"
        raise _usage("the capacity is not positive", "--capacity", "bytes, 1 or more", str(capacity), hint)
    if not 0 < time_budget < float("inf"):
        what, hint = "the time budget is out of range", "write --time-budget 10"
        raise _usage(what, "--time-budget", "seconds above 0, and finite", str(time_budget), hint)


def _check_places(solution: Path | None, json: str | None) -> None:
    """See that a solution and its figures can be written before anything long is done."""
    from peakfold.plan.memory.csvfile import unwritable

    for name, what, kind in ((solution, "solution", "a CSV file"), (json, "figures", "a JSON file")):
        if name is None or is_stdout(name):
            continue
        try:
            os.stat(f"{place_of(Path(name)).parent}/.")
        except OSError as error:
            raise unwritable(name, error, f"the {what} cannot be written", kind) from None


def _usage(what: str, where: str, expected: str, got: str, hint: str) -> UsageError:
    return UsageError(stage="memory", what=what, where=where, expected=expected, got=got, hint=hint)


def _figures(placement: "Placement") -> dict[str, int | float | str]:
    return {
        "arena": placement.arena,
        "lower_bound": placement.lower_bound,
        "seconds": round(placement.seconds, 6),
        "status": placement.status,
    }


def _too_small(placement: "Placement", capacity: int | None) -> InfeasibleError:
    proved = placement.status == "infeasible"
    spent = f"{placement.seconds:.2g} s"
    error = InfeasibleError(
        stage="memory",
        what="no arena of this capacity holds the buffers: proved"
        if proved
        else f"no placement within the capacity was found in {spent}; one may exist",
        expected=f"{capacity} bytes or less",
        got=f"best arena {placement.arena} bytes; lower bound {placement.lower_bound} bytes",
        hint=_larger(placement) if proved else f"raise --time-budget, or {_larger(placement)}",
    )
    error.lowest_peak_bytes = placement.arena
    error.lower_bound_bytes = placement.lower_bound
    return error


def _larger(best: "Placement") -> str:
    return f"raise --capacity to {best.arena}, for which there is a placement"


def _proved(error: InfeasibleError, free: "Placement") -> InfeasibleError:
    """Return the refusal of a capacity below the bound with the best arena there is without one."""
    found = InfeasibleError(
        stage=error.stage,
        what=f"{error.what}: proved",
        where=error.where,
        expected=error.expected,
        got=f"{error.got}; best arena {free.arena} bytes; lower bound {free.lower_bound} bytes",
        hint=_larger(free),
    )
    found.lowest_peak_bytes = free.arena
    found.lower_bound_bytes = free.lower_bound
    return found


def _say(output: Output, line: str) -> None:
    output.tables.print(line, markup=False, highlight=False, soft_wrap=True)
