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

FIGURES: Mapping[int, tuple[str, Make, tuple[str, ...]]] = {
    9: ("least bytes within a time", bars.memory_bars, WORKLOADS),
    10: ("least time within bytes", bars.time_bars, WORKLOADS),
    11: ("bytes against time", curves.fronts, WORKLOADS),
    12: ("micro-batches with recomputation", curves.micro_batches, WORKLOADS),
    13: ("convergence, with what is left out", convergence.curves, ("bert",)),
    14: ("incremental against full scheduling", lambda name, asked: scheduling.runs(asked), ("nasnet",)),
    15: ("seconds and counts by stage", convergence.stages, ("bert",)),
    16: ("bytes over the time of a step", over_time.memory_over_time, ("unet",)),
}
"""By number in the paper: what it is, what makes its rows, and its usual workloads."""


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


def run(asked: Asked, progress: Progress = silent) -> tuple[str, bool]:
    """Return a figure as JSON, and whether it is complete; Ctrl-C ends it with what is known.

    The first Ctrl-C ends a search well, with what it has found by then; the second one ends all at once.

    Args:
        asked: the figure.
        progress: told which workload it is at.
    """
    title, make, _ = FIGURES[asked.figure]
    rows: list[Row] = []
    complete = True
    try:
        with postponed() as ctrl_c:
            for count, name in enumerate(asked.workloads):
                share = count / len(asked.workloads)

                def said(note: str, name: str = name, share: float = share) -> None:
                    progress(f"figure {asked.figure}", share, f"{name}, {note}")
                    if ctrl_c.pressed:
                        raise KeyboardInterrupt

                try:
                    for row in make(name, replace(asked, said=said)):
                        rows.append(row)
                        said(f"{len(rows)} rows")
                except Exception as error:
                    rows.append({"workload": name, "error": message(error)})
    except KeyboardInterrupt:
        complete = False
    return _text(asked, title, rows, complete), complete and not any("error" in row for row in rows)


def _text(asked: Asked, title: str, rows: list[Row], complete: bool) -> str:
    entry: Row = {
        "figure": asked.figure,
        "title": title,
        "settings": {
            "workloads": list(asked.workloads),
            "size": asked.size,
            "device": asked.device,
            "time_budget": asked.time_budget,
            "seed": asked.seed,
            "threads": torch.get_num_threads(),
        },
        "environment": dict(environment(asked.seed)),
        "complete": complete,
    }
    if asked.figure == 14:
        entry["summary"] = scheduling.summary([row for row in rows if "error" not in row])
    lines = ",\n".join(f"  {json.dumps(row)}" for row in rows)
    head = json.dumps(entry, indent=1)[:-2]
    return f'{head},\n "rows": [\n{lines}\n ]\n}}\n'
