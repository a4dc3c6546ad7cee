"""Text to a Plan: names to nodes, patterns to every node that they fit."""

import difflib
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from peakfold.errors import PlanError
from peakfold.ir.graph import Graph, Node
from peakfold.ir.order import first_broken
from peakfold.ir.plan import CompressGap, OffloadGap, Plan, Recompute, Region
from peakfold.ir.recompute import step_readers, why_not_again
from peakfold.ir.text.lexer import Line, Token, lines_of, unquoted
from peakfold.ir.text.offload_parse import OffloadReader
from peakfold.ir.text.plan_print import EARLY, HEADER, LAST, NO_REUSE, REUSE, own_order, summary
from peakfold.ir.text.regions import RegionReader, Splitter, graphs_of

_ERROR = PlanError(
    "plan", "", hint="put the line right, or take it out; docs/plan-format.md says what a plan may say"
)
_SPECIAL = re.compile(r"(\*|\?|\[\d+:\d+\])")


def parse_plan(text: str, graph: Graph, splitter: Splitter | None = None) -> Plan:
    r"""Return the plan that a text stands for.

    Args:
        text: what was written.
        graph: what the plan is for.
        splitter: makes the graphs of regions, whose nodes the lines of a plan with regions name.

    Raises:
        PlanError: the text is no plan, is for another graph, or says what may not be; with line and
            column, and the nearest names where a name is unknown.

    Example:
        >>> parse_plan("peakfold plan 1\nupdate after everything else", Graph((), (), ())).updates
        'last'
    """
    lines = list(lines_of(text, _ERROR, places=True))
    _header(lines[0] if lines else Line(1, text, _ERROR, places=True), graph)
    whole = splitter.prepared(graph) if splitter is not None and any(map(_splits, lines)) else graph
    return replace(_block(lines[1:], whole, splitter), graph=graph.digest)


def _block(lines: Sequence[Line], graph: Graph, splitter: Splitter | None) -> Plan:
    """Read the decisions about one graph; those about the parts of a region are indented behind it."""
    said = list(_grouped(lines))
    names = _Reader(graph)
    splits = [(line, inside) for line, inside in said if _splits(line)]
    found = [_region(line, names, splitter) for line, _ in splits]
    first = [line for line, _ in splits]
    outer, bodies = (
        graphs_of(splitter, graph, found, first) if splitter is not None and found else (graph, ())
    )
    reader = _Reader(outer)
    for line, inside in said:
        if _splits(line):
            continue
        if inside:
            raise inside[0].fail("this line is indented, and stands behind no split", inside[0].text.strip())
        reader.read(line)
    plans = [_block(inside, body, splitter) for (_, inside), body in zip(splits, bodies, strict=True)]
    own = [None if plan == Plan(plan.graph) else plan for plan in plans]
    regions = tuple(replace(region, plan=plan) for region, plan in zip(found, own, strict=True))
    return replace(reader.plan(), graph=graph.digest, regions=regions)


def _splits(line: Line) -> bool:
    return line.next.text == "split" or line.text.strip().startswith("split ")


def _grouped(lines: Sequence[Line]) -> Iterator[tuple[Line, list[Line]]]:
    """Yield each line with those behind it that are indented deeper."""
    at = 0
    while at < len(lines):
        end = at + 1
        while end < len(lines) and lines[end].indent > lines[at].indent:
            end += 1
        yield lines[at], list(lines[at + 1 : end])
        at = end


def _region(line: Line, names: "_Reader", splitter: Splitter | None) -> Region:
    key = line.take()
    if splitter is None:
        raise line.fail("regions cannot be read here", key.text, "a plan without them", column=key.column)
    region = RegionReader(names.graph, names.one, names.single).read(line)
    line.expect_end()
    return region


