"""The ``split`` lines of a plan's text: ``split AXIS into PARTS [at VALUE DIM] over a..b, again c..d``.

A range ``a..b`` means every node from a to b, in program order, that a region may have; ``again`` means
run 1 of each (``again:2`` run 2). The lines behind, indented, are the decisions inside one part.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from peakfold.errors import PlanError
from peakfold.ir.graph import Graph, Node, Value
from peakfold.ir.plan import Anchor, Region, Run
from peakfold.ir.regions import candidates, why_not_inside
from peakfold.ir.text.lexer import Line, Token
from peakfold.ir.text.quoting import quoted_name

AGAIN = re.compile(r"again(?::(\d+))?")


class Splitter(Protocol):
    """Makes graphs of regions: what the names in a plan with regions stand for."""

    def prepared(self, graph: Graph) -> Graph:
        """Return the graph that regions are of."""
        ...

    def graphs(self, graph: Graph, regions: Sequence[Region]) -> tuple[Graph, tuple[Graph, ...]]:
        """Return the outer graph and the graph of one part of each region."""
        ...


def graphs_of(
    splitter: Splitter, graph: Graph, found: Sequence[Region], lines: Sequence[Line]
) -> tuple[Graph, Sequence[Graph]]:
    """Return the graphs of regions; of those that cannot be, say the line of the first."""
    try:
        return splitter.graphs(graph, found)
    except PlanError as error:
        counts = range(1, len(found))
        last = next((count for count in counts if not _can_be(splitter, graph, found[:count])), len(found))
        error.where = lines[last - 1].place(1 + lines[last - 1].indent)
        raise


def _can_be(splitter: Splitter, graph: Graph, found: Sequence[Region]) -> bool:
    try:
        splitter.graphs(graph, found)
    except PlanError:
        return False
    return True


# --- printing ---


def print_region(region: Region, graph: Graph) -> str:
    """Return the line of a region."""
    where = "" if region.anchor is None else f" at {_anchor(region.anchor, graph)}"
    ranges = ", ".join(_ranges(region.runs, graph))
    return f"{quoted_axis(region.axis)} into {region.parts}{where} over {ranges}"


def quoted_axis(name: str) -> str:
    """Return the name of an axis as a plan writes it.

    Example:
        >>> quoted_axis("batch"), quoted_axis("heads (2)")
        ('batch', '"heads (2)"')
    """
    return name if re.fullmatch(r"[\w.]+", name) else json.dumps(name)


def _anchor(anchor: Anchor, graph: Graph) -> str:
    value = anchor.value
    given = graph.input.get(value.node)
    name = quoted_name(given.name if given is not None else graph.node[value.node].name)
    which = f" output {value.index}" if value.index else ""
    outer = f" outer {anchor.outer}" if anchor.outer != 1 else ""
    return f"{name}{which} dim {anchor.dim}{outer}"


def _ranges(runs: Sequence[Run], graph: Graph) -> Iterator[str]:
    place = {ident: at for at, ident in enumerate(candidates(graph))}
    for k in sorted({run.k for run in runs}):
        word = {0: "", 1: "again "}.get(k, f"again:{k} ")
        places = sorted(place[run.node] for run in runs if run.k == k)
        nodes = list(place)
        for first, last in _stretches(places):
            names = dict.fromkeys(_name(graph.node[nodes[at]]) for at in (first, last))
            yield word + "..".join(names)


def _stretches(places: Sequence[int]) -> Iterator[tuple[int, int]]:
    first = last = None
    for at in places:
        if last is not None and first is not None and at != last + 1:
            yield first, last
            first = at
        first, last = at if first is None else first, at
    if first is not None and last is not None:
        yield first, last


def _name(node: Node) -> str:
    plain = quoted_name(node.name)
    unclear = plain.startswith('"') or re.search(r",|\.\.|^again", plain)
    return json.dumps(node.name) if unclear else plain


# --- reading ---


@dataclass(frozen=True)
class RegionReader:
    """Reads what is behind ``split``.

    Attributes:
        graph: what the region is of.
        one: finds the one step that a name means.
        single: the same, be it a view: an axis may be one of what a view makes.
    """

    graph: Graph
    one: Callable[[Line, Token], Node]
    single: Callable[[Line, Token], Node]

    def read(self, line: Line) -> Region:
        """Return the region of a line, without decisions inside."""
        axis = line.word_or_string("the name of an axis")
        line.expect("into")
        count = line.next
        parts = self._number(line)
        if parts < 2:
            raise line.fail("so many parts are none", count.text, "2 or more", column=count.column)
        anchor = self._anchor(line) if line.accept("at") else None
        line.expect("over")
        runs = list(self._runs(line))
        return Region(axis, parts, tuple(sorted(set(runs))), None, anchor)

    def _number(self, line: Line) -> int:
        token = line.next
        if not token.text.isdigit():
            raise line.fail(
                "a whole number is missing", token.text or "the end of the line", "a whole number"
            )
        line.take()
        return int(token.text)

    def _anchor(self, line: Line) -> Anchor:
        token = line.next
        name = line.word_or_string("the name of a value")
        given = next((item.id for item in self.graph.inputs if item.name == name), None)
        node = given if given is not None else self.single(line, token).id
        index = self._number(line) if line.accept("output") else 0
        line.expect("dim")
        dim = self._number(line)
        return Anchor(Value(node, index), dim, self._number(line) if line.accept("outer") else 1)

    def _runs(self, line: Line) -> Iterator[Run]:
        nodes = candidates(self.graph)
        place = {ident: at for at, ident in enumerate(nodes)}
        more = True
        while more:
            again = AGAIN.fullmatch(line.next.text)
            if again:
                line.take()
            k = int(again.group(1) or 1) if again else 0
            first, last, more = self._range(line)
            begin, end = self._place(line, first, place), self._place(line, last, place)
            if begin > end:
                raise line.fail("a range ends before it begins", first.text, column=first.column)
            yield from (Run(ident, k) for ident in nodes[begin : end + 1])

    def _place(self, line: Line, token: Token, place: Mapping[int, int]) -> int:
        node = self.one(line, token)
        if node.id not in place:
            got = f"{node.name}: {why_not_inside(node)}"
            raise line.fail("this cannot be in a region", got, column=token.column)
        return place[node.id]

    def _range(self, line: Line) -> tuple[Token, Token, bool]:
        """Read ``a``, ``a..b`` or quoted names between the same dots, and whether a comma follows."""
        pieces: list[Token] = [*_pieces(line, self._token(line))]
        while pieces[-1].text == ".." or (line.next.kind != "end" and line.next.text[0] in ".,"):
            pieces += _pieces(line, self._token(line))
        comma = pieces[-1].text == ","
        names = pieces[: len(pieces) - comma]
        if len(names) == 1 and names[0].text not in "..,":
            return names[0], names[0], comma
        if len(names) == 3 and names[1].text == "..":
            return names[0], names[2], comma
        raise line.fail("this is no range", names[0].text, "a name, or two with .. between")

    def _token(self, line: Line) -> Token:
        if line.next.kind == "end":
            raise line.fail("a name is missing", "the end of the line", "the name of a node")
        return line.take()


def _pieces(line: Line, token: Token) -> list[Token]:
    """Split a word at ``..`` and a final comma; a quoted name is one piece."""
    if token.kind == "string":
        return [token]
    found, at = [], token.column
    for text in re.split(r"(\.\.|,$)", token.text):
        if text:
            found.append(Token("word", text, at))
        at += len(text)
    return found
