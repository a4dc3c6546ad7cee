"""Equality saturation against best-first search, by the same rules: what each finds, and how soon.

``python -m benchmarks.searches [--only WORD] [--workloads bert,resnet50:inference] [--size tiny]``
prints JSON: one row for each fragment, for all of them in one program, and for each workload, by the rules
by hand and by all. Nothing is run: the seconds of a program are those of a model, the same in every run;
those of the searches are CPU seconds, of a search that a limit stopped those until then.
"""

import argparse
import json
import math
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence

import torch

from benchmarks.fragments import FRAGMENTS, Fragment, Piece, operands
from peakfold.bridge.runtime.retype import retyped
from peakfold.cost.roofline import CPU, seconds_of
from peakfold.graph.rewrite.driver import Found, Limits, search
from peakfold.graph.rewrite.passes.lift import LiftedViews
from peakfold.graph.rewrite.passes.views import CanonicalViews
from peakfold.graph.rewrite.rules import book_rules, hand_rules
from peakfold.graph.rewrite.saturate import saturated
from peakfold.graph.rewrite.simplify import PASSES, simplify
from peakfold.ir.graph import Graph
from peakfold.pipeline.machine import environment
from peakfold.pipeline.task import Task
from peakfold.workloads import build

SAME = 1 + 1e-6
GOAL = 10.0
"""How many times the CPU seconds of saturation best-first search is to take."""


def price(graph: Graph) -> Mapping[int, float]:
    """Return the seconds of a model."""
    return {node.id: seconds_of(graph, node, CPU) for node in graph.nodes if not node.is_view}


class All(torch.nn.Module):
    """All fragments in one program."""

    def __init__(self, fragments: Sequence[Fragment]) -> None:
        super().__init__()
        self.fragments = fragments

    def forward(self, *given: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Return the result of each on its operands."""
        left = iter(given)
        return tuple(one.function(*(next(left) for _ in one.shapes)) for one in self.fragments)


def programs(only: str, workloads: Sequence[str], size: str) -> Iterator[tuple[str, Graph]]:
    """Yield programs with their names."""
    fragments = [one for one in FRAGMENTS if only in one.name]
    for one in fragments:
        yield one.name, _prepared(Task(Piece(one.function), None, None, operands(one)))
    if len(fragments) > 1:
        given = tuple(tensor for one in fragments for tensor in operands(one))
        yield "all of these in one program", _prepared(Task(All(fragments), None, None, given))
    for name in filter(None, workloads):
        workload, _, kind = name.partition(":")
        yield name, _prepared(Task.of(build(workload, size, inference=kind == "inference")))


def _prepared(task: Task) -> Graph:
    return simplify(task.capture().graph, (*PASSES, LiftedViews(), CanonicalViews())).graph


def compared(graph: Graph, limits: Limits) -> dict[str, object]:
    """Return what both searches find by the rules by hand, and by all."""
    hand, book = hand_rules(), book_rules()
    ways: dict[str, dict[str, Callable[[], Found]]] = {
        "by_hand": {
            "best_first": lambda: search(graph, hand, price, limits=limits),
            "saturation": lambda: saturated(graph, hand, price, limits=limits, retype=retyped),
        },
        "all": {
            "best_first": lambda: search(graph, (*hand, *book), price, limits=limits),
            "saturation": lambda: saturated(graph, hand, price, limits=limits, retype=retyped, further=book),
        },
    }
    return {rules: _pair(way) for rules, way in ways.items()}


def _pair(ways: Mapping[str, Callable[[], Found]]) -> dict[str, object]:
    row: dict[str, object] = {}
    cost, took = {}, {}
    for name, way in ways.items():
        start = time.process_time()
        found = way()
        took[name], cost[name] = time.process_time() - start, found.after
        row[name] = {"seconds": found.after, "cpu_seconds": round(took[name], 4), "stop": found.stop}
    row["same_or_lower"] = cost["saturation"] <= cost["best_first"] * SAME
    row["times_as_quick"] = round(took["best_first"] / took["saturation"], 2)
    return row


def summary(rows: Sequence[Mapping[str, Mapping[str, object]]], rules: str) -> dict[str, object]:
    """Return how often saturation finds as little, and how many times as quick it is."""
    ratios = [float(str(row[rules]["times_as_quick"])) for row in rows]
    return {
        "rows": len(rows),
        "same_or_lower": sum(bool(row[rules]["same_or_lower"]) for row in rows),
        "geomean_times_as_quick": round(math.exp(sum(map(math.log, ratios)) / len(ratios)), 2),
        "goal_times_as_quick": GOAL,
        "reach_it": [row["program"] for row, ratio in zip(rows, ratios, strict=True) if ratio >= GOAL],
    }


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the figures as JSON."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", default="", help="fragments whose names have this in them")
    parser.add_argument("--workloads", default="bert,resnet50:inference")
    parser.add_argument("--size", default="tiny", choices=("tiny", "cpu", "paper"))
    parser.add_argument("--states", type=int, default=60, help="most graphs that best-first search expands")
    parser.add_argument("--seconds", type=float, default=30.0, help="most wall seconds of a search")
    asked = parser.parse_args(arguments)
    limits = Limits(states=asked.states, seconds=asked.seconds)
    rows = []
    for name, graph in programs(asked.only, asked.workloads.split(","), asked.size):
        row: dict[str, object] = {"program": name, "nodes": len(graph.nodes)}
        row |= {"before": sum(price(graph).values()), **compared(graph, limits)}
        rows.append(row)
    summaries = {rules: summary(rows, rules) for rules in ("by_hand", "all")}  # type: ignore[arg-type]
    json.dump({"environment": environment(0), "summary": summaries, "rows": rows}, sys.stdout, indent=1)
    print()


if __name__ == "__main__":
    main()
