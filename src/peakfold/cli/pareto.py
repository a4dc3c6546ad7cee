"""``peakfold pareto``: the least bytes at every time."""

import json as text
from dataclasses import asdict
from typing import TYPE_CHECKING

from rich.table import Table
from rich.text import Text

from peakfold.cli import calls
from peakfold.cli.output import Output
from peakfold.cli.progress import Reporter

if TYPE_CHECKING:
    from peakfold.pipeline.request import Request

HEADINGS = ("memory", "time", "measured", "measured", "", "in parts")


def pareto(chosen: dict[str, str], asked: "Request", measure: bool, in_arena: bool, output: Output) -> None:
    """Print the front of a target.

    Args:
        chosen: what to load, as of `calls.load`.
        asked: how it is searched.
        measure: run points of it.
        in_arena: run each in an arena of its own.
        output: where it goes.
    """
    from peakfold.pipeline import pareto as fronts
    from peakfold.pipeline.task import Task

    output.check()
    with Reporter(output.progress) as progress, output.alone():
        found = fronts.pareto(Task.of(calls.load(chosen)), asked, measure, progress, in_arena)
    output.write_json(text.dumps(asdict(found), indent=2) + "\n")
    table = Table(title=f"front of {found.target}, ratios to eager", title_justify="left")
    for heading in HEADINGS:
        table.add_column(heading, justify="left" if heading == "in parts" else "right")
    for row in fronts.table_rows(found):
        table.add_row(*(Text(cell) for cell in row))
    output.tables.print(table)
    off = found.errors
    if off is not None:
        within = f"bytes within {off.memory:.1%}, time within {off.latency:.1%}"
        corrected = f"{off.corrected_latency:.1%} once corrected by the plan that drops nothing"
        said = f"predicted against measured, {off.points} points: {within}, {corrected}"
        output.tables.print(Text(said))
    for note in found.notes:
        output.tables.print(Text(f"note: {note}"))
