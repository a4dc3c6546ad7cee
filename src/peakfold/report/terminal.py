"""The Report on a terminal, or in a pipe: no colour carries meaning alone."""

from collections.abc import Mapping, Sequence
from itertools import pairwise

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from peakfold.report.model import KINDS, Decision, Estimate, LiveTensor, Report, Timeline
from peakfold.report.units import bytes_text, ratio_text, seconds_text
from peakfold.report.words import Mood, Verdict, asked, first_decisions, verdicts

ROWS = 8
NUMBERS = (
    "bytes",
    "share",
    "eager",
    "predicted",
    "measured",
    "ratio",
    "before",
    "after",
    "costs",
    "computed again",
)
SPARKS = " ▁▂▃▄▅▆▇█"
STYLES: Mapping[Mood, str] = {"good": "green", "bad": "bold red", "open": "yellow"}
SIGNS: Mapping[Mood, str] = {"good": "ok", "bad": "NO", "open": "--"}


def render_terminal(report: Report, console: Console) -> None:
    """Print a report: the verdicts, the figures, the picture, what is live at the peak, the decisions."""
    _title(console, f"peakfold {report.target}", f"{report.device}; {asked(report.limits)}")
    for verdict in verdicts(report):
        console.print(verdict_line(verdict))
    console.print(_figures(report))
    _curves(report, console)
    console.print(_kinds(report.timelines.before, report.timelines.after))
    render_live(report.live_at_peak, console)
    _decisions(report.decisions, console)
    _notes(report.barriers, report.notes, console)
    console.print(Text(_spent(report), style="dim"))


def render_estimate(estimate: Estimate, console: Console) -> None:
    """Print what a step will take."""
    _title(console, f"peakfold estimate {estimate.target}", estimate.device)
    error = "" if estimate.peak_error is None else f" +- {estimate.peak_error:.1%}"
    console.print(Text(f"Peak   {bytes_text(estimate.eager.peak_bytes)}{error}", style="bold"))
    if estimate.eager.cpu_seconds is not None:
        error = "" if estimate.time_error is None else f" +- {estimate.time_error:.0%}"
        console.print(f"Time   {seconds_text(estimate.eager.cpu_seconds)}{error}", highlight=False)
    if estimate.basis:
        console.print(Text(f"Basis  {estimate.basis}", style="dim"))
    table = _table("At the peak", ("kind", "bytes", "share"))
    total = sum(estimate.components.values()) or 1
    for kind, nbytes in estimate.components.items():
        table.add_row(kind, bytes_text(nbytes), f"{nbytes / total:.0%}")
    console.print(table)
    render_live(estimate.live_at_peak, console)
    _notes(estimate.barriers, estimate.notes, console)


def render_live(live: Sequence[LiveTensor], console: Console, rows: int = ROWS) -> None:
    """Print the tensors that are live at the peak: where from, why kept, what freeing would cost."""
    if not live:
        return
    table = _table("Live at the peak", ("tensor, and why it is kept", "bytes", "computed again"))
    for tensor in live[:rows]:
        why = f"{tensor.source}: {tensor.why}" if tensor.source else tensor.why
        name = Text(tensor.name).append(f"\n  {why}", style="dim")
        again = tensor.freeing if tensor.recompute_seconds is None else seconds_text(tensor.recompute_seconds)
        table.add_row(name, bytes_text(tensor.nbytes), Text(again))
    rest = live[rows:]
    if rest:
        table.add_row(f"and {len(rest)} more", bytes_text(sum(tensor.nbytes for tensor in rest)), "")
    console.print(table)


def render_many(reports: Sequence[Report], console: Console) -> None:
    """Print one table of several reports, a row each."""
    columns = ("model", "eager", "predicted", "measured", "memory", "time", "equal")
    table = _table("Peak memory and time against eager", columns)
    for report in reports:
        ratio = (
            report.optimized.predicted_latency_ratio if report.latency_ratio is None else report.latency_ratio
        )
        table.add_row(
            Text(report.target),
            bytes_text(report.eager.peak_bytes),
            bytes_text(report.optimized.predicted_peak_bytes),
            bytes_text(report.optimized.peak_bytes),
            ratio_text(report.memory_ratio),
            ratio_text(ratio),
            equal_word(report),
        )
    console.print(table)


def equal_word(report: Report) -> str:
    """Return one or two words on equality."""
    if report.equal.ok is None:
        return "not checked"
    if not report.equal.ok:
        return "NO"
    return "every bit" if report.equal.bit_equal else "yes"


