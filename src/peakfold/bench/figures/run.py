"""Runs a figure: its rows as JSON, each workload in turn; what is known is kept when the user ends it."""

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

import torch

from peakfold.bench.figures import bars, convergence, curves, over_time, scheduling
from peakfold.bench.figures.studied import Asked, Row
from peakfold.bench.observe import message
from peakfold.bench.settings import WORKLOADS
from peakfold.errors import UsageError
from peakfold.pipeline.ctrl_c import postponed
from peakfold.pipeline.machine import environment
from peakfold.report.progress import Progress, silent

Make = Callable[[str, Asked], Iterator[Row]]

SCHEDULING = 14

FIGURES: Mapping[int, tuple[str, Make, tuple[str, ...]]] = {
    9: ("least bytes within a time", bars.memory_bars, WORKLOADS),
    10: ("least time within bytes", bars.time_bars, WORKLOADS),
    11: ("bytes against time", curves.fronts, WORKLOADS),
    12: ("micro-batches with recomputation", curves.micro_batches, WORKLOADS),
    13: ("convergence, with what is left out", convergence.curves, ("bert",)),
    SCHEDULING: (
        "incremental against full scheduling",
        lambda name, asked: scheduling.runs(asked),
        ("nasnet",),
    ),
    15: ("seconds and counts by stage", convergence.stages, ("bert",)),
    16: ("bytes over the time of a step", over_time.memory_over_time, ("unet",)),
}
"""By number in the paper: what it is, what makes its rows, and its usual workloads."""
ROW_BY_ROW = frozenset({9, 10, 13, 15})
"""Figures that go on within a workload; others begin the one at which they ended again."""


def asked_of(
    figure: int, workloads: tuple[str, ...], size: str, device: str, time_budget: float, seed: int = 0
) -> Asked:
    """Return what is asked for; the usual workloads where none are named.

    Raises:
        UsageError: there is no such figure.

    Example:
        >>> asked_of(16, (), "paper", "sim:rtx3090", 20.0).workloads
        ('unet',)
    """
    if figure not in FIGURES:
        raise UsageError(
            stage="options",
            what="there is no such figure",
            expected=", ".join(map(str, FIGURES)),
            got=str(figure),
            hint="leave --figure out to measure workloads beside their peers",
        )
    return Asked(figure, workloads or FIGURES[figure][2], size, device, time_budget, seed)


def broken_off(asked: Asked, text: str) -> tuple[Row, ...]:
    """Return the rows with which a figure goes on, of its JSON as it was when it ended before its end.

    Args:
        asked: the figure.
        text: JSON of a figure; another one, or one of other settings, has no rows for it.
    """
    try:
        found = json.loads(text)
    except ValueError:
        return ()
    head = found if isinstance(found, dict) else {}
    same = (head.get("figure"), head.get("settings")) == (asked.figure, _settings(asked))
    if not same or head.get("complete") is not False or asked.figure == SCHEDULING:
        return ()
    rows = [row for row in head["rows"] if not row.keys() & {"error", "interrupted"}]
    last = rows[-1]["workload"] if rows else ""
    return tuple(row for row in rows if asked.figure in ROW_BY_ROW or row["workload"] != last)


def run(
    asked: Asked, progress: Progress = silent, save: Callable[[str], None] = lambda text: None
) -> tuple[str, bool]:
    """Return a figure as JSON, and whether it is complete; Ctrl-C ends it with what is known.

    The first Ctrl-C ends a search well, with what it has found by then; the second one ends all at once.

    Args:
        asked: the figure; its known rows are not made again.
        progress: told which workload it is at.
        save: given the JSON of what there is after each row.
    """
    title, make, _ = FIGURES[asked.figure]
    rows: list[Row] = list(asked.known)
    seen = dict.fromkeys(row["workload"] for row in rows)
    ended = set(list(seen)[:-1] if asked.figure in ROW_BY_ROW else seen)
    complete = True
    try:
        with postponed() as ctrl_c:
            for count, name in enumerate(asked.workloads):
                if name in ended:
                    continue
                share = count / len(asked.workloads)

                def said(note: str, name: str = name, share: float = share) -> None:
                    progress(f"figure {asked.figure}", share, f"{name}, {note}")
                    if ctrl_c.pressed:
                        raise KeyboardInterrupt

                try:
                    for row in make(name, replace(asked, said=said)):
                        rows.append({**row, "interrupted": True} if ctrl_c.pressed else row)
                        save(_text(asked, title, rows, False))
                        said(f"{len(rows)} rows")
                except Exception as error:
                    rows.append({"workload": name, "error": message(error)})
    except KeyboardInterrupt:
        complete = False
    return _text(asked, title, rows, complete), complete and not any("error" in row for row in rows)


def _settings(asked: Asked) -> Row:
    return {
        "workloads": list(asked.workloads),
        "size": asked.size,
        "device": asked.device,
        "time_budget": asked.time_budget,
        "seed": asked.seed,
        "threads": torch.get_num_threads(),
    }


def _text(asked: Asked, title: str, rows: list[Row], complete: bool) -> str:
    entry: Row = {
        "figure": asked.figure,
        "title": title,
        "settings": _settings(asked),
        "environment": dict(environment(asked.seed)),
        "complete": complete,
    }
    if asked.figure == SCHEDULING:
        entry["summary"] = scheduling.summary([row for row in rows if "error" not in row])
    lines = ",\n".join(f"  {json.dumps(row)}" for row in rows)
    head = json.dumps(entry, indent=1)[:-2]
    return f'{head},\n "rows": [\n{lines}\n ]\n}}\n'
