"""Text to a Graph."""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import cast, get_args

from peakfold.errors import UsageError
from peakfold.ir.graph import Arg, Graph, Input, Kind, Node, Op, Origin, Output, Phase, State, Symbol, Value
from peakfold.ir.text.graph_print import DTYPES, GRAPH, HEADER
from peakfold.ir.text.lexer import Line, inverse, lines_of, unquoted
from peakfold.ir.types import ScalarType, TensorType, Type, contiguous_strides

_NAMES = inverse(DTYPES)
_WORDS: dict[str, float | bool | None] = {
    "None": None,
    "True": True,
    "False": False,
    "inf": float("inf"),
    "nan": float("nan"),
}
_ERROR = UsageError("graph text", "", hint="write the file again with PEAKFOLD_DUMP, or put this line right")


def parse_graph(text: str) -> Graph:
    """Return the graph that a text of `print_graph` stands for.

    Raises:
        UsageError: the text is not a graph; says line and column.

    Example:
        >>> graph = parse_graph('''peakfold graph 1
        ... device cpu
        ... inputs
        ...   %0 x : f32[2, 3] batch
        ... nodes
        ...   %1 half = aten.mul.Tensor(%x, 0.5) : f32[2, 3]
        ... outputs
        ...   y = %half
        ... ''')
        >>> graph.nodes[0].args
        (Value(node=0, index=0), 0.5)
    """
    reader = _Reader()
    for line in lines_of(text, _ERROR):
        reader.read(line)
    return reader.graph(text)


