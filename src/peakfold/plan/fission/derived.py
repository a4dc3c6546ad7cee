"""What splitting a graph makes: the outer graph, and one body for each region."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from peakfold.ir.graph import Graph, Node, Value
from peakfold.ir.plan import Region
from peakfold.ops.inplace import LOOP
from peakfold.plan.fission.states import Assignment

__all__ = ["LOOP", "Assigned", "Body", "Derived", "Initial", "Number", "Term", "Which"]

WHOLE = ".whole"
"""What is behind the name of a result, in a body, where the name itself is that of a part."""

Which = Literal["start", "stop", "extent"]
"""First place of a part, the place after its last, how many there are."""

Initial = Literal["empty", "zeros", "ones", "lowest", "highest", "given"]
"""What an output of a loop holds before the first part: lowest and highest of its type, what is given."""


@dataclass(frozen=True)
class Assigned:
    """How the values of a region stand, and the length of what is split.

    Attributes:
        states: of every Value that the region reads or makes.
        length: places along the axis.
    """

    states: Assignment
    length: int


@dataclass(frozen=True, slots=True, order=True)
class Term:
    """``times`` one of the numbers of a part, and ``plus``, held within bounds.

    Attributes:
        of: which of the three.
        times: what it is multiplied with.
        plus: what is added.
        least, most: bounds of the whole; None for none.
        sign: 1, or -1 where it is taken off.

    Example:
        >>> term = Term("start", 2, -1, least=0)
        >>> term.at(0, 4), term.at(4, 8), term.text("start", "stop")
        (0, 7, 'max(start * 2 - 1, 0)')
    """

    of: Which
    times: int = 1
    plus: int = 0
    least: int | None = None
    most: int | None = None
    sign: int = 1

    def at(self, start: int, stop: int) -> int:
        """Return it for a part, without its sign."""
        found = {"start": start, "stop": stop, "extent": stop - start}[self.of] * self.times + self.plus
        found = found if self.least is None else max(found, self.least)
        return found if self.most is None else min(found, self.most)

    def text(self, start: str, stop: str) -> str:
        """Return it as Python, without its sign."""
        found = {"start": start, "stop": stop, "extent": f"({stop} - {start})"}[self.of]
        found = found if abs(self.times) == 1 else f"{found} * {abs(self.times)}"
        if self.times < 0:
            found = f"{self.plus} - {found}"
        elif self.plus:
            found += f" {'+' if self.plus > 0 else '-'} {abs(self.plus)}"
        found = found if self.least is None else f"max({found}, {self.least})"
        return found if self.most is None else f"min({found}, {self.most})"


@dataclass(frozen=True, slots=True)
class Number:
    """A host number of a body, from the first place of the part and the place after its last.

    Attributes:
        input: id of the body's input.
        terms: what is summed.

    Example:
        >>> rows = Number(7, (Term("stop", 1, 1, most=9), Term("start", 1, -1, least=0, sign=-1)))
        >>> rows.at(0, 3), rows.at(3, 6), rows.text("start", "stop")
        (4, 5, 'min(stop + 1, 9) - max(start - 1, 0)')
    """

    input: int
    terms: tuple[Term, ...]

    def at(self, start: int, stop: int) -> int:
        """Return it for a part."""
        return sum(term.sign * term.at(start, stop) for term in self.terms)

    def text(self, start: str, stop: str) -> str:
        """Return it as Python, for the names of the two."""
        found = ""
        for index, term in enumerate(self.terms):
            text = term.text(start, stop)
            if index and not text.startswith(("min(", "max(")) and term.plus:
                text = f"({text})"
            found += text if not index else f" {'+' if term.sign > 0 else '-'} {text}"
        return found


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
        operands: inputs of the body, one for each argument of ``loop``; one that a result begins as
            is that result.
        made: what the rest reads, as Values of the graph that was split, one for each output of ``loop``.
        results: state inputs of the body, one for each output of ``loop``.
        initial: what each result holds before the first part.
        numbers: inputs of the body that say which part it is.
        is_even: whether every part is of one size, with what it shares with its neighbours; only then may
            regions be nested in it.
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
    is_even: bool

    def name_of(self, index: int) -> str:
        """Return the name of what output ``index`` of the loop is: that of the node that makes it."""
        name = self.graph.input[self.results[index]].name
        return name.removesuffix(WHOLE)

    @property
    def begins(self) -> Mapping[int, int]:
        """The argument of the loop that each output begins as, where it begins as one: places of both."""
        place = {ident: at for at, ident in enumerate(self.operands)}
        return {index: place[ident] for index, ident in enumerate(self.results) if ident in place}

    @property
    def ends(self) -> Iterator[tuple[int, int]]:
        """First place of each part, and the place after its last."""
        return ((start, min(start + self.size, self.length)) for start in self.starts)

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
