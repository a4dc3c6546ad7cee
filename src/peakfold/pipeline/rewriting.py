"""Rewrites that round otherwise: chosen by measured seconds, kept where the whole is measured faster."""

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

import torch

from peakfold.bridge.runtime.profile import profile
from peakfold.bridge.runtime.retype import retyped
from peakfold.cost import roofline
from peakfold.cost.cache import FILE_NAME, CostCache
from peakfold.graph.rewrite.candidate import Price
from peakfold.graph.rewrite.cheapest import cheapest
from peakfold.graph.rewrite.driver import Found
from peakfold.ir.graph import Graph
from peakfold.options import Options
from peakfold.pipeline import prove
from peakfold.pipeline.program import Program
from peakfold.pipeline.request import Request
from peakfold.pipeline.task import Task

FASTER = 0.99
"""Part of the seconds of the given program, measured in turn, that a rewritten one may take."""


@dataclass(frozen=True)
class Rounded:
    """What rewriting came to.

    Attributes:
        found: the cheapest graph, and the account.
        notes: what the report says of it.
    """

    found: Found
    notes: tuple[str, ...]

    @property
    def account(self) -> str:
        """The account as JSON: one row for each rule and template that was tried."""
        found = self.found
        head = {"before": found.before, "after": found.after, "stop": found.stop, "states": found.states}
        rows = found.account.rows()
        return json.dumps({**head, "seconds": found.account.seconds, "rows": rows}, indent=1) + "\n"


def rounded(graph: Graph, asked: Request, options: Options) -> Rounded:
    """Return the cheapest graph by measured, or on a simulated device by modelled, seconds."""
    found = cheapest(graph, _price(asked, options), retyped)
    fired = Counter(step.rule for step in found.steps)
    words = ", ".join(f"{name} {count}" for name, count in fired.items())
    saved = f"predicted {found.before:.4g} s before, {found.after:.4g} s after"
    return Rounded(found, (f"rewritten: {words}; {saved}",) if fired else ())


def _price(asked: Request, options: Options) -> Price:
    if asked.simulated:
        device = asked.device.removeprefix("sim:")
        return lambda graph: roofline.estimate(graph, device).seconds
    cache, threads = CostCache(options.cache / FILE_NAME), torch.get_num_threads()

    def measured(graph: Graph) -> Mapping[int, float]:
        return profile(graph, cache, threads).seconds

    return measured


def saves(before: Program, after: Program) -> bool:
    """Whether a simulated program takes fewer seconds and no more bytes than another."""
    return after.timeline.peak <= before.timeline.peak and after.timeline.seconds < before.timeline.seconds


def is_faster(task: Task, before: Program, after: Program) -> tuple[bool, str]:
    """Measure two programs in turn; say whether the second is faster, and what the report says of it."""
    taken = prove.seconds(task, {"before": before, "after": after})
    ratio = taken["after"] / taken["before"]
    if ratio <= FASTER:
        return True, f"rewritten, the program takes {ratio:.3f} of the seconds that it took, measured in turn"
    return False, f"rewriting was not kept: measured, the program took {ratio:.3f} of the seconds without it"
