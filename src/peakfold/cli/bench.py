"""``peakfold bench``: workloads x peers x peakfold at given constraints."""

from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from peakfold.cli.output import Output
from peakfold.cli.progress import Reporter
from peakfold.errors import NotEqualError, PeakfoldError, UsageError
from peakfold.files import is_stdout
from peakfold.report.folder import write_files

if TYPE_CHECKING:
    from peakfold.bench.rows import Results
    from peakfold.bench.settings import Settings

FILE = "bench.json"


class Interrupted(PeakfoldError):
    """The user ended a run; what was known by then is written."""

    exit_code = 130


def run_bench(settings: "Settings", output: Output) -> None:
    """Run a benchmark, write its JSON and print its tables.

    Raises:
        Interrupted: by the user, after what is known has been written.
        NotEqualError: a program of peakfold computes something else than eager.
        UsageError: programs are to run in arenas, and there is no C++ compiler.
        PeakfoldError: a workload failed as a whole.
    """
    from peakfold.bench import runner
    from peakfold.bench.table import render

    output.check()
    if settings.arena:
        from peakfold.pipeline.arena import require_allocator

        require_allocator()
    with Reporter(output.progress) as progress:
        results = runner.run(settings, progress)
    _write(results, output)
    render(results, output.tables)
    _require_good(results, settings)


def run_figure(
    figure: int, workloads: str, size: str, device: str, time_budget: float, arena: bool, output: Output
) -> None:
    """Make a figure of the paper on our side, and write its JSON; to stdout where no file was named.

    Raises:
        UsageError: there is no such figure, or its programs are to run in arenas: nothing runs.
        Interrupted: by the user, after what is known has been written.
        PeakfoldError: a workload failed.
    """
    from peakfold.bench.figures import run as figures

    if arena:
        raise UsageError(
            stage="options",
            what="a figure of the paper is predicted: nothing runs in an arena",
            got=f"--figure {figure} --arena",
            hint="leave --arena out",
        )
    names = tuple(name.strip() for name in workloads.split(",") if name.strip())
    asked = figures.asked_of(figure, names, size, device, time_budget)
    if output.json is None and output.folder is None:
        output = Output("-")
    output.check()
    name = f"figure{figure}.json"

    def save(text: str) -> None:
        if output.folder is not None:
            write_files(output.folder, {name: text.encode()})
        if output.json is not None and not is_stdout(output.json):
            output.write_json(text)

    asked = replace(asked, known=figures.broken_off(asked, _known(output, name)))
    with Reporter(output.progress) as progress, output.alone():
        text, good = figures.run(asked, progress, save)
    save(text)
    if output.json is not None and is_stdout(output.json):
        output.write_json(text)
    if '"complete": false' in text:
        raise Interrupted(stage="bench", what="interrupted", got="what is known is written")
    if not good:
        raise PeakfoldError(stage="bench", what="a workload failed", hint="its row says why")


def _known(output: Output, name: str) -> str:
    """Return the figure that is where this one goes, empty where there is none that can be read."""
    files = [output.folder / name] if output.folder is not None else []
    if output.json is not None and not is_stdout(output.json):
        files.append(Path(output.json))
    for file in files:
        with suppress(OSError, UnicodeDecodeError):
            return file.read_text()
    return ""


def _write(results: "Results", output: Output) -> None:
    from peakfold.bench.rows import to_json

    text = to_json(results)
    if output.folder is not None:
        write_files(output.folder, {FILE: text.encode()})
    output.write_json(text)


def _require_good(results: "Results", settings: "Settings") -> None:
    from peakfold.bench.rows import PEAKFOLD

    if not results.complete:
        ended = [name for name in settings.workloads if name in results.workloads]
        raise Interrupted(
            stage="bench",
            what="interrupted",
            got=f"{len(ended)} of {len(settings.workloads)} workloads begun; what is known is written",
        )
    wrong = [row for row in results.rows if row.variant == PEAKFOLD and row.equal is False]
    if wrong:
        raise NotEqualError(
            stage="bench",
            what=f"{wrong[0].workload}, {wrong[0].name}, does not compute what eager does",
            got=f"an error of {wrong[0].max_error}",
            hint="this is a fault of peakfold: please report it",
        )
    failed = [row for row in results.rows if not row.variant]
    if failed:
        names = ", ".join(row.workload for row in failed)
        raise PeakfoldError(stage="bench", what=f"failed: {names}", got=failed[0].error)
