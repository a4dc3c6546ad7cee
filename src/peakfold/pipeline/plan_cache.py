"""Plans that were found before: one small file each, by everything that decides them."""

import hashlib
import json
import os
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from peakfold.cost.costs import Costs
from peakfold.errors import PeakfoldError
from peakfold.ir.graph import Graph
from peakfold.ir.plan import Plan
from peakfold.ir.text import parse_plan, print_plan
from peakfold.plan.fission.derive import Splitter

FORMAT = 1


@dataclass(frozen=True)
class Kept:
    """What a search came to.

    Attributes:
        plan: the decisions.
        lower_bound_bytes: a proven lower bound of the peak.
        stop_reason: why the search ended.
        states: how many plans it looked at.
    """

    plan: Plan
    lower_bound_bytes: int
    stop_reason: str
    states: int


def key_of(graph: Graph, costs: Costs, asked: object) -> str:
    """Return a key of everything that decides a plan: graph, costs and what is asked."""
    state = hashlib.sha256(f"{FORMAT} {graph.digest} {asked!r}".encode())
    for node in graph.nodes:
        state.update(repr((costs.seconds.get(node.id), costs.workspace.get(node.id))).encode())
    return state.hexdigest()[:24]


def load(folder: Path, key: str, graph: Graph) -> tuple[Kept | None, str | None]:
    """Return the plan of a key, and what went wrong; None for what is not there.

    A file that cannot be read as a plan of this graph is moved aside.
    """
    path = folder / f"{key}.json"
    try:
        return (_read(path, graph) if path.is_file() else None), None
    except OSError as error:
        return None, f"a plan that was kept cannot be read: {error.strerror or error}: {path}"
    except (ValueError, KeyError, TypeError, RecursionError, PeakfoldError):
        return None, moved_aside(path, "a plan that was kept", "searched for")


def _read(path: Path, graph: Graph) -> Kept:
    found = json.loads(path.read_text())
    return Kept(
        plan=parse_plan(found["plan"], graph, Splitter()),
        lower_bound_bytes=int(found["lower_bound_bytes"]),
        stop_reason=str(found["stop_reason"]),
        states=int(found["states"]),
    )


def moved_aside(path: Path, what: str, done: str) -> str:
    """Move a file that cannot be read aside, and return what to tell of it.

    Args:
        path: the file.
        what: it should be.
        done: what is done again without it.
    """
    aside = path.with_suffix(".corrupt")
    try:
        os.replace(path, aside)
    except OSError as error:
        return f"{what} is corrupt and cannot be moved: {error.strerror or error}: {path}"
    return f"{what} is corrupt, it was {done} again; the old file is {aside}"


def store(folder: Path, key: str, graph: Graph, kept: Kept) -> str | None:
    """Keep a plan; return what went wrong, or None."""
    text = print_plan(kept.plan, graph, splitter=Splitter())
    return write_entry(folder, key, {**asdict(kept), "plan": text}, "the plan")


def write_entry(folder: Path, key: str, entry: Mapping[str, object], what: str) -> str | None:
    """Write an entry aside, then rename it; return what went wrong, or None."""
    aside = ""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        descriptor, aside = tempfile.mkstemp(dir=folder, prefix=f".{key}")
        with os.fdopen(descriptor, "w") as stream:
            json.dump(entry, stream)
        os.replace(aside, folder / f"{key}.json")
    except OSError as error:
        if aside:
            Path(aside).unlink(missing_ok=True)
        return f"{what} could not be kept for the next time: {error.strerror or error}"
    return None
