"""What operators cost where they run, for a search that goes on after a plan did not take its predicted time.

What an operator takes in a program over its profile is not the same for all: most in the smallest parts. With
one factor for the whole program a search would give up what larger parts could keep.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch

from peakfold.bridge.runtime.profile import machine
from peakfold.cost.costs import Costs
from peakfold.cost.key import Machine, keys
from peakfold.ir.graph import Graph
from peakfold.pipeline.in_place import InPlace, Subject, clocks_in
from peakfold.plan.fission.program import CostsOf


@dataclass(frozen=True)
class Repriced:
    """Costs of graphs, the seconds of which follow from programs that ran.

    Attributes:
        known: what operators took there.
        machine: on which they were profiled.
    """

    known: InPlace
    machine: Machine

    def costs(self, graph: Graph, profiled: Costs) -> Costs:
        """Return the costs of a graph, given those by the profile."""
        found = keys(graph, self.machine)
        seconds = {
            node: self.known.each(found[node], taken) if taken and node in found else taken
            for node, taken in profiled.seconds.items()
        }
        return replace(profiled, seconds=seconds)

    def over(self, costs_of: CostsOf) -> CostsOf:
        """Return what gives the costs of a graph, given what gives those by the profile."""
        return lambda graph: self.costs(graph, costs_of(graph))


def repriced(programs: Mapping[str, Subject], seconds: Mapping[str, float]) -> Repriced | None:
    """Run programs with clocks; None where they cannot be.

    Args:
        programs: by name.
        seconds: what each took without clocks.
    """
    seen = clocks_in(programs)
    references = [(of, seconds[name]) for name, of in seen.items()]
    if not references or not all(any(share.taken for share in of.values()) for of, _ in references):
        return None
    return Repriced(InPlace(references), machine(torch.get_num_threads()))
