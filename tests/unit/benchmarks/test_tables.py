"""The page that is made of the JSON of the figures."""

from dataclasses import replace

import pytest

from benchmarks import tables
from peakfold.bench.rows import Row, row_to_dict

MACHINE = {"cpu": "EPYC", "threads": "1", "torch": "2.13.0"}


def file(figure, *rows):
    return {"figure": figure, "environment": MACHINE, "rows": list(rows)}


def bench(*rows):
    return {"environment": MACHINE, "rows": [row_to_dict(row) for row in rows]}


def section(text, title):
    """Return the cells of the table under a heading, without those of its head."""
    _, after = text.split(f"### {title}\n")
    body = after.split("### ")[0]
    lines = [line for line in body.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def budget(nbytes, peak=None, ratio=1.0, **more):
    head = {"workload": "bert", "budget_bytes": nbytes, "eager_peak_bytes": 200, "lower_bound_bytes": 50}
    if peak is None:
        return {**head, "refused": True}
    found = {"peak_bytes": peak, "predicted_peak_bytes": peak, "predicted_latency_ratio": ratio}
    return {**head, "refused": False, **found, "within": peak <= nbytes, **more}


def test_without_files_every_table_says_that_it_was_not_measured():
    text = tables.page([])
    assert text.count("Not measured yet.") == len(tables.SECTIONS)
    assert all(command.line in text for command in tables.COMMANDS.values())


def test_the_machine_is_named_once():
    assert tables.page([file("demo"), file("capture")]).startswith(
        "Measured on: cpu EPYC, threads 1, torch 2.13.0.\n\n| figures"
    )


def test_budgets():
    rows = [
        budget(200, 190, 1.0, steps=10, marks=10, equal_steps=10),
        budget(100, 90, 1.2),
        budget(60, 61, 1.1, steps=12, marks=12, equal_steps=11),
        budget(50),
    ]
    text = tables.page([file("budgets", *rows)])
    title = "Twenty budgets from eager's peak to the proven lower bound"
    assert section(text, title) == [["bert", "3 / 1", "1", "NO", "0.250", "1.200", "1.220"]]
    assert section(text, "Simulated live bytes against measured, after each step") == [
        ["bert", "2", "21 of 22", "NO, 1 differ"]
    ]
    assert section(text, "Predicted peak over the allocator's") == [["bert", "3", "1.0000", "1.0000"]]


def test_peers():
    rows = (
        Row("bert", "eager", "", 100, 1.0, 1.0, 1.0, equal=True, max_error=0.0),
        Row("bert", "checkpoint-1", "", 60, 1.05, 0.6, 1.05, equal=True, max_error=0.0),
        Row("bert", "compile-0.5", error="Failed: no\nsecond line"),
        Row("bert", "peakfold", "none", 95, 1.0, 0.95, 1.0, 95, 1.0, 1.1, equal=True, max_error=0.0),
        Row("bert", "peakfold", "latency 1.10", 50, 1.08, 0.5, 1.08, 50, 1.1, 1.2, 40, 3.0, True, 0.0),
    )
    text = tables.page([bench(*rows)])
    assert section(text, "Memory within a time") == [
        ["bert", "1.05", "0.950", "", "0.600 (checkpoint-1)", "0.400", "NO"],
        ["bert", "1.10", "0.500", "0.58", "0.600 (checkpoint-1)", "0.400", "yes"],
        ["bert", "1.35", "0.500", "", "0.600 (checkpoint-1)", "0.400", "yes"],
    ]
    assert [cells[1] for cells in section(text, "Memory within the time of each checkpointing peer")] == [
        "1.00 (eager)",
        "1.05 (checkpoint-1)",
    ]
    assert section(text, "Predicted time against measured") == [["bert", "2", "11.1%", "1.9%"]]
    variants = section(text, "All variants")
    assert variants[2] == ["bert", "compile-0.5", "-", "-", "-", "Failed: no"]
    assert variants[4] == ["bert", "peakfold latency 1.10", "0.0", "0.500", "1.080", "every bit"]


def test_programs_in_arenas_have_tables_of_their_own():
    eager = Row("bert", "eager", "", 100, 1.0, 1.0, 1.0, equal=True, max_error=0.0)
    mine = Row("bert", "peakfold", "latency 1.10", 50, 1.0, 0.5, 1.0, equal=True, max_error=0.0)
    other = bench(eager, replace(mine, memory_ratio=0.4, allocator="arena")) | {"settings": {"arena": True}}
    text = tables.page([bench(eager, mine), other])
    title = "Memory within the time of each checkpointing peer"
    assert [cells[2] for cells in section(text, title)] == ["0.500"]
    assert [cells[2] for cells in section(text, f"{title}, in arenas")] == ["0.400"]
    assert [len(section(text, f"All variants{where}")) for where in ("", ", in arenas")] == [2, 2]


@pytest.mark.parametrize(
    ("figure", "row", "title", "cells"),
    [
        (
            "capture",
            {
                "workload": "gptneo",
                "cpu_seconds": 3.21,
                "nodes": 2000,
                "unsupported": [],
                "parameters": 1_315_575_808,
                "materialised": 0,
            },
            "Capture at paper size, no weights",
            ["gptneo", "3.2", "2,000", "none", "1,316 M, 0 materialised"],
        ),
        (
            "planning",
            {
                "workload": "bert",
                "size": "paper",
                "seconds": 20.0,
                "stages": {"capture": 3.0, "profile": 0.0, "search": 15.0, "codegen": None},
                "stop_reason": "time",
            },
            "Planning, wall seconds with empty caches",
            ["bert", "paper", "20.0", "3.0", "0.0", "15.0", "-", "time"],
        ),
        (
            "overhead",
            {
                "workload": "small",
                "nodes": 400,
                "eager_cpu_seconds": 0.03,
                "untouched_ratio": 1.01,
                "plain_ratio": 0.99,
            },
            "Emitted code with nothing optimized, over eager",
            ["small", "400", "30.0 ms", "1.010", "0.990"],
        ),
        (
            "simulations",
            {"nodes": 2000, "rows": 4559, "per_second": 47226.2},
            "Full simulations a second",
            ["2,000", "4,559", "47,226"],
        ),
        (
            "equality",
            {
                "workload": "bert",
                "optimizer": "adamw",
                "dropout": 0.1,
                "steps": 3,
                "recomputed": 70,
                "bit_equal": False,
                "worst": "head.weight",
                "max_error": 1e-3,
            },
            "Equality",
            ["bert", "adamw", "0.1", "3", "70", "NO: head.weight 1.0e-03"],
        ),
        (
            "demo",
            {"cold_seconds": 200.0, "warm_seconds": 50.0, "memory_ratios": [0.5, 0.49]},
            "The demo",
            ["200 s", "50 s", "0.25", "0.500, 0.490"],
        ),
    ],
)
def test_each_figure(figure, row, title, cells):
    assert section(tables.page([file(figure, row)]), title) == [cells]


def test_a_workload_that_failed_is_named():
    text = tables.page([file("capture", {"workload": "vit", "error": "CaptureError: no"})])
    assert "Failed:\n\n- vit: CaptureError: no" in text


def test_a_page_is_written_again():
    page = f"head\n{tables.BEGIN}\n{tables.END}\ntail\n"
    once = tables.placed(page, "one")
    assert tables.placed(tables.placed(page, "two"), "one") == once
    assert once == f"head\n{tables.BEGIN}\n\none\n\n{tables.END}\ntail\n"
