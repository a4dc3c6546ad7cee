"""What splitting a graph makes: the outer graph, and one body for each region."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from peakfold.cost.key import LOOP
from peakfold.ir.graph import Graph, Node, Value
from peakfold.ir.plan import Region
from peakfold.plan.fission.states import Assignment

__all__ = ["LOOP", "Assigned", "Body", "Derived", "Initial", "Number", "Which"]

WHOLE = ".whole"
"""What is behind the name of a result, in a body, where the name itself is that of a part."""

Which = Literal["start", "stop", "extent"]
"""First place of a part, the place after its last, how many there are."""

Initial = Literal["empty", "zeros", "ones", "lowest", "highest"]
"""What an output of a loop holds before the first part; lowest and highest of its type."""


@dataclass(frozen=True)
class Assigned:
    """How the values of a region stand, and the length of what is split.

    Attributes:
        states: of every Value that the region reads or makes.
        length: places along the axis.
    """

    states: Assignment
    length: int


@dataclass(frozen=True, slots=True)
class Number:
    """A host number of a body: ``times`` the first place of the part, the place after its last, or how many.

    Attributes:
        input: id of the body's input.
        of: which of the three.
        times: what it is multiplied with.
    """

    input: int
    of: Which
    times: int = 1


@dataclass(frozen=True)
class Body:
    """One part of a region, and how it is repeated.

    Attributes:
        region: what was asked for.
        loop: the node that stands for it in the outer graph.
        length: places along the axis.
        size: of a part; the last part has the rest.
        part: the graph of a part, before its own regions are split off.
        derived: the same after it.
        operands: inputs of the body, one for each argument of ``loop``.
        made: what the rest reads, as Values of the graph that was split, one for each output of ``loop``.
        results: state inputs of the body, one for each output of ``loop``.
        initial: what each result holds before the first part.
        numbers: inputs of the body that say which part it is.
    """

    region: Region
    loop: Node
    length: int
    size: int
    part: Graph
    derived: "Derived"
    operands: tuple[int, ...]
    made: tuple[Value, ...]
    results: tuple[int, ...]
    initial: tuple[Initial, ...]
    numbers: tuple[Number, ...]

    def name_of(self, index: int) -> str:
        """Return the name of what output ``index`` of the loop is: that of the node that makes it."""
        name = self.graph.input[self.results[index]].name
        return name.removesuffix(WHOLE)

    @property
    def graph(self) -> Graph:
        """The graph of one part."""
        return self.derived.graph

    @property
    def parts(self) -> float:
        """How many parts of full size the region comes to; a smaller last part counts as what it is."""
        return self.length / self.size

    @property
    def starts(self) -> range:
        """First place of each part."""
        return range(0, self.length, self.size)


@dataclass(frozen=True)
class Derived:
    """A graph in which each region is one node.

    Attributes:
        graph: the outer graph.
        bodies: by id of the loop's node.
    """

    graph: Graph
    bodies: Mapping[int, Body]