@dataclass
class _Reader:
    graph: Graph
    said: dict[str, bool] = field(default_factory=dict)
    recompute: dict[tuple[int, int], tuple[bool, int | None]] = field(default_factory=dict)
    order: list[int] = field(default_factory=list)
    moved: list[tuple[int, Line, int]] = field(default_factory=list)
    offload: set[OffloadGap] = field(default_factory=set)
    compress: set[CompressGap] = field(default_factory=set)

    def read(self, line: Line) -> None:
        key = line.take()
        if key.text == "update":
            self._choice(line, key, {EARLY: True, LAST: False})
        elif key.text == "reuse":
            self._choice(line, key, {REUSE: True, NO_REUSE: False})
        elif key.text == "recompute":
            self._recompute(line)
        elif key.text == "offload":
            self.offload.update(self.offloads.read(line))
        elif key.text == "compress":
            found = self.offloads.read(line, whole=False)
            self.compress.update(CompressGap(gap.value, gap.after, gap.use) for gap in found)
        elif key.text == "move":
            self._move(line)
        else:
            expected = "update, reuse, recompute, offload, move or split"
            raise line.fail("this is no decision", key.text, expected, column=key.column)
        line.expect_end()

    def plan(self) -> Plan:
        own = own_order(self.graph)
        self._check_order()
        return Plan(
            graph=self.graph.digest,
            recompute=tuple(sorted(Recompute(*pair, *held) for pair, held in self.recompute.items())),
            updates="early" if self.said.get("update", True) else "last",
            reuse=self.said.get("reuse", True),
            order=tuple(self.order) if tuple(self.order) != own else (),
            offload=tuple(sorted(self.offload)),
            compress=tuple(sorted(self.compress)),
        )

    def _choice(self, line: Line, key: Token, choices: dict[str, bool]) -> None:
        column, words = line.next.column, []
        while line.next.kind != "end":
            words.append(line.take().text)
        said = " ".join(words)
        if key.text in self.said:
            raise line.fail("this is decided twice", key.text, "one line", column=key.column)
        if said not in choices:
            expected = " | ".join(choices)
            raise line.fail(f"{key.text} cannot be this", said or "nothing", expected, column=column)
        self.said[key.text] = choices[said]

    def _recompute(self, line: Line) -> None:
        token = _operand(line)
        nodes = self._nodes(line, token)
        if line.accept("for"):
            line.expect("its", "backward")
            pairs = self._for_backward(line, token, nodes)
        else:
            line.expect("before")
            use = _operand(line)
            pairs = self._before(line, token, nodes, use)
        held = self._held(line)
        for pair in pairs:
            if self.recompute.setdefault(pair, held) != held:
                raise line.fail(
                    "an earlier line says the opposite of the same gap", token.text, column=token.column
                )

    def _held(self, line: Line) -> tuple[bool, int | None]:
        """Whether a value is held once it was computed again, and from which node on."""
        if not line.accept("and"):
            return True, None
        if line.accept("hold"):
            line.expect("it", "from")
            return True, self.one(line, _operand(line)).id
        line.expect("drop", "it", "in", "between")
        return False, None

    def _before(self, line: Line, token: Token, nodes: list[Node], use: Token) -> list[tuple[int, int]]:
        if use.text == "backward":
            return self._for_backward(line, token, nodes)
        user = self.one(line, use)
        pairs = [(node.id, user.id) for node in nodes if self.place[node.id] < self.place[user.id]]
        if not pairs:
            raise line.fail(
                "a recompute must stand before a later node",
                use.text,
                f"a node after {token.text}",
                column=use.column,
            )
        return pairs

    def _for_backward(self, line: Line, token: Token, nodes: list[Node]) -> list[tuple[int, int]]:
        pairs = [(node.id, self.first_backward[node.id]) for node in nodes if node.id in self.first_backward]
        if not pairs:
            raise line.fail(
                "no backward needs this",
                token.text,
                "a node of the forward that backward reads",
                column=token.column,
            )
        return pairs

    def _nodes(self, line: Line, token: Token) -> list[Node]:
        """Every node that may be computed again and that a name or pattern fits."""
        fitting = self._fitting(line, token)
        allowed = [node for node in fitting if node.id not in self.refused]
        if not allowed:
            node = fitting[0]
            got = f"{node.name}: {self.refused[node.id]}"
            raise line.fail("this cannot be computed again", got, column=token.column)
        return allowed

    def one(self, line: Line, token: Token) -> Node:
        found = self.single(line, token)
        if found.is_view:
            raise line.fail("a view is never a step", found.name, "a node that reads it", column=token.column)
        return found

    def single(self, line: Line, token: Token) -> Node:
        found = self._fitting(line, token)
        if len(found) > 1:
            raise line.fail(
                "one node is wanted here", f"{token.text} fits {len(found)}", "one name", column=token.column
            )
        return found[0]

    def _fitting(self, line: Line, token: Token) -> list[Node]:
        name = unquoted(token.text)
        exact = self.named.get(name)
        if exact is not None:
            return [exact]
        if token.kind == "word":
            pattern = re.compile(_as_regex(name))
            found = [node for node in self.graph.nodes if pattern.fullmatch(node.name)]
            if found:
                return found
        raise self._unknown(line, token, name)

    def _unknown(self, line: Line, token: Token, name: str) -> PlanError:
        if name in {given.name for given in self.graph.inputs}:
            found = line.fail(
                "an input of the graph is no node", name, "the name of a node", column=token.column
            )
        else:
            near = difflib.get_close_matches(name, list(self.named), 3, 0.7)
            expected = f"perhaps {', '.join(near)}" if near else "a name as print_graph shows it"
            found = line.fail("no node has this name", name, expected, column=token.column)
        assert isinstance(found, PlanError)
        return found

    def _move(self, line: Line) -> None:
        self.order = self.order or list(own_order(self.graph))
        token = _operand(line)
        node = self.one(line, token)
        self.moved.append((node.id, line, token.column))
        if line.accept("to"):
            line.expect("the", "end")
            self._put(node.id, None)
            return
        line.expect("before")
        token = _operand(line)
        target = self.one(line, token)
        if target.id == node.id:
            raise line.fail("a node cannot stand before itself", token.text, column=token.column)
        self._put(node.id, target.id)

    def _put(self, node: int, before: int | None) -> None:
        self.order.remove(node)
        self.order.insert(len(self.order) if before is None else self.order.index(before), node)

    def _check_order(self) -> None:
        """See that all moves together leave what is read before who reads it."""
        broken = first_broken(self.graph, self.order) if self.order else None
        if broken is None:
            return
        early, late = broken.node, broken.other
        pair = (early.id, late.id)
        node, line, column = next(moved for moved in reversed(self.moved) if moved[0] in pair)
        hint = (
            f"move {early.name} before a node behind {late.name}, or {late.name} before it"
            if node == early.id
            else f"move {late.name} before {early.name} or what is above it, or {early.name} behind it"
        )
        raise line.fail(
            f"the moves put {early.name} before {late.name}, {broken.why}",
            f"{early.name} before {late.name}",
            f"{late.name} before {early.name}",
            f"{hint}; or take the line out",
            column,
        )

    @cached_property
    def offloads(self) -> OffloadReader:
        return OffloadReader(self.graph, self._fitting, self.one)

    @cached_property
    def named(self) -> dict[str, Node]:
        return {node.name: node for node in self.graph.nodes}

    @cached_property
    def place(self) -> dict[int, int]:
        return {node.id: at for at, node in enumerate(self.graph.nodes)}

    @cached_property
    def refused(self) -> dict[int, str]:
        return why_not_again(self.graph)

    @cached_property
    def first_backward(self) -> dict[int, int]:
        return first_backward(self.graph)


