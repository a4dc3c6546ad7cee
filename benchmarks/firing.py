"""Which rules and templates fire on the workloads, and which of them pay.

``python -m benchmarks.firing [--workloads bert,unet:inference] [--size tiny] [--device rtx3090]``
prints JSON: one row for each workload, in training and, for those with convolutions, in inference. Each
rule, by hand and of the book, is looked for everywhere in the graph after the passes; each place where it
can be applied is one *firing*, priced alone against the graph as it is, by the seconds of a described
device and the bytes alive in program order. Templates and rewrites for memory are made everywhere at once.
Nothing is run: the figures are the same in every run.
"""

import argparse
import json
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial

from peakfold.bridge.runtime.retype import retyped
from peakfold.cost import roofline
from peakfold.graph.rewrite.account import Account
from peakfold.graph.rewrite.candidate import Candidate
from peakfold.graph.rewrite.change import Refusal
from peakfold.graph.rewrite.driver import Terms, neighbours
from peakfold.graph.rewrite.improve import improved
from peakfold.graph.rewrite.layout import laid_out
from peakfold.graph.rewrite.liveness import peak
from peakfold.graph.rewrite.rules import book_rules, hand_rules
from peakfold.graph.rewrite.simplify import simplify
from peakfold.graph.rewrite.templates import TEMPLATES, Template
from peakfold.graph.wl import hashed
from peakfold.ir.graph import Graph
from peakfold.pipeline.machine import environment
from peakfold.pipeline.task import Task
from peakfold.plan.search.rewrites import INTERIM, State, moved
from peakfold.workloads import NAMES, build

CONVOLUTIONAL = ("resnet50", "unet", "unetpp")
FREE = Terms(may_raise_peak=True, margin=-1e9)
"""Everything that can be made is made, whatever it costs."""


@dataclass
class Fired:
    """What one rule comes to on a graph, each firing alone.

    Attributes:
        name: of the rule.
        matched: places where its left side is.
        fired: places where it can be applied.
        refused: why it was not, at the others.
        faster: firings that save seconds.
        seconds_saved: by all of these, each alone.
        pays: firings that save seconds, and raise no peak.
        lowers_peak: firings that lower the peak in program order.
        most_bytes_saved: by one firing.
    """

    name: str
    matched: int = 0
    fired: int = 0
    refused: dict[str, int] = field(default_factory=dict)
    faster: int = 0
    seconds_saved: float = 0.0
    pays: int = 0
    lowers_peak: int = 0
    most_bytes_saved: int = 0


def _seconds(device: str, graph: Graph) -> Mapping[int, float]:
    return roofline.estimate(graph, device).seconds


def rules_on(graph: Graph, device: str) -> list[Fired]:
    """Return what each rule comes to whose left side is somewhere in a graph."""
    account, known, before = Account(), _seconds(device, graph), peak(graph)
    fired: dict[str, Fired] = {}
    for found in neighbours(graph, (*hand_rules(), *book_rules()), account=account):
        _counted(fired.setdefault(found.rule.name, Fired(found.rule.name)), found, known, device, before)
    for name, entry in account.entries.items():
        if entry.matched:
            one = fired.setdefault(name, Fired(name))
            one.matched, one.refused = entry.matched, dict(entry.refused)
    return sorted(fired.values(), key=lambda one: (-one.seconds_saved, -one.fired, one.name))


def _counted(one: Fired, found: Candidate, known: Mapping[int, float], device: str, before: int) -> None:
    gain = found.gain(known, partial(_seconds, device))
    made = found.apply()
    if isinstance(made, Refusal):
        return
    saved = before - peak(made.graph)
    one.fired += 1
    one.lowers_peak += saved > 0
    one.most_bytes_saved = max(one.most_bytes_saved, saved)
    if gain > 0:
        one.faster += 1
        one.seconds_saved += gain
        one.pays += saved >= 0


def templates_on(graph: Graph, device: str) -> Iterator[dict[str, object]]:
    """Yield what each template comes to, made at all of its places, and where it is asked to pay."""
    price = partial(_seconds, device)
    layouts: Mapping[str, Template] = {"channels_last": partial(laid_out, price=price, retype=retyped)}
    for name, template in {**TEMPLATES, **layouts}.items():
        made = {
            kind: improved(graph, price, retyped, templates={name: template}, terms=terms)
            for kind, terms in (("everywhere", FREE), ("where_it_pays", Terms()))
        }
        entry = made["everywhere"].account[name]
        if entry.matched:
            yield {
                "name": name,
                "matched": entry.matched,
                "refused": dict(made["where_it_pays"].account[name].refused),
                **{
                    kind: {
                        "fired": len(one.steps),
                        "seconds_saved": one.before - one.after,
                        "bytes_saved": peak(graph) - peak(one.graph),
                    }
                    for kind, one in made.items()
                },
            }


def memory_on(graph: Graph, device: str) -> Iterator[dict[str, object]]:
    """Yield what each rewrite for memory comes to, made at all of its places."""
    before = sum(_seconds(device, graph).values())
    for name, family in INTERIM.items():
        after = moved(State(hashed(graph)), name, family, retyped, keep_bits=False)
        if after is not None:
            yield {
                "name": name,
                "fired": dict(after.families)[name],
                "seconds_saved": before - sum(_seconds(device, after.graph).values()),
                "bytes_saved": peak(graph) - peak(after.graph),
            }


def row(workload: str, inference: bool, size: str, device: str) -> dict[str, object]:
    """Return what all of it comes to on a workload."""
    start = time.process_time()
    graph = simplify(Task.of(build(workload, size, inference=inference)).capture().graph).graph
    rules = rules_on(graph, device)
    why = Counter[str]()
    for one in rules:
        why.update(one.refused)
    return {
        "workload": workload,
        "mode": "inference" if inference else "training",
        "nodes": len(graph.nodes),
        "seconds": sum(_seconds(device, graph).values()),
        "peak_bytes": peak(graph),
        "rules_looked_for": len(hand_rules()) + len(book_rules()),
        "rules_matched": len(rules),
        "rules_fired": sum(one.fired > 0 for one in rules),
        "rules_that_pay": [one.name for one in rules if one.pays],
        "refused": dict(why.most_common()),
        "rules": [asdict(one) for one in rules],
        "templates": list(templates_on(graph, device)),
        "memory": list(memory_on(graph, device)),
        "cpu_seconds": round(time.process_time() - start, 1),
    }


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the rows as JSON."""
    every = ",".join((*NAMES, *(f"{name}:inference" for name in CONVOLUTIONAL)))
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--workloads", default=every)
    parser.add_argument("--size", default="tiny", choices=("tiny", "cpu", "paper"))
    parser.add_argument("--device", default="rtx3090", help="a described device")
    chosen = parser.parse_args(arguments)
    names = [name.partition(":") for name in chosen.workloads.split(",")]
    rows = [row(name, kind == "inference", chosen.size, chosen.device) for name, _, kind in names]
    json.dump({"environment": environment(0), "rows": rows}, sys.stdout, indent=1)
    print()


if __name__ == "__main__":
    main()
