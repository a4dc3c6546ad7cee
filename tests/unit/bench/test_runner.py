"""The process of each workload, with commands in place of real workloads."""

import os
import sys

import pytest

from peakfold.bench.runner import run
from peakfold.bench.settings import Settings

SETTINGS = Settings(workloads=("bert", "unet"))
SPEAK = """
import json, os, sys
stream = os.fdopen(int(sys.argv[1]), "w", buffering=1)
def tell(**message): print(json.dumps(message), file=stream)
name = sys.argv[2]
"""
GOOD = """
tell(environment={"torch": "2.13.0"})
tell(say=["memory", 0.5, "eager"])
tell(row={"workload": name, "variant": "eager", "peak_bytes": 10})
tell(row={"workload": name, "variant": "eager", "peak_bytes": 10, "cpu_seconds": 2.0})
"""


def command(body):
    def make(descriptor, workload, settings):
        return [sys.executable, "-c", SPEAK + body, str(descriptor), workload]

    return make


def test_rows_are_gathered_and_the_last_word_counts():
    said = []
    results = run(SETTINGS, lambda *words: said.append(words), command(GOOD))
    assert [(row.workload, row.peak_bytes, row.cpu_seconds) for row in results.rows] == [
        ("bert", 10, 2.0),
        ("unet", 10, 2.0),
    ]
    assert said == [("bert memory", 0.5, "eager"), ("unet memory", 0.5, "eager")]
    assert results.environment == {"torch": "2.13.0"}
    assert results.complete
    assert results.settings["workloads"] == ("bert", "unet")


def test_a_failure_ends_one_workload_and_keeps_what_it_found():
    body = f'{GOOD}\nif name == "bert": raise ValueError("no such layer")'
    results = run(SETTINGS, command=command(body))
    kinds = [(row.workload, row.variant) for row in results.rows]
    assert kinds == [("bert", "eager"), ("bert", ""), ("unet", "eager")]
    assert results.rows[1].error.startswith("the process ended with code 1: ")
    assert results.rows[1].error.endswith("ValueError: no such layer")


def test_a_killed_process_is_named():
    body = f'{GOOD}\nif name == "bert": os.kill(os.getpid(), 9)'
    results = run(SETTINGS, command=command(body))
    assert results.rows[1].error == "the process was ended by SIGKILL"


SLEEPING = """
tell(row={"workload": name, "variant": "eager", "peak_bytes": os.getpid()})
tell(say=["time", 0.5, ""])
import time
time.sleep(600)
"""


def test_an_interrupt_keeps_what_is_known_and_ends_the_process():
    def interrupt(stage, done, note=""):
        raise KeyboardInterrupt

    results = run(SETTINGS, interrupt, command(SLEEPING))
    assert not results.complete
    ((workload, process),) = ((row.workload, row.peak_bytes) for row in results.rows)
    assert workload == "bert"
    with pytest.raises(ProcessLookupError):
        os.kill(process, 0)