@dataclass
class _Reader:
    """What is read so far. A value is known from its own line on, so that a graph is in order by reading.

    ``margin`` is how far in its sections stand; of a graph that a node runs, its first line says.
    """

    margin: int | None = 0
    device: str = "cpu"
    section: str = ""
    ids: dict[str, int] = field(default_factory=dict)
    known: dict[int, int] = field(default_factory=dict)
    inputs: list[Input] = field(default_factory=list)
    nodes: list[Node] = field(default_factory=list)
    outputs: list[Output] = field(default_factory=list)
    state: list[State] = field(default_factory=list)
    ops: dict[Op, Op] = field(default_factory=dict)
    inside: "_Inside | None" = None

    def read(self, line: Line) -> None:
        if self.inside is not None and line.indent > self.inside.margin:
            return self.inside.reader.read(line)
        self._close()
        if not self.section:
            _header(line)
            self.section = "header"
        elif self._is_heading(line):
            self._heading(line)
        elif self.section == "nodes" and line.accept(GRAPH):
            self._open(line)
        else:
            self._body(line)
            line.expect_end()
        return None

    def _is_heading(self, line: Line) -> bool:
        if self.margin is None:
            self.margin = line.indent
        return line.indent <= self.margin

    def _open(self, line: Line) -> None:
        """Begin a graph that the last node runs."""
        line.expect_end()
        if not self.nodes:
            raise line.fail("a graph stands before the first node", expected="a node above it", column=1)
        reader = _Reader(margin=None, device=self.device, section="header", ops=self.ops)
        self.inside = _Inside(line.indent, reader)

    def _close(self) -> None:
        """Give a graph that has ended to the node that runs it."""
        if self.inside is not None:
            node = self.nodes[-1]
            self.nodes[-1] = replace(node, bodies=(*node.bodies, self.inside.reader.graph("")))
            self.inside = None

    def graph(self, text: str) -> Graph:
        if not self.section:
            _header(Line(1, text, _ERROR))
        self._close()
        return Graph(tuple(self.inputs), tuple(self.nodes), tuple(self.outputs), tuple(self.state))

    def _heading(self, line: Line) -> None:
        if line.accept("device"):
            self.device = _device(line)
            return line.expect_end()
        token = line.take()
        if token.text not in {"inputs", "nodes", "outputs", "state"}:
            expected = "inputs, nodes, outputs or state"
            raise line.fail("this is no section of a graph", token.text, expected, column=token.column)
        self.section = token.text
        return line.expect_end()

    def _body(self, line: Line) -> None:
        read: dict[str, Callable[[Line], None]] = {
            "inputs": self._input,
            "nodes": self._node,
            "outputs": self._output,
            "state": self._state,
        }
        if self.section not in read:
            raise line.fail("a line stands before the first section", expected="inputs")
        read[self.section](line)

    def _input(self, line: Line) -> None:
        ident, name = self._declared(line)
        line.expect(":")
        kind = self._type(line)
        role = line.word_or_string("a kind of input")
        if role not in get_args(Kind):
            raise line.fail("this is no kind of input", role, ", ".join(get_args(Kind)))
        self.inputs.append(Input(ident, name, cast(Kind, role), kind))
        self._declare(ident, name, 1)

    def _node(self, line: Line) -> None:
        ident, name = self._declared(line)
        line.expect("=")
        op = line.word_or_string("an operator")
        args, kwargs = self._arguments(line)
        line.expect(":")
        types = self._types(line)
        stream, random, pure = _facts(line)
        made = Op(op, pure, random)
        node = Node(
            id=ident,
            name=name,
            op=self.ops.setdefault(made, made),
            args=args,
            kwargs=kwargs,
            types=tuple(kind for kind, _ in types),
            aliases=tuple(alias for _, alias in types),
            stream=stream,
            origin=_origin(line),
        )
        self.nodes.append(node)
        self._declare(ident, name, len(types))

    def _output(self, line: Line) -> None:
        name = line.word_or_string("the name of an output")
        line.expect("=")
        self.outputs.append(Output(name, self._value(line)))

    def _state(self, line: Line) -> None:
        column = line.next.column
        old = self._value(line)
        if old.node not in {given.id for given in self.inputs}:
            raise line.fail("only an input is state", expected="the name of an input", column=column)
        line.expect("<-")
        self.state.append(State(old.node, self._value(line)))

    def _declared(self, line: Line) -> tuple[int, str]:
        token = line.expect_kind("reference", "an id such as %12")
        if not re.fullmatch(r"%\d+", token.text):
            raise line.fail("this is no id", token.text, "% and a number", column=token.column)
        ident = int(token.text[1:])
        if ident in self.known:
            raise line.fail("this id is there already", token.text, column=token.column)
        return ident, line.word_or_string("a name")

    def _declare(self, ident: int, name: str, outputs: int) -> None:
        self.ids.setdefault(name, ident)
        self.known[ident] = outputs

    def _value(self, line: Line) -> Value:
        token = line.expect_kind("reference", "a value such as %x")
        head, colon, index = token.text[1:].rpartition(":")
        if not colon or not index.isdecimal():
            head, index = token.text[1:], "0"
        ident = int(head) if head.isdecimal() else self.ids.get(unquoted(head), -1)
        if int(index) >= self.known.get(ident, 0):
            raise line.fail(
                "this value is not known here",
                token.text,
                "an input, or an output of a node above",
                column=token.column,
            )
        return Value(ident, int(index))

    def _arguments(self, line: Line) -> tuple[tuple[Arg, ...], tuple[tuple[str, Arg], ...]]:
        args: list[Arg] = []
        kwargs: list[tuple[str, Arg]] = []
        line.expect("(")
        while not line.accept(")"):
            if args or kwargs:
                line.expect(",")
            arg, keyword = self._argument(line)
            if keyword is not None:
                kwargs.append((keyword, arg))
            elif kwargs:
                raise line.fail("an argument without a keyword follows one with a keyword")
            else:
                args.append(arg)
        return tuple(args), tuple(kwargs)

    def _argument(self, line: Line) -> tuple[Arg, str | None]:
        """Read an argument and its keyword; a word or string before ``=`` is a keyword."""
        token = line.next
        if token.kind not in {"word", "string"}:
            return self._arg(line), None
        line.take()
        if line.accept("="):
            return self._arg(line), unquoted(token.text)
        return self._literal(line, token.kind, token.text, token.column), None

    def _arg(self, line: Line) -> Arg:
        token = line.next
        if token.kind == "reference":
            return self._value(line)
        if line.accept("["):
            return tuple(self._items(line))
        if line.accept("<"):
            return _symbol(line)
        line.take()
        return self._literal(line, token.kind, token.text, token.column)

    def _items(self, line: Line) -> Iterator[Arg]:
        first = True
        while not line.accept("]"):
            if not first:
                line.expect(",")
            first = False
            yield self._arg(line)

    def _literal(self, line: Line, kind: str, text: str, column: int) -> Arg:
        if kind == "string":
            return unquoted(text)
        if kind == "number":
            return int(text) if re.fullmatch(r"-?\d+", text) else float(text)
        if kind == "word" and text in _WORDS:
            return _WORDS[text]
        expected = 'a %value, a number, "a string", True, False, None, [a list] or <a constant>'
        raise line.fail("this is no argument", text or "the end of the line", expected, column=column)

    def _types(self, line: Line) -> list[tuple[Type, Value | None]]:
        if not line.accept("("):
            return [self._output_type(line)]
        found: list[tuple[Type, Value | None]] = []
        while not line.accept(")"):
            if found:
                line.expect(",")
            found.append(self._output_type(line))
        return found

    def _output_type(self, line: Line) -> tuple[Type, Value | None]:
        kind = self._type(line)
        return kind, self._value(line) if line.accept("views") else None

    def _type(self, line: Line) -> Type:
        token = line.expect_kind("word", "a type")
        if token.text in {"float", "int", "bool"}:
            return ScalarType(token.text)  # type: ignore[arg-type]
        if token.text not in _NAMES:
            raise line.fail("this is no type", token.text, ", ".join(_NAMES), column=token.column)
        line.expect("[")
        shape = _integers(line, "]")
        column = line.next.column
        strides = _integers(line, "}") if line.accept("{") else contiguous_strides(shape)
        if len(strides) != len(shape):
            raise line.fail(
                "a stride is missing", f"{len(strides)}", f"{len(shape)}, one a dimension", column=column
            )
        return TensorType(
            shape, _NAMES[token.text], _device(line) if line.accept("on") else self.device, strides
        )


