"""What the command line optimizes, writes, and refuses where a program is not equal."""

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType

from peakfold.cli import calls
from peakfold.cli.output import Output
from peakfold.cli.progress import Reporter
from peakfold.errors import NotEqualError
from peakfold.report.model import Report
from peakfold.report.terminal import render_terminal
from peakfold.report.units import error_text

Limits = tuple[str | int | None, str | float | None, float, int | None]
"""Memory, latency, seconds of searching and iterations."""
_FAULT = "this is a fault of peakfold: please report it with plan.txt and graph.txt of --out DIR"
AFTER_EDITS = (
    "if step.py, or what the target returns, was changed since, optimize again; "
    "if not, this is a fault of peakfold: please report it with the files of {}"
)


def optimize_and_tell(
    chosen: dict[str, str],
    limits: Limits,
    plan: str | None,
    output: Output,
    files: Mapping[str, str | None] = MappingProxyType({}),
    verify: str = "once",
) -> None:
    """Optimize, write what was asked for, and print the report.

    Args:
        chosen: the options that build the program.
        limits: of memory, time and the search.
        plan: text of a plan to apply.
        output: where the report goes.
        files: of a saved search.
        verify: ``"again"`` to prove also what was proved before.

    Raises:
        NotEqualError: the program does not compute what the original does.
    """
    output.check()
    report = run(chosen, limits, plan, output, files, verify=verify)
    output.write(report)
    render_terminal(report, output.tables)
    output.tell()
    require_equal(report)


def run(
    chosen: dict[str, str],
    limits: Limits,
    plan: str | None,
    output: Output,
    files: Mapping[str, str | None] = MappingProxyType({}),
    source: str | None = None,
    verify: str = "once",
) -> Report:
    """Optimize with progress shown; ``source`` is the program to run where a folder has it."""
    from peakfold.pipeline.request import request

    memory, latency, time_budget, iterations = limits
    asked = request(
        memory=memory,
        latency=latency,
        time_budget=time_budget,
        iterations=iterations,
        seed=int(chosen["seed"]),
        rng=chosen["rng"],
        verify=verify,
        device=chosen["device"],
        plan=plan,
        name=chosen["target"],
        rewrite=chosen.get("rewrite") != "no",
        offload=chosen.get("offload"),
        host_memory=chosen.get("host_memory"),
        fission=chosen.get("fission") == "yes",
        rounding=chosen.get("rounding") == "yes",
        keep_constants=chosen.get("keep_constants") == "yes",
        arena_holds=chosen.get("arena_holds", "step"),
        resume=files.get("resume"),
        save_search=files.get("save_search"),
    )
    with Reporter(output.progress) as progress, output.alone():
        report = calls.optimize(chosen, replace(asked, source=source), progress)
    return replace(report, request=chosen)


def require_equal(report: Report, hint: str = _FAULT) -> None:
    """Refuse a report of a program that is not equal.

    Raises:
        NotEqualError: it computes something else.
    """
    if report.equal.ok is not False:
        return
    raise NotEqualError(
        stage="verify",
        what=f"the optimized {report.target} does not compute what the original does",
        expected=f"an error of at most {error_text(report.equal.bound)}",
        got=error_text(report.equal.max_error),
        hint=hint,
    )
