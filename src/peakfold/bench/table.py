"""The results on a terminal, or in a pipe."""

from collections.abc import Sequence

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from peakfold.bench.best import Best, best_at, best_at_peers
from peakfold.bench.rows import PEAKFOLD, Results, Row
from peakfold.report.units import bytes_text, error_text, ratio_text

LIMITS = (1.05, 1.10, 1.35)
ROWS = ("variant", "peak", "memory", "time", "predicted", "equal")
BEST = ("workload", "within the time", "peakfold", "peers", "which", "bound", "")
NUMBERS = frozenset({"peak", "memory", "time", "predicted", "peakfold", "peers", "bound"})


def render(results: Results, console: Console) -> None:
    """Print a table for each workload, and what each has at equal time."""
    for workload in results.workloads:
        rows = results.of(workload)
        console.print(_rows(workload, rows, bool(results.settings.get("arena"))))
        for row in rows:
            if row.error:
                console.print(Text(f"{row.name or workload}: {row.error}", style="yellow"))
    limits = _limits(results)
    found = [*best_at(results, limits), *best_at_peers(results)]
    if any(best.peakfold is not None for best in found):
        console.print(_best(found))
    if not results.complete:
        console.print(Text("interrupted: this is what was known by then", style="yellow"))


def _limits(results: Results) -> Sequence[float]:
    asked = results.settings.get("latency")
    return [float(limit) for limit in asked] if isinstance(asked, list | tuple) and asked else LIMITS


def _rows(workload: str, rows: Sequence[Row], in_arenas: bool) -> Table:
    where = ", peakfold in arenas" if in_arenas else ""
    table = _table(f"{workload}: memory and time over eager{where}", ROWS)
    for row in rows:
        table.add_row(
            Text(row.name, style="bold" if row.variant == PEAKFOLD else ""),
            bytes_text(row.peak_bytes),
            ratio_text(row.memory_ratio),
            ratio_text(row.latency_ratio),
            ratio_text(row.predicted_latency_ratio),
            Text("failed" if row.error else equal_word(row)),
        )
    return table


def equal_word(row: Row) -> str:
    """Return whether a row computes what eager does, in a word or two.

    Example:
        >>> equal_word(Row("w", "eager", equal=True, max_error=0.0)), equal_word(Row("w", "eager"))
        ('every bit', '-')
    """
    if row.equal is None:
        return "-"
    if row.max_error == 0:
        return "every bit"
    return f"{'to' if row.equal else 'NO,'} {error_text(row.max_error)}"


def _best(found: Sequence[Best]) -> Table:
    table = _table("The least memory within a time, over eager", BEST)
    for best in found:
        limit = f"{best.limit:.2f}x" + ("" if best.why == "limit" else f" {best.why}")
        table.add_row(
            best.workload,
            limit,
            ratio_text(best.peakfold),
            ratio_text(best.peer),
            best.of,
            ratio_text(best.bound),
            {True: "ahead", False: "NO", None: "-"}[best.reached],
        )
    return table


def _table(title: str, columns: Sequence[str]) -> Table:
    table = Table(
        title=Text(title), title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True
    )
    for column in columns:
        number = column in NUMBERS
        table.add_column(column, justify="right" if number else "left", no_wrap=True)
    return table
