"""One workload in a process of its own: ``python -m peakfold.bench.worker DESCRIPTOR WORKLOAD SETTINGS``.

It writes lines of JSON to the descriptor: ``{"say": [stage, done, note]}``, ``{"row": {..}}`` and
``{"environment": {..}}``. What libraries print goes to stdout and stderr, as ever.
"""

import json
import os
import sys
from typing import TextIO

import torch

from peakfold.bench.rows import row_to_dict
from peakfold.bench.settings import Settings
from peakfold.bench.workload import run_workload
from peakfold.bridge.runtime.profile import machine
from peakfold.errors import PeakfoldError
from peakfold.options import quiet_profiler
from peakfold.pipeline.machine import environment


def main(descriptor: str, workload: str, text: str) -> None:
    """Run the workload of a command line."""
    settings = Settings.from_json(text)
    quiet_profiler()
    torch.set_num_threads(settings.threads)
    with os.fdopen(int(descriptor), "w", buffering=1) as stream:
        here = dict(environment(settings.seed)) | {"cpu": machine(settings.threads).cpu}
        _write(stream, "environment", here)
        try:
            run_workload(
                workload,
                settings,
                lambda stage, done, note="": _write(stream, "say", [stage, done, note]),
                lambda row: _write(stream, "row", row_to_dict(row)),
            )
        except PeakfoldError as error:
            print(error)
            raise SystemExit(error.exit_code) from None


def _write(stream: TextIO, kind: str, value: object) -> None:
    print(json.dumps({kind: value}), file=stream)


if __name__ == "__main__":
    main(*sys.argv[1:])
