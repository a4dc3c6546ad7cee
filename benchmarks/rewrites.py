"""Which rewrites lower the peak on which workload.

``python -m benchmarks.rewrites [--workloads bert,unet] [--size cpu] [--device rtx3090] [--latency 1.1]``
prints JSON: one row for each workload and family of rewrites, with its moves, and the peak before and after:
in program order, nothing recomputed, and under the best plan found within the time; then one row for each
workload with what the search over all families at once comes to, those alone that keep every bit and all.
Nothing is run: seconds are those of a described device, and the figures are the same in every run.

With ``--time`` it prints what rewriting takes, by rules and templates, and what its account adds up to.
"""

import argparse
import json
import sys
import time
from collections.abc import Iterator, Sequence

from peakfold.bridge.runtime.retype import retyped
from peakfold.cost import roofline
from peakfold.cost.costs import Costs
from peakfold.graph.rewrite.cheapest import cheapest
from peakfold.graph.rewrite.liveness import peak
from peakfold.graph.rewrite.simplify import simplify
from peakfold.graph.wl import hashed
from peakfold.ir.graph import Graph
from peakfold.pipeline.machine import environment
from peakfold.pipeline.task import Task
from peakfold.plan.schedule.goal import Goal
from peakfold.plan.search.rewrites import FAMILIES, INTERIM, State, by_planner, moved, rewritten
from peakfold.workloads import NAMES, build


def rows(
    workload: str, size: str, device: str, latency: float, iterations: int
) -> Iterator[dict[str, object]]:
    """Yield one row for each family that has a move in a workload."""
    graph = simplify(Task.of(build(workload, size)).capture().graph).graph

    known: dict[str, Costs] = {}

    def costs_of(one: Graph) -> Costs:
        if one.digest not in known:
            known[one.digest] = roofline.estimate(one, device)
        return known[one.digest]

    limit = latency * sum(costs_of(graph).seconds.values())
    goal = Goal(None, limit)
    search = by_planner(goal, iterations=iterations, seconds=120.0)
    for kind, families in (("bits kept", INTERIM), ("all", FAMILIES)):
        keep_bits = kind == "bits kept"
        states = rewritten(graph, costs_of, retyped, search, goal, families=families, keep_bits=keep_bits)
        yield {
            "workload": workload,
            "rewrite": "+".join(name for name, _ in states[0].families),
            "kind": f"joint, {kind}",
            "states": len(states),
            "program_order_peak_before": peak(graph),
            "program_order_peak_after": min(peak(state.graph) for state in states),
            "planned_peak_before": _planned(next(state for state in states if not state.families)),
            "planned_peak_after": _planned(states[0]),
        }
    for name, family in FAMILIES.items():
        after = moved(State(hashed(graph)), name, family, retyped, keep_bits=False)
        if after is None:
            continue
        states = rewritten(
            graph, costs_of, retyped, search, goal, families={name: family}, keep_bits=False, most=2
        )
        by = {bool(state.families): state for state in states}
        yield {
            "workload": workload,
            "rewrite": name,
            "kind": "interim" if name in INTERIM else "aggregation",
            "places": dict(after.families)[name],
            "keeps_bits": all(move.keeps_bits for move in family(graph)),
            "program_order_peak_before": peak(graph),
            "program_order_peak_after": peak(after.graph),
            "planned_peak_before": _planned(by.get(False)),
            "planned_peak_after": _planned(by.get(True)),
        }


def timed(workload: str, size: str, device: str) -> dict[str, object]:
    """Return the seconds that rewriting a workload takes, and the sum of its account."""
    captured = Task.of(build(workload, size)).capture().graph
    wall, cpu = time.perf_counter(), time.process_time()
    simple = simplify(captured)
    found = cheapest(simple.graph, lambda graph: roofline.estimate(graph, device).seconds, retyped)
    cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
    accounts = [float(str(row["seconds"])) for one in (simple, found) for row in one.account.rows()]
    return {
        "workload": workload,
        "nodes": len(captured.nodes),
        "nodes_simplified": len(simple.graph.nodes),
        "cpu_seconds": cpu,
        "wall_seconds": wall,
        "account_seconds": sum(accounts),
        "stop": found.stop,
    }


def _planned(state: State | None) -> int | None:
    return None if state is None or state.point is None else state.point.peak_bytes


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the table as JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--workloads", default=",".join(NAMES))
    parser.add_argument("--size", default="cpu", choices=("tiny", "cpu", "paper"))
    parser.add_argument("--device", default="rtx3090", help="a described device")
    parser.add_argument("--latency", type=float, default=1.1, help="most seconds over the program's own")
    parser.add_argument("--iterations", type=int, default=200)
    parser.add_argument("--time", action="store_true", help="time rewriting instead")
    chosen = parser.parse_args(arguments)
    names = chosen.workloads.split(",")
    found = [timed(name, chosen.size, chosen.device) for name in names if chosen.time] or [
        row
        for workload in names
        for row in rows(workload, chosen.size, chosen.device, chosen.latency, chosen.iterations)
    ]
    json.dump({"environment": environment(0), "rows": found}, sys.stdout, indent=1)
    print()


if __name__ == "__main__":
    main()
