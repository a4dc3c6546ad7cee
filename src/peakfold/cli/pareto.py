"""``peakfold pareto``: the least bytes at every time."""

import json as text
from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING

from rich.table import Table
from rich.text import Text

from peakfold.cli import calls
from peakfold.cli.output import Output
from peakfold.cli.progress import Reporter
from peakfold.errors import UsageError
from peakfold.report.folder import write_files
from peakfold.report.front import Dot, render_front

if TYPE_CHECKING:
    from peakfold.pipeline.pareto import FrontOf
    from peakfold.pipeline.peers import PeerOf, Peers
    from peakfold.pipeline.request import Request

HEADINGS = ("memory", "time", "measured", "measured", "", "in parts")
OF_PEERS = ("peer", "memory", "time", "")
JSON, PAGE = "front.json", "front.html"


def pareto(
    chosen: dict[str, str],
    asked: "Request",
    measure: bool,
    in_arena: bool,
    peers: bool | None,
    output: Output,
) -> None:
    """Print the front of a target.

    Args:
        chosen: what to load, as of `calls.load`.
        asked: how it is searched.
        measure: run points of it.
        in_arena: run each in an arena of its own.
        peers: also run what users do today; None: where points of a workload's training step are measured.
        output: where it goes.

    Raises:
        UsageError: peers are to run where there are none.
    """
    from peakfold.pipeline import pareto as fronts
    from peakfold.pipeline.task import Task

    beside = _peers(chosen, measure, peers)
    output.check()
    with Reporter(output.progress) as progress, output.alone():
        found = fronts.pareto(Task.of(calls.load(chosen)), asked, measure, progress, in_arena, beside)
    lines, as_json = list(_lines(found)), text.dumps(asdict(found), indent=2) + "\n"
    rows = list(fronts.table_rows(found))
    if output.folder is not None:
        page = render_front(found.target, list(_dots(found)), lines, rows)
        write_files(output.folder, {JSON: as_json.encode(), PAGE: page.encode()})
    output.write_json(as_json)
    output.tables.print(_table(f"front of {found.target}, ratios to eager", HEADINGS, rows))
    if found.peers:
        output.tables.print(_table("what users do today", OF_PEERS, [_row(one) for one in found.peers]))
    for line in lines:
        output.tables.print(Text(line))
    output.tell()


def _peers(chosen: dict[str, str], measure: bool, asked: bool | None) -> "Peers | None":
    from peakfold.bench.settings import WORKLOADS

    known = chosen["target"] in WORKLOADS and "inference" not in chosen
    if asked is False or (asked is None and not (measure and known)):
        return None
    if not (measure and known):
        raise UsageError(
            stage="options",
            what="there are no peers to run beside the front",
            expected=f"--measure, and a training step of {', '.join(WORKLOADS)}",
            got=f"{chosen['target']}, {'measured' if measure else 'predicted'}",
            hint="leave --peers out" if measure else "add --measure, or leave --peers out",
        )
    from peakfold.bench.beside import simple_peers

    return simple_peers(chosen["target"], int(chosen["seed"]))


def _table(title: str, headings: tuple[str, ...], rows: list[tuple[str, ...]]) -> Table:
    table = Table(title=title, title_justify="left")
    for heading in headings:
        table.add_column(heading, justify="left" if heading in ("in parts", "peer") else "right")
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    return table


def _row(peer: "PeerOf") -> tuple[str, ...]:
    if peer.memory_ratio is None or peer.latency_ratio is None:
        return (peer.name, "", "", peer.error or "failed")
    about = "" if peer.timed else "about "
    equal = "equal" if peer.equal else "not equal"
    return (peer.name, f"{peer.memory_ratio:.3f}", f"{about}{peer.latency_ratio:.3f}", equal)


def _lines(found: "FrontOf") -> Iterator[str]:
    """What is said of a front below its table."""
    off = found.errors
    if off is not None:
        within = f"bytes within {off.memory:.1%}, time within {off.latency:.1%}"
        corrected = f"{off.corrected_latency:.1%} once corrected by what operators took in other programs"
        yield f"predicted against measured, {off.points} points: {within}, {corrected}"
    if found.ahead is not None:
        yield found.ahead.words
    for note in found.notes:
        yield f"note: {note}"


def _dots(found: "FrontOf") -> Iterator[Dot]:
    for point in found.points:
        name = "; ".join(line.split(" over ")[0] for line in point.regions) or "nothing in parts"
        yield Dot("predicted", name, point.memory_ratio, point.latency_ratio)
        if point.equal and point.measured_memory_ratio and point.measured_latency_ratio:
            yield Dot("measured", name, point.measured_memory_ratio, point.measured_latency_ratio)
    if found.peers:
        yield Dot("peer", "eager", 1.0, 1.0)
    for peer in found.peers:
        if peer.timed and peer.memory_ratio is not None and peer.latency_ratio is not None:
            yield Dot("peer", peer.name, peer.memory_ratio, peer.latency_ratio)
