"""``peakfold dims``: the axes that a program can be split along."""

import json as text
from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING

from rich.table import Table
from rich.text import Text

from peakfold.cli import calls
from peakfold.cli.output import Output
from peakfold.cli.progress import Reporter
from peakfold.report.units import bytes_text

if TYPE_CHECKING:
    from peakfold.pipeline.axes import AxesOf, End

MOST_ENDS = 3
"""Kinds of operators that are printed of each axis; JSON has all."""


def dims(chosen: dict[str, str], rows: int, output: Output) -> None:
    """Print the axes of a target.

    Args:
        chosen: what to load, as of `calls.load`.
        rows: how many axes the table has; JSON has all.
        output: where it goes.
    """
    from peakfold.pipeline.axes import axes_of

    output.check()
    with Reporter(output.progress) as progress, output.alone():
        found = axes_of(calls.load(chosen), chosen["target"], progress)
    output.write_json(text.dumps(asdict(found), indent=2) + "\n")
    output.tables.print(_table(found, rows))
    left = len(found.axes) - rows
    if left > 0:
        output.tables.print(f"and {left} smaller ones; --json lists all", highlight=False)
    for line in _ends(found, rows):
        output.tables.print(line, highlight=False, markup=False)
    if found.barriers:
        output.tables.print(f"not split: {', '.join(found.barriers)}", highlight=False, markup=False)


def _ends(found: "AxesOf", rows: int) -> Iterator[str]:
    """Say where the axes of the table end, and why."""
    for row in found.axes[:rows]:
        said = [f"{end.operator} {end.why} ({_of(end)})" for end in row.ends[:MOST_ENDS]]
        left = len(row.ends) - MOST_ENDS
        said += [f"{left} more kinds"] if left > 0 else []
        if said:
            yield f"{row.name} ends where {', '.join(said)}"


def _of(end: "End") -> str:
    return end.first if end.count == 1 else f"{end.first} and {end.count - 1} more"


def _table(found: "AxesOf", rows: int) -> Table:
    table = Table(title=f"axes of {found.target}, {found.operators} operators", title_justify="left")
    table.add_column("axis")
    for heading in ("length", "operators", "tensors", "bytes"):
        table.add_column(heading, justify="right")
    for row in found.axes[:rows]:
        figures = (str(row.length), str(row.nodes), str(row.values), bytes_text(row.nbytes))
        table.add_row(Text(row.name), *figures)
    return table
