"""Every figure of docs/benchmarks.md: a command each, that prints JSON; and the tables made of it.

From the root of the repository::

    python -m benchmarks.figures capture --workloads bert,unet --json benchmarks/results/capture.json
    python -m benchmarks.figures table benchmarks/results/*.json --docs docs/benchmarks.md

The comparison with peers is ``peakfold bench --json benchmarks/results/bench.json``; `table` reads it too.
"""

import json
import os
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Annotated, ParamSpec

import typer

from benchmarks import arena as arena_
from benchmarks import budgets as budgets_
from benchmarks import captures, tables
from benchmarks import demo as demo_
from benchmarks import equality as equality_
from benchmarks import faults as faults_
from benchmarks import offloading as offloading_
from benchmarks import overhead as overhead_
from benchmarks import packing as packing_
from benchmarks import random_plans as random_plans_
from benchmarks.case import Row, here, quiet
from benchmarks.simulations import rate
from peakfold.bench.observe import message
from peakfold.bench.settings import WORKLOADS
from peakfold.report.folder import write_files

P = ParamSpec("P")

app = typer.Typer(help="The figures of docs/benchmarks.md.", no_args_is_help=True, add_completion=False)
WorkloadsOf = Annotated[str, typer.Option("--workloads", metavar="A,B", help="Names.")]
JsonOf = Annotated[str, typer.Option("--json", metavar="FILE|-", help="Where the JSON goes.")]
SizeOf = Annotated[str, typer.Option("--size", help="tiny, cpu or paper.")]
SearchOf = Annotated[float, typer.Option("--time-budget", help="Wall seconds of each search.")]
ALL = ",".join(WORKLOADS)