def first_backward(graph: Graph) -> dict[int, int]:
    """Return, for each forward node, the first backward node that reads it.

    For a node that backward does not read, it is the first one that reads what was computed from it:
    where that is computed again, the node is needed again.
    """
    place = {node.id: at for at, node in enumerate(graph.nodes)}
    readers = step_readers(graph)
    found: dict[int, int] = {}
    for node in reversed(graph.nodes):
        if node.origin.phase != "forward" or node.is_view:
            continue
        direct = [user for user in readers[node.id] if graph.node[user].origin.phase == "backward"]
        onward = [found[user] for user in readers[node.id] if user in found]
        if direct or onward:
            found[node.id] = min(direct or onward, key=place.__getitem__)
    return found


def _operand(line: Line) -> Token:
    if line.next.kind not in {"word", "string"}:
        raise line.fail("a name is missing", "the end of the line", "the name of a node")
    return line.take()


def _as_regex(pattern: str) -> str:
    """Return the regular expression of a pattern: ``*`` any text, ``?`` a character, ``[0:3]`` .0 .1 .2."""
    parts = _SPECIAL.split(pattern)
    return "".join(re.escape(part) if at % 2 == 0 else _special(part) for at, part in enumerate(parts))


def _special(text: str) -> str:
    if text in "*?":
        return {"*": ".*", "?": "."}[text]
    first, last = text[1:-1].split(":")
    numbers = (str(number) for number in range(int(first), int(last)))
    return rf"\.(?:{'|'.join(numbers)})"


def planned_for(text: str) -> str | None:
    r"""Return the digest of the graph that a plan says it is for; None where it goes by names alone.

    Raises:
        PlanError: the text is no plan, or one of another version.

    Example:
        >>> planned_for("peakfold plan 1 for graph 02c9d333ce2d5705 (3 nodes)\nupdate after everything else")
        '02c9d333ce2d5705'
    """
    lines = lines_of(text, _ERROR, places=True)
    return _said(next(lines, Line(1, text, _ERROR, places=True)))[0]


def _said(line: Line) -> tuple[str | None, str | None]:
    """Return digest and size of the graph that a first line names."""
    text = line.text.split("#")[0].strip()
    found = re.fullmatch(rf"{HEADER}(?: for graph (\S+)(?: \((.*)\))?)?", text)
    if found is None:
        raise line.fail("this is no plan of peakfold, or one of another version", text[:60], HEADER, column=1)
    return found[1], found[2]


def _header(line: Line, graph: Graph) -> None:
    digest, said = _said(line)
    if digest in {None, graph.digest}:
        return
    mine = summary(graph)
    expected = f"graph {graph.digest}: {mine}"
    same = (
        "as many nodes, but other operators, shapes, dtypes or constants" if said == mine else (said or "?")
    )
    hint = (
        "use a plan that was made for this model and batch, or take 'for graph ..' out to go by names alone"
    )
    raise line.fail("the plan is for another graph", f"graph {digest}: {same}", expected, hint, column=1)