@dataclass
class _Inside:
    """A graph that a node runs, as it is read: all lines that stand further in than ``margin``."""

    margin: int
    reader: _Reader


def _header(line: Line) -> None:
    if line.text.split("#")[0].strip() != HEADER:
        got = line.text.strip()[:60]
        raise line.fail("this is no graph of peakfold, or one of another version", got, HEADER, column=1)


def _integers(line: Line, close: str) -> tuple[int, ...]:
    found: list[int] = []
    while not line.accept(close):
        if found:
            line.expect(",")
        found.append(line.integer())
    return tuple(found)


def _device(line: Line) -> str:
    name = line.word_or_string("a device")
    return f"{name}:{line.integer()}" if line.accept(":") else name


def _symbol(line: Line) -> Symbol:
    kind = line.word_or_string("dtype, device, layout or memory_format")
    if kind not in {"dtype", "device", "layout", "memory_format"}:
        raise line.fail("this is no kind of constant", kind, "dtype, device, layout or memory_format")
    name = _device(line)
    line.expect(">")
    return Symbol(kind, name)  # type: ignore[arg-type]


def _facts(line: Line) -> tuple[int | None, bool, bool]:
    """Read what follows the types: position in the random stream, whether random, whether pure."""
    stream, random, pure = None, False, True
    while line.accept(";"):
        token = line.expect_kind("word", "draw, stream, random or impure")
        if token.text in {"draw", "stream"}:
            stream = line.integer("a position in the random stream")
        elif token.text not in {"random", "impure"}:
            expected = "draw N, stream N, random or impure"
            raise line.fail("this is no fact about a node", token.text, expected, column=token.column)
        random |= token.text in {"draw", "random"}
        pure &= token.text != "impure"
    return stream, random, pure


def _origin(line: Line) -> Origin:
    if not line.accept("@"):
        return Origin()
    source, module = _place(line, "a source line or -"), _place(line, "a module or -")
    phase = line.word_or_string("a phase")
    if phase not in get_args(Phase):
        raise line.fail("this is no phase", phase, ", ".join(get_args(Phase)))
    return Origin(module, source, cast(Phase, phase))


def _place(line: Line, what: str) -> str:
    if line.accept("-"):
        return ""
    return line.word_or_string(what)
