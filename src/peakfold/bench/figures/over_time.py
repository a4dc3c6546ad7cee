"""Figure 16: bytes over the time of a step, eager's and ours at shares of its peak."""

from collections.abc import Iterator

from peakfold.bench.figures.studied import Asked, Row, Studied, studied
from peakfold.errors import InfeasibleError
from peakfold.ir.plan import Plan
from peakfold.plan.fission.derive import derived
from peakfold.plan.fission.program import outer_plan, planned
from peakfold.plan.schedule.timeline import Timeline

SHARES = (0.8, 0.6)
"""Most bytes over eager's."""


def memory_over_time(name: str, asked: Asked) -> Iterator[Row]:
    """Yield a row for the plan that drops nothing, and one for each share."""
    one = studied(name, asked)
    yield {"workload": name, "memory": None, **_line(one, Plan(one.graph.digest))}
    for share in SHARES:
        try:
            found = one.search(asked, memory=share).run()
        except InfeasibleError as error:
            yield {
                "workload": name,
                "memory": share,
                "lowest_memory_ratio": error.lowest_peak_bytes / one.eager,
            }
            continue
        yield {"workload": name, "memory": share, **_line(one, found.plan)}


def _line(one: Studied, plan: Plan) -> Row:
    found = derived(one.graph, plan)
    nest = planned(found, outer_plan(plan, found), one.costs_of)
    return {**one.ratios(nest.timeline.peak, nest.timeline.seconds), "points": _points(nest.timeline)}


def _points(line: Timeline) -> list[list[float]]:
    """Seconds at which each step ends, and the most bytes during it; a loop is one step."""
    return [[float(end), int(held)] for end, held in zip(line.end, line.during, strict=True)]
