"""What a search knows, to go on with it another time.

States are sketched again, which is quick and gives the same; those that were planned are taken as they are,
so that a search that is gone on with comes to what it would have come to without the break.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TypeVar

from peakfold.errors import CacheError, InfeasibleError, PeakfoldError
from peakfold.ir.graph import Graph
from peakfold.ir.plan import Plan
from peakfold.ir.text import parse_plan, print_plan
from peakfold.plan.fission.derive import Splitter
from peakfold.plan.fission.tree import Parts
from peakfold.plan.schedule.found import Point
from peakfold.plan.schedule.goal import Goal

N = TypeVar("N", int, float)

FORMAT = "peakfold search 1"


@dataclass(frozen=True)
class Visit:
    """A state that was planned.

    Attributes:
        parts: the state.
        states: plans that were decoded for it.
        figures: peak in bytes and seconds of what was found.
        front: the best with their plans; none for one that comes from a file: plans are in the front of all.
        error: why there is none within the limits; None where the state cannot be split at all.
    """

    parts: Parts
    states: int
    figures: tuple[tuple[int, float], ...] = ()
    front: tuple[Point, ...] = ()
    error: InfeasibleError | None = None

    def __reduce__(self) -> tuple[object, ...]:
        """Carry the error between processes by its fields."""
        return _visit, (self.parts, self.states, self.figures, self.front, _fields(self.error))


def _visit(
    parts: Parts,
    states: int,
    figures: tuple[tuple[int, float], ...],
    front: tuple[Point, ...],
    error: Mapping[str, str | int] | None,
) -> Visit:
    return Visit(parts, states, figures, front, _error(error))


def _fields(error: InfeasibleError | None) -> dict[str, str | int] | None:
    if error is None:
        return None
    bytes_ = {"lowest_peak_bytes": error.lowest_peak_bytes, "lower_bound_bytes": error.lower_bound_bytes}
    return {**asdict(error), **bytes_}


def _error(fields: Mapping[str, str | int] | None) -> InfeasibleError | None:
    if fields is None:
        return None
    texts = {name: str(text) for name, text in fields.items() if not name.endswith("_bytes")}
    error = InfeasibleError(**texts)
    error.lowest_peak_bytes = int(fields["lowest_peak_bytes"])
    error.lower_bound_bytes = int(fields["lower_bound_bytes"])
    return error


@dataclass(frozen=True)
class Unsplit:
    """What planning without regions came to.

    Attributes:
        bound: bytes that are proved to be needed without regions.
        states: plans that were decoded.
        error: why none is within the limits.
    """

    bound: int
    states: int
    error: InfeasibleError | None = None


@dataclass(frozen=True)
class Saved:
    """What a search knows.

    Attributes:
        goal: the limits.
        unsplit: of the plan without regions.
        visits: states that were planned, in order.
        front: the best plans.
    """

    goal: Goal
    unsplit: Unsplit
    visits: tuple[Visit, ...]
    front: tuple[Point, ...]

    def within(self, goal: Goal) -> "Saved | None":
        """Return it if it is for the same limits; None if not, where its front alone is of use."""
        return self if self.goal == goal else None


def text_of(saved: Saved, graph: Graph, key: str) -> str:
    """Return a search as JSON.

    Args:
        saved: what it knows.
        graph: the program.
        key: of everything else that decides what plans come to: costs, seed, iterations.
    """
    splitter = Splitter()
    unsplit = saved.unsplit
    entry = {
        "format": FORMAT,
        "graph": graph.digest,
        "key": key,
        "memory": saved.goal.memory,
        "latency": saved.goal.latency,
        "unsplit": {
            "bound": unsplit.bound,
            "states": unsplit.states,
            "error": _fields(unsplit.error),
        },
        "visits": [
            {
                "parts": list(one.parts),
                "states": one.states,
                "figures": [list(figures) for figures in one.figures],
                "error": _fields(one.error),
            }
            for one in saved.visits
        ],
        "front": [
            {
                "peak_bytes": one.peak_bytes,
                "seconds": one.seconds,
                "plan": print_plan(one.plan, graph, splitter=splitter),
            }
            for one in saved.front
        ],
    }
    return json.dumps(entry, indent=1) + "\n"


def read(text: str, graph: Graph, key: str, where: str) -> Saved:
    """Return the search that a text says.

    Args:
        text: what `text_of` made.
        graph: the program.
        key: of everything else that decides what plans come to.
        where: the name of the file, for errors.

    Raises:
        CacheError: it is damaged, or for another graph or another question.
    """
    try:
        entry = json.loads(text)
        if not isinstance(entry, dict) or entry.get("format") != FORMAT:
            raise _refused("the saved search cannot be read", where, FORMAT, _head(text))
        if entry["graph"] != graph.digest:
            expected, got = f"graph {graph.digest}", f"graph {entry['graph']}"
            raise _refused("the saved search is for another graph", where, expected, got)
        if entry["key"] != key:
            what = "the saved search is for other costs, another seed or number of iterations"
            raise _refused(what, where, f"a search with key {key}", f"key {entry['key']}")
        return _saved(entry, graph)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        got = f"{type(error).__name__}: {error}"
        raise _refused("the saved search is damaged", where, FORMAT, got) from None
    except CacheError:
        raise
    except PeakfoldError as error:
        raise _refused("a plan of the saved search cannot be read", where, "a plan", str(error)) from None


def _saved(entry: Mapping[str, object], graph: Graph) -> Saved:
    splitter = Splitter()
    unsplit, visits, front = entry["unsplit"], entry["visits"], entry["front"]
    assert isinstance(unsplit, dict)
    assert isinstance(visits, list)
    assert isinstance(front, list)

    def plan(text: str) -> Plan:
        return parse_plan(text, graph, splitter)

    return Saved(
        Goal(_number(entry["memory"], int), _number(entry["latency"], float)),
        Unsplit(int(unsplit["bound"]), int(unsplit["states"]), _error(unsplit["error"])),
        tuple(
            Visit(
                tuple(int(n) for n in one["parts"]),
                int(one["states"]),
                tuple((int(peak), float(seconds)) for peak, seconds in one["figures"]),
                (),
                _error(one["error"]),
            )
            for one in visits
        ),
        tuple(Point(int(p["peak_bytes"]), float(p["seconds"]), plan(p["plan"])) for p in front),
    )


def _number(given: object, kind: type[N]) -> N | None:
    return None if given is None else kind(str(given))


def _head(text: str) -> str:
    return repr(text[:40])


def _refused(what: str, where: str, expected: str, got: str) -> CacheError:
    return CacheError(
        stage="search",
        what=what,
        where=where,
        expected=expected,
        got=got,
        hint="ask for what the search was saved from, or search anew without --resume",
    )
