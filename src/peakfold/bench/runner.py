"""Runs each workload in a process of its own: no memory or cache leaks, and a failure ends only that one."""

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import IO

from peakfold.bench.rows import Results, Row, row_from_dict
from peakfold.bench.settings import Settings
from peakfold.report.progress import Progress, silent

Command = Callable[[int, str, Settings], list[str]]
TAIL = 2000
"""How much of what a process printed a failure quotes, in characters."""


def worker(descriptor: int, workload: str, settings: Settings) -> list[str]:
    """Return the command of one workload."""
    return [sys.executable, "-m", "peakfold.bench.worker", str(descriptor), workload, settings.to_json()]


@dataclass
class _Gathered:
    rows: dict[tuple[str, str], Row] = field(default_factory=dict)
    environment: dict[str, str] = field(default_factory=dict)

    def put(self, row: Row) -> None:
        self.rows[row.workload, row.name] = row


def run(settings: Settings, progress: Progress = silent, command: Command = worker) -> Results:
    """Run a benchmark; an interrupt ends it with what is known by then.

    Args:
        settings: what is to run.
        progress: told where it is; stages are named after their workload.
        command: makes the command line of one workload.
    """
    gathered, complete = _Gathered(), True
    try:
        for workload in settings.workloads:
            _one(workload, settings, progress, command, gathered)
    except KeyboardInterrupt:
        complete = False
    return Results(tuple(gathered.rows.values()), gathered.environment, asdict(settings), complete)


def _one(
    workload: str, settings: Settings, progress: Progress, command: Command, gathered: _Gathered
) -> None:
    reading, writing = os.pipe()
    with (
        tempfile.TemporaryFile("w+") as printed,
        _started(command(writing, workload, settings), settings.threads, writing, printed) as process,
    ):
        with os.fdopen(reading) as lines:
            for line in lines:
                _take(json.loads(line), workload, progress, gathered)
        code = process.wait()
        if code:
            gathered.put(Row(workload, "", error=_failure(code, printed)))


@contextmanager
def _started(
    command: list[str], threads: int, descriptor: int, printed: IO[str]
) -> Iterator["subprocess.Popen[str]"]:
    """Start a process in a session of its own, so that an interrupt reaches this one alone; end it after."""
    environment = os.environ | {"OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads)}
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=printed,
        stderr=subprocess.STDOUT,
        pass_fds=(descriptor,),
        env=environment,
        start_new_session=True,
        text=True,
    )
    os.close(descriptor)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def _take(message: dict[str, object], workload: str, progress: Progress, gathered: _Gathered) -> None:
    match message:
        case {"say": [str(stage), int() | float() as done, str(note)]}:
            progress(f"{workload} {stage}", float(done), note)
        case {"row": dict(row)}:
            gathered.put(row_from_dict(row))
        case {"environment": dict(environment)}:
            gathered.environment.update(environment)


def _failure(code: int, printed: IO[str]) -> str:
    """Return why a process ended, and the end of what it printed."""
    printed.seek(0)
    said = printed.read()[-TAIL:].strip()
    how = f"the process ended with code {code}" if code > 0 else f"the process was ended by {_name(-code)}"
    return f"{how}: {said}" if said else how


def _name(number: int) -> str:
    return signal.Signals(number).name
