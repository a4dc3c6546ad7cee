"""One optimization as it goes on: what is asked, how far it is, and what it notes."""

from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import TypeVar

import torch

from peakfold.bridge.capture import Captured
from peakfold.cost.costs import Costs
from peakfold.graph.rewrite.passes.quicker import Kind
from peakfold.ir.graph import Graph
from peakfold.ir.plan import Plan
from peakfold.options import Options
from peakfold.pipeline import host, proof_cache
from peakfold.pipeline.moves import Moves
from peakfold.pipeline.pricing import priced
from peakfold.pipeline.program import Program, emit_plan
from peakfold.pipeline.proof_cache import Calibration, Original, Proof
from peakfold.pipeline.quicker import Quickened
from peakfold.pipeline.request import Request
from peakfold.pipeline.stage import Stages
from peakfold.pipeline.task import Task

Kept = TypeVar("Kept", Proof, Original, Calibration)


@dataclass
class Run:
    """One optimization as it goes on.

    Attributes:
        task: what is optimized; rewriting replaces it.
        asked: the request.
        options: of the environment.
        stages: timed and told of progress.
        notes: what the report says besides.
    """

    task: Task
    asked: Request
    options: Options
    stages: Stages
    notes: list[str] = field(default_factory=list)

    def kept(self, key: str, kind: type[Kept]) -> Kept | None:
        """Return what was proved or measured before, None for nothing; say what of it cannot be read."""
        found, fault = proof_cache.load(self._proofs, key, kind)
        self.note(*([] if fault is None else [fault]))
        return found

    def keep(self, key: str, entry: Proof | Original | Calibration) -> None:
        """Keep what was proved or measured for the next time; say so where it cannot be."""
        fault = proof_cache.store(self._proofs, key, entry)
        self.note(*([] if fault is None else [fault]))

    @cached_property
    def numbers(self) -> str:
        """A digest of what the step starts from, which rewriting does not change."""
        return proof_cache.numbers_of(self.task)

    @property
    def _proofs(self) -> Path:
        return self.options.cache / "proofs"

    @property
    def runnable(self) -> bool:
        """Whether anything can be run at all."""
        return self.task.is_real and not self.asked.simulated

    @property
    def kinds(self) -> frozenset[Kind]:
        """Kinds of operators that have other forms than those that were captured."""
        rewriter = self.task.rewriter
        first = rewriter.before if isinstance(rewriter, Moves) else rewriter
        return first.kinds if isinstance(first, Quickened) else frozenset()

    @property
    def is_quickened(self) -> bool:
        """Whether operators have other forms than those that were captured."""
        return bool(self.kinds)

    def program(self, captured: Captured, costs: Costs, plan: Plan, budget: int | None) -> Program:
        """Return the program of a plan; refuse one that leaves no room on the host."""
        versions = {"torch": torch.__version__}
        with self.stages("codegen"):
            found = emit_plan(
                captured,
                plan,
                costs,
                self.asked.name,
                versions,
                budget,
                self.costs,
                host.folder(self.asked),
            )
        host.require_room(found.host_bytes, self.asked)
        return found

    def costs(self, graph: Graph) -> Costs:
        """Return what the operators of a graph cost, measured where that is not known."""
        with self.stages("profile"):
            tell = partial(_tell, self.stages)
            costs, notices = priced(graph, self.task, self.asked, self.options, tell)
            self.note(*notices)
            return costs

    def note(self, *said: str) -> None:
        """Have the report say something, once."""
        self.notes += [one for one in said if one not in self.notes]


def _tell(stages: Stages, done: int, total: int) -> None:
    stages.progress("profile", done / max(total, 1), f"{done} of {total} operators")
