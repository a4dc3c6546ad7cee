"""Figures 11 and 12: bytes against time, ours, the literature's planners, and micro-batches with them."""

from collections.abc import Iterator

import numpy as np

from peakfold.bench.figures.studied import Asked, Row, Studied, studied
from peakfold.errors import PeakfoldError
from peakfold.ir.plan import Plan
from peakfold.plan.fission.choices import Choice, priced
from peakfold.plan.fission.derive import derive
from peakfold.plan.fission.prepare import prepare
from peakfold.plan.fission.tree import region_of
from peakfold.plan.literature import PLANNERS, Name, Subject
from peakfold.plan.schedule.lower import lower
from peakfold.plan.schedule.simulate import simulate
from peakfold.plan.schedule.timeline import Timeline
from peakfold.plan.search.joint import optimize_front
from peakfold.plan.search.roots import Roots, tree_of

TIMES = (1.0, 1.05, 1.1, 1.2, 1.35)
"""Times, over eager's, at which the least bytes matter most."""
MICRO = (1, 2, 4, 8, 16)
"""Micro-batches."""
INSIDE: tuple[Name, ...] = ("chen", "rotor")
"""Planners inside a micro-batch."""
LEVELS = 6
"""Budgets inside a micro-batch."""


def fronts(name: str, asked: Asked) -> Iterator[Row]:
    """Yield the points of each curve."""
    one = studied(name, asked)
    yield from ({"workload": name, "curve": planner, **one.ratios(*at)} for planner, *at in one.peers(asked))
    yield from _ours(one, asked)


def micro_batches(name: str, asked: Asked) -> Iterator[Row]:
    """Yield micro-batches, alone and with the literature's planners inside, and ours."""
    one = studied(name, asked)
    yield from _micro(one, asked)
    yield from _ours(one, asked)


def _ours(one: Studied, asked: Asked) -> Iterator[Row]:
    archive, _ = optimize_front(
        one.graph,
        one.costs,
        one.costs_of,
        times=[ratio * one.seconds for ratio in TIMES],
        time_budget=asked.time_budget,
        seed=asked.seed,
        progress=asked.tell("the front"),
        workers=asked.workers,
    )
    for point in archive.front:
        ratios = one.ratios(point.peak_bytes, point.seconds)
        yield {"workload": one.name, "curve": "peakfold", **ratios}


def _micro(one: Studied, asked: Asked) -> Iterator[Row]:
    graph = prepare(one.graph)
    tree = tree_of(graph, one.costs_of(graph), Roots(tree=False))
    batch = [candidate for candidate in tree.candidates if candidate.axis == "batch" and not candidate.rest]
    for count in MICRO if batch else ():
        if count == 1 or count > batch[0].length or batch[0].length % count:
            continue
        derived = derive(graph, (region_of(batch[0], count),))
        ((ident, body),) = derived.bodies.items()
        subject = Subject.of(body.graph, one.costs_of(body.graph))
        resident = subject.tables.resident
        plain = simulate(body.graph, subject.costs, lower(body.graph, Plan(body.graph.digest)))
        ways: list[tuple[str, Timeline]] = [("alone", plain)]
        for inner in INSIDE:
            for budget in np.linspace(plain.peak, resident, LEVELS + 1)[1:-1].tolist():
                asked.said(f"{inner} inside {count} micro-batches")
                try:
                    ways.append((inner, PLANNERS[inner](subject, int(budget)).timeline))
                except PeakfoldError:
                    continue
        for planner, inside in ways:
            choice = Choice(inside.peak - resident, body.parts * inside.seconds, body.region)
            costs = priced(derived.graph, one.costs_of(derived.graph), {ident: choice})
            line = simulate(derived.graph, costs, lower(derived.graph, Plan(derived.graph.digest)))
            yield {
                "workload": one.name,
                "curve": f"micro-batches, {planner}",
                "parts": count,
                **one.ratios(line.peak, line.seconds),
            }
