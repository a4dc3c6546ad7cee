"""``peakfold demo``: two real training steps in half of their memory."""

from collections.abc import Sequence
from dataclasses import replace

from rich.console import Console
from rich.text import Text

from peakfold.cli import calls
from peakfold.cli.output import Output
from peakfold.cli.progress import Reporter
from peakfold.report.folder import PAGE, contents, write_files
from peakfold.report.html import render_html
from peakfold.report.json import many_to_json
from peakfold.report.model import Report
from peakfold.report.terminal import render_many, verdict_line
from peakfold.report.words import verdicts

MODELS = ("unet", "bert")


def run_demo(output: Output, size: str, memory: str, time_budget: float) -> Sequence[Report]:
    """Optimize, run and compare each model; print one table and write one page.

    Args:
        output: where to; its folder gets the page, and a folder for each model.
        size: of the workloads.
        memory: budget of the peak.
        time_budget: seconds of searching for each.
    """
    output.check()
    console = output.tables
    reports = [_one(name, output, size, memory, time_budget) for name in MODELS]
    _write(reports, output, f"{memory} of the memory")
    render_many(reports, console)
    if output.folder is not None:
        console.print(f"the picture: {output.folder / PAGE}", markup=False, highlight=False, soft_wrap=True)
    return reports


def _one(name: str, output: Output, size: str, memory: str, time_budget: float) -> Report:
    from peakfold.pipeline.request import request

    chosen = {"target": name, "size": size, "device": "cpu", "seed": "0", "rng": "eager"}
    asked = request(memory, None, time_budget, None, 0, "eager", True, name=name)
    with Reporter(output.progress, prefix=name) as progress:
        report = replace(calls.optimize(chosen, asked, progress), request=chosen)
    _say(report, output.tables)
    return report


def _say(report: Report, console: Console) -> None:
    console.print(Text(report.target, style="bold"))
    for verdict in verdicts(report):
        console.print(verdict_line(verdict))


def _write(reports: Sequence[Report], output: Output, title: str) -> None:
    figures = many_to_json(reports)
    if output.folder is not None:
        for report in reports:
            write_files(output.folder / report.target, contents(report))
        page = render_html(reports, title)
        write_files(output.folder, {PAGE: page.encode(), "report.json": figures.encode()})
    output.write_json(figures)