@app.callback()
def top() -> None:
    """Every figure runs on one thread."""
    os.environ |= {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    quiet()


@app.command()
def capture(workloads: WorkloadsOf = ALL, size: SizeOf = "paper", json: JsonOf = "-") -> None:
    """Capture without weights: CPU seconds, nodes, operators without a table entry."""
    _write("capture", json, _each(workloads, captures.capture, size))


@app.command()
def planning(
    workloads: WorkloadsOf = ALL,
    sizes: str = "cpu,paper",
    memory: str = "50%",
    time_budget: SearchOf = 10.0,
    json: JsonOf = "-",
) -> None:
    """Wall seconds from the user's objects to the emitted program, with empty caches."""
    with tempfile.TemporaryDirectory() as folder:
        os.environ["PEAKFOLD_CACHE"] = folder
        rows = [
            row
            for size in sizes.split(",")
            for row in _each(workloads, captures.planning, size, memory, time_budget)
        ]
    _write("planning", json, rows)


@app.command()
def budgets(
    workloads: WorkloadsOf = ALL,
    size: SizeOf = "cpu",
    count: int = 20,
    time_budget: SearchOf = 20.0,
    json: JsonOf = "-",
) -> None:
    """Budgets from eager's peak to the proven bound: each run, its bytes against the simulated ones."""
    _write("budgets", json, _each(workloads, budgets_.budgets, size, count, time_budget))


@app.command()
def overhead(
    workloads: WorkloadsOf = f"{overhead_.SMALL},{ALL}", size: SizeOf = "cpu", json: JsonOf = "-"
) -> None:
    """The emitted program with nothing optimized against eager; "small" is a step of about 30 ms."""
    _write("overhead", json, _each(workloads, overhead_.overhead, size))


@app.command()
def hidden(
    workloads: WorkloadsOf = "bert,unet",
    size: SizeOf = "cpu",
    folder: Annotated[str, typer.Option(help="Where values wait in files; memory when left out.")] = "",
    json: JsonOf = "-",
) -> None:
    """How much of the time of copies to the host is hidden beside the computation, on two cores."""
    _write("hidden", json, _each(workloads, offloading_.hidden, size, folder))


@app.command()
def beside(
    workloads: WorkloadsOf = "bert,unet",
    size: SizeOf = "paper",
    budgets: str = "0.6,0.4,0.3",
    device: str = "rtx3090",
    time_budget: SearchOf = 30.0,
    json: JsonOf = "-",
) -> None:
    """Recomputation alone against recomputation and offloads, simulated on a described device."""
    _write("beside", json, _each(workloads, offloading_.beside, budgets, size, device, time_budget))


@app.command()
def arena(workloads: WorkloadsOf = ALL, sizes: str = "tiny,cpu", json: JsonOf = "-") -> None:
    """Arenas of the workloads' own lifetimes, of 20,000 buffers, and the same program's time in its arena."""
    _write("arena", json, [row for s in sizes.split(",") for row in _each(workloads, arena_.arena, s)])


@app.command()
def packing(
    folder: Annotated[Path, typer.Option(help="CSV files, such as A.1048576.csv.")] = Path(
        "tests/data/minimalloc"
    ),
    seeds: Annotated[int, typer.Option(help="Runs of each, which differ in the seed.")] = 5,
    json: JsonOf = "-",
) -> None:
    """Seconds until hard problems of placing buffers fit their capacity, and the gap after one second."""
    _write("packing", json, packing_.packing(folder, seeds))


@app.command()
def variants(
    folder: Annotated[Path, typer.Option(help="CSV files, such as A.1048576.csv.")] = Path(
        "tests/data/minimalloc"
    ),
    rounds: Annotated[int, typer.Option(help="Variants of each kind.")] = 3,
    limit: Annotated[float, typer.Option(help="Wall seconds of each.")] = 20.0,
    seed: int = 0,
    json: JsonOf = "-",
) -> None:
    """Problems without slack made of solutions of others, split, merged, grown, cut: how many fit."""
    _write("variants", json, packing_.varied(folder, rounds, limit, seed))


@app.command()
def simulations(json: JsonOf = "-") -> None:
    """Full simulations a second of 2,000 nodes with workspace, second runs, a loop and queues."""
    _write("simulations", json, [rate()])


@app.command()
def equality(
    workloads: WorkloadsOf = ALL,
    size: SizeOf = "cpu",
    optimizers: str = "adamw,momentum",
    steps: int = 3,
    time_budget: SearchOf = 3.0,
    json: JsonOf = "-",
) -> None:
    """Every bit over several steps, with dropout and optimizers that have state."""
    rows = _each_with(
        workloads, optimizers, equality_.equality, lambda optimizer: (size, optimizer, steps, time_budget)
    )
    _write("equality", json, rows)


@app.command()
def plans(
    workloads: WorkloadsOf = f"{random_plans_.SMALL},{ALL}",
    optimizers: str = "adamw,momentum",
    count: Annotated[int, typer.Option(help="Of each workload with each optimizer.")] = 63,
    seed: int = 0,
    step: Annotated[int, typer.Option(help="Plans of a row: the file is written after each.")] = 21,
    json: JsonOf = "-",
) -> None:
    """Random plans of workloads of size tiny and of small random steps, in float64: how many are wrong.

    Rows that FILE has already are not made again.
    """
    keys: list[Row] = [
        {"workload": workload, "optimizer": optimizer, "first": first, "seed": seed}
        for first in range(0, count, step)
        for optimizer in optimizers.split(",")
        for workload in workloads.split(",")
    ]

    def make(workload: str, optimizer: str, first: int, seed: int) -> list[Row]:
        return _each(workload, random_plans_.plans, optimizer, first, min(step, count - first), seed)

    _grown("plans", json, keys, make)


@app.command()
def faults(
    workloads: WorkloadsOf = ALL,
    optimizers: str = "adamw,momentum",
    count: int = 4,
    seed: int = 0,
    json: JsonOf = "-",
) -> None:
    """Programs of workloads of size tiny with one fault each: how many the comparison tells.

    Rows that FILE has already are not made again.
    """
    keys: list[Row] = [
        {"workload": workload, "optimizer": optimizer, "count": count, "seed": seed}
        for optimizer in optimizers.split(",")
        for workload in workloads.split(",")
    ]

    def make(workload: str, optimizer: str, count: int, seed: int) -> list[Row]:
        return _each(workload, faults_.faults, optimizer, count, seed)

    _grown("faults", json, keys, make)


@app.command()
def demo(size: SizeOf = "cpu", json: JsonOf = "-") -> None:
    """Wall seconds of `peakfold demo` with empty caches, and of a second run."""
    _write("demo", json, demo_.demo(size))


@app.command("all")
def everything() -> None:
    """Run every command of the page, one after the other, from the root of the repository."""
    bin_ = Path(sys.executable).parent
    for name, command in tables.COMMANDS.items():
        print(f"{name}: {command.line}", file=sys.stderr)
        program, *arguments = shlex.split(command.line)
        subprocess.run([str(bin_ / program), *arguments], check=False)


@app.command()
def table(
    files: Annotated[
        list[Path] | None,
        typer.Argument(help="JSON of figures and of `peakfold bench`; none for the skeleton."),
    ] = None,
    docs: Annotated[Path | None, typer.Option(help="Write the tables into this page.")] = None,
) -> None:
    """Make Markdown tables of JSON; nothing is measured."""
    text = tables.page([json.loads(file.read_text()) for file in files or ()])
    if docs is None:
        print(text)
        return
    write_files(docs.parent, {docs.name: tables.placed(docs.read_text(), text).encode()})


def _each_with(
    workloads: str,
    optimizers: str,
    figure: Callable[..., list[Row]],
    options: Callable[[str], tuple[object, ...]],
) -> list[Row]:
    """Return the rows of each workload with each optimizer; ``options`` are those of a figure with one."""
    return [
        row for optimizer in optimizers.split(",") for row in _each(workloads, figure, *options(optimizer))
    ]


def _each(workloads: str, figure: Callable[..., list[Row]], *options: object) -> list[Row]:
    """Return the rows of each workload, each made in a process of its own; a failure is a row."""
    rows: list[Row] = []
    context = get_context("spawn")
    for workload in workloads.split(","):
        print(f"{figure.__name__} {workload} {' '.join(map(str, options))}", file=sys.stderr)
        with ProcessPoolExecutor(1, mp_context=context, initializer=quiet) as pool:
            try:
                rows += pool.submit(figure, workload, *options).result()
            except Exception as error:
                rows.append({"workload": workload, "error": message(error)})
    return rows


def _grown(figure: str, file: str, keys: Sequence[Row], make: Callable[..., list[Row]]) -> None:
    """Write a figure after each of its rows; those that the file has already are not made again.

    Args:
        figure: its name.
        file: where it goes.
        keys: what says of each row which it is; arguments of ``make``.
        make: makes one.
    """
    rows = known_rows(file, figure)
    for key in keys:
        if any(key.items() <= row.items() for row in rows):
            continue
        rows += make(**key)
        if file != "-":
            _put(figure, file, rows)
    _write(figure, file, rows)


def known_rows(file: str, figure: str) -> list[Row]:
    """Return the rows of a figure that a file has already, but for those that failed."""
    if file == "-" or not Path(file).exists():
        return []
    found = json.loads(Path(file).read_text())
    return [row for row in found["rows"] if "error" not in row] if found["figure"] == figure else []


def _text(figure: str, rows: Sequence[Row]) -> str:
    lines = ",\n".join(f"  {json.dumps(row)}" for row in rows)
    head = f' "figure": {json.dumps(figure)},\n "environment": {json.dumps(here())},'
    return f'{{\n{head}\n "rows": [\n{lines}\n ]\n}}\n'


def _put(figure: str, file: str, rows: Sequence[Row]) -> None:
    write_files(Path(file).parent, {Path(file).name: _text(figure, rows).encode()})


def _write(figure: str, file: str, rows: Sequence[Row]) -> None:
    """Write a figure as JSON, a line a row; end with code 1 where a row failed."""
    if file == "-":
        print(_text(figure, rows), end="")
    else:
        _put(figure, file, rows)
    if any("error" in row for row in rows):
        raise typer.Exit(1)


if __name__ == "__main__":
    app()