def verdict_line(verdict: Verdict) -> Text:
    """Return a verdict as a line of text."""
    line = Text(f"{SIGNS[verdict.mood]} ", style=STYLES[verdict.mood])
    line.append(f"{verdict.topic:<9}", style="bold")
    return line.append(verdict.text, style="default")


def spark(totals: Sequence[int], width: int, top: int) -> str:
    """Return a curve as one line of blocks; each column is the most of its steps.

    Example:
        >>> spark((1, 8, 4, 2), 4, 8)
        '▁█▄▂'
    """
    if not totals or top <= 0:
        return ""
    width = min(width, len(totals))
    ends = [round(i * len(totals) / width) for i in range(width + 1)]
    most = (max(totals[a : max(b, a + 1)]) for a, b in pairwise(ends))
    return "".join(SPARKS[min(8, max(value > 0, round(8 * value / top)))] for value in most)


def _title(console: Console, title: str, rest: str) -> None:
    console.print(Text(title, style="bold").append(f"  {rest}", style="not bold"))


def _table(title: str, columns: Sequence[str]) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD, pad_edge=False)
    for index, name in enumerate(columns):
        right = index and name in NUMBERS
        table.add_column(name, justify="right" if right else "left", overflow="fold", no_wrap=bool(right))
    return table


def _figures(report: Report) -> Table:
    table = _table("", ("", "eager", "predicted", "measured", "ratio"))
    made = report.optimized
    mark = "" if report.eager.measured else " *"
    table.add_row(
        "peak memory",
        bytes_text(report.eager.peak_bytes) + mark,
        bytes_text(made.predicted_peak_bytes),
        bytes_text(made.peak_bytes),
        ratio_text(report.memory_ratio),
    )
    ratio = made.predicted_latency_ratio
    table.add_row(
        "CPU time",
        seconds_text(report.eager.cpu_seconds) + mark,
        ratio_text(ratio),
        seconds_text(made.cpu_seconds),
        ratio_text(report.latency_ratio),
    )
    if report.lower_bound_bytes is not None:
        table.add_row("proven lower bound", "", bytes_text(report.lower_bound_bytes), "", "")
    if mark:
        table.caption = "* predicted: eager was not run"
    return table


def _curves(report: Report, console: Console) -> None:
    if not (console.encoding or "").lower().startswith("utf"):
        return
    lines = [("before", report.timelines.before), ("after", report.timelines.after)]
    shown = [(name, line) for name, line in lines if line is not None]
    top = max((line.peak_bytes for _, line in shown), default=0)
    for name, line in shown:
        curve = spark(line.totals, max(10, min(console.width, 120) - 20), top)
        console.print(Text(f"{name:<7}{curve} {bytes_text(line.peak_bytes)}"), no_wrap=True, crop=True)


def _kinds(before: Timeline | None, after: Timeline | None) -> Table | Text:
    if before is None and after is None:
        return Text("")
    table = _table("What the peak is made of", ("kind", "before", "after"))
    was, now = (dict(line.at_peak) if line else {} for line in (before, after))
    for kind in KINDS:
        if kind in was or kind in now:
            table.add_row(kind, bytes_text(was.get(kind, 0)), bytes_text(now.get(kind, 0)))
    return table


def _decisions(decisions: Sequence[Decision], console: Console) -> None:
    if not decisions:
        return
    table = _table("Decisions", ("do", "what", "bytes", "costs"))
    first = first_decisions(decisions, ROWS)
    for decision in first:
        size = bytes_text(decision.nbytes) if decision.nbytes else ""
        cost = seconds_text(decision.seconds) if decision.seconds else ""
        table.add_row(
            decision.action, Text(decision.what).append(f"\n{decision.when}", style="dim"), size, cost
        )
    hidden = len(decisions) - len(first)
    if hidden:
        table.add_row("", f"and {hidden} more (see the plan)", "", "")
    console.print(table)


def _notes(barriers: Sequence[str], notes: Sequence[str], console: Console) -> None:
    for note in notes:
        console.print(Text(f"note: {note}", style="yellow"))
    if barriers:
        console.print(Text(f"left as they are, without a table entry: {', '.join(barriers)}", style="yellow"))


def _spent(report: Report) -> str:
    stages = vars(report.seconds).items()
    spent = ", ".join(f"{name} {seconds_text(value)}" for name, value in stages if value is not None)
    search = f"search ended: {report.search.stop_reason}, {report.search.states} states"
    size = f"{report.graph.nodes} operators, {report.graph.storages} storages"
    return "; ".join(filter(None, (size, search if report.search.stop_reason else "", spent)))
