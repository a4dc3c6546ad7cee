"""The ``offload`` lines of a plan's text."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from peakfold.ir.graph import Graph, Input, Node, Value
from peakfold.ir.plan import OffloadGap
from peakfold.ir.text.lexer import Line, Token, unquoted
from peakfold.ir.text.plan_print import START, own_order
from peakfold.ir.types import TensorType

BESIDE = 16
"""Steps beside which a copy runs where a line does not say when it must have ended, or begins."""
KEYWORDS = ("after", "gone", "fetched", "back")


@dataclass(frozen=True)
class _Said:
    """What a line says; None for what it leaves open."""

    after: int | None
    gone: int | None
    fetch: int | None
    use: int | None


@dataclass(frozen=True)
class OffloadReader:
    """Reads ``compress`` lines, and ``offload VALUE [after X] [gone by X] [fetched from X] [back before X]``.

    Attributes:
        graph: what the plan is for.
        fitting: finds the nodes that a name or pattern means.
        one: finds the one step that a name means.
    """

    graph: Graph
    fitting: Callable[[Line, Token], list[Node]]
    one: Callable[[Line, Token], Node]

    def read(self, line: Line, whole: bool = True) -> Iterator[OffloadGap]:
        """Yield the decisions of a line, after its first word.

        Args:
            line: where the first word is read.
            whole: whether it may say when copies end and begin; the ``compress`` lines do not.
        """
        token = line.next
        values = list(self._values(line))
        said = self._said(line, whole)
        found = [gap for value in values if (gap := self._gap(value, said)) is not None]
        if not found:
            raise line.fail(
                "nothing reads this again",
                token.text,
                "a value with a later reader; of a gap, the reader before and the reader after",
                column=token.column,
            )
        yield from found

    def _values(self, line: Line) -> Iterator[Value]:
        if line.accept("input"):
            yield Value(self._input(line).id)
        elif line.accept("output"):
            number = line.take()
            line.expect("of")
            node = self.one(line, _word(line))
            if not number.text.isdecimal() or int(number.text) >= len(node.types):
                expected = f"a number below {len(node.types)}"
                raise line.fail("there is no such output", number.text, expected, column=number.column)
            yield Value(node.id, int(number.text))
        else:
            token = _word(line)
            for node in self.fitting(line, token):
                yield from (value for value in node.outputs if self._owns(value))

    def _owns(self, value: Value) -> bool:
        graph = self.graph
        return graph.storage(value) == value and isinstance(graph.type(value), TensorType)

    def _input(self, line: Line) -> Input:
        token = _word(line)
        name = unquoted(token.text)
        for given in self.graph.inputs:
            if given.name == name:
                return given
        raise line.fail("no input has this name", name, "a name as print_graph shows it", column=token.column)

    def _said(self, line: Line, whole: bool) -> _Said:
        after = gone = fetch = use = None
        if line.accept("after") and not line.accept("use"):
            after = -1 if line.accept(START) else self._place(line)
        if whole and line.accept("gone"):
            line.expect("by")
            gone = self._place(line)
        if whole and line.accept("fetched"):
            line.expect("from")
            fetch = self._place(line)
        if line.accept("back"):
            line.expect("before")
            use = None if line.accept("backward") else self._place(line)
        return _Said(after, gone, fetch, use)

    def _place(self, line: Line) -> int:
        return self.one(line, _word(line)).id

    def _gap(self, value: Value, said: _Said) -> OffloadGap | None:
        """Return the decision for one value, with what the line leaves open; None where no reader follows."""
        after = value.node if said.after == -1 else said.after
        use = said.use
        readers = self._readers.get(value, ())
        if use is None:
            begin = self._order.get(after, -1) if after is not None else -1
            later = [reader for reader in readers if self._order[reader] > begin]
            use = next((r for r in later if after is not None or not self._forward(r)), None)
        if use is None:
            return None
        if after is None:
            end = self._order.get(use, len(self._order))
            after = next((r for r in reversed(readers) if self._order[r] < end), value.node)
        first, last = self._order.get(after, -1), self._order.get(use, len(self._order))
        middle = (first + last) // 2
        gone = said.gone if said.gone is not None else self._own[min(first + BESIDE, middle)]
        fetch = said.fetch if said.fetch is not None else self._own[max(last - BESIDE, middle)]
        return OffloadGap(value, after, gone, fetch, use)

    def _forward(self, node: int) -> bool:
        return self.graph.node[node].origin.phase == "forward"

    @cached_property
    def _own(self) -> Sequence[int]:
        return own_order(self.graph)

    @cached_property
    def _order(self) -> Mapping[int, int]:
        return {ident: at for at, ident in enumerate(self._own)}

    @cached_property
    def _readers(self) -> Mapping[Value, Sequence[int]]:
        """Steps that read the storage of each value, in program order."""
        found: dict[Value, dict[int, None]] = {}
        for node in self.graph.nodes:
            if not node.is_view:
                for value in node.inputs:
                    found.setdefault(self.graph.storage(value), {})[node.id] = None
        return {value: tuple(readers) for value, readers in found.items()}


def _word(line: Line) -> Token:
    if line.next.kind not in {"word", "string"} or line.next.text in KEYWORDS:
        got = line.next.text or "the end of the line"
        raise line.fail("a name is missing", got, "the name of a node, or input and its name")
    return line.take()
