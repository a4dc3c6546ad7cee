"""A Graph as text."""

import json
import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator

from peakfold.ir.graph import Arg, Graph, Node, Origin, Symbol, Value
from peakfold.ir.text.lexer import WORD, plain_or_quoted
from peakfold.ir.types import ScalarType, TensorType, Type, contiguous_strides

HEADER = "peakfold graph 1"

GRAPH = "graph"
"""Stands before each graph that a node runs, below the node and further in."""

DTYPES = {
    "float64": "f64",
    "float32": "f32",
    "float16": "f16",
    "bfloat16": "bf16",
    "complex64": "c64",
    "complex128": "c128",
    "int64": "i64",
    "int32": "i32",
    "int16": "i16",
    "int8": "i8",
    "uint8": "u8",
    "bool": "b1",
}
"""How each dtype is written."""

PLACE = r'[^\s#"]+'
DEVICE = rf"{WORD}(?::\d+)?"


def print_graph(graph: Graph) -> str:
    """Return a graph as text that `parse_graph` reads back, equal in every field.

    Example:
        >>> from peakfold.ir.graph import Input, Op, Output
        >>> from peakfold.ir.types import tensor
        >>> x = Input(0, "x", "batch", tensor(2, 3))
        >>> half = Node(1, "half", Op("aten.mul.Tensor"), (Value(0), 0.5), (), (tensor(2, 3),), (None,))
        >>> print(print_graph(Graph((x,), (half,), (Output("y", Value(1)),))))
        peakfold graph 1
        device cpu
        <BLANKLINE>
        inputs
          %0 x : f32[2, 3] batch
        <BLANKLINE>
        nodes
          %1 half = aten.mul.Tensor(%x, 0.5) : f32[2, 3]
        <BLANKLINE>
        outputs
          y = %half
        <BLANKLINE>
        state
        <BLANKLINE>
    """
    printer = _Printer(graph, _usual_device(graph))
    head = (HEADER, f"device {plain_or_quoted(printer.device, DEVICE)}", "")
    return "\n".join((*head, *printer.lines())) + "\n"


class _Printer:
    def __init__(self, graph: Graph, device: str) -> None:
        self.graph = graph
        self.device = device
        named = [(given.id, given.name) for given in graph.inputs]
        named += [(node.id, node.name) for node in graph.nodes]
        count = Counter(name for _, name in named)
        self.names = {ident: name for ident, name in named if count[name] == 1}
        self.single = {item.id for item in graph.inputs} | {n.id for n in graph.nodes if len(n.types) == 1}

    def lines(self) -> Iterator[str]:
        graph = self.graph
        yield "inputs"
        for given in graph.inputs:
            yield f"  %{given.id} {plain_or_quoted(given.name)} : {self.type(given.type)} {given.kind}"
        yield from ("", "nodes")
        for node in graph.nodes:
            yield f"  {self.node(node)}"
            for body in node.bodies:
                yield f"    {GRAPH}"
                yield from (f"      {line}" for line in _Printer(body, self.device).lines() if line)
        yield from ("", "outputs")
        for out in graph.outputs:
            yield f"  {plain_or_quoted(out.name)} = {self.value(out.value)}"
        yield from ("", "state")
        for pair in graph.state:
            yield f"  {self.value(Value(pair.input))} <- {self.value(pair.output)}"

    def node(self, node: Node) -> str:
        arguments = [self.arg(arg) for arg in node.args]
        arguments += [f"{plain_or_quoted(name)}={self.arg(arg)}" for name, arg in node.kwargs]
        call = f"{plain_or_quoted(node.op.name)}({', '.join(arguments)})"
        facts = "".join(f"; {fact}" for fact in _facts(node))
        made = f"%{node.id} {plain_or_quoted(node.name)}"
        return f"{made} = {call} : {self.types(node)}{facts}{_origin(node.origin)}"

    def types(self, node: Node) -> str:
        pairs = zip(node.types, node.aliases, strict=True)
        texts = [self.type(kind) + (f" views {self.value(alias)}" if alias else "") for kind, alias in pairs]
        return texts[0] if len(texts) == 1 else f"({', '.join(texts)})"

    def type(self, kind: Type) -> str:
        if isinstance(kind, ScalarType):
            return kind.kind
        text = f"{DTYPES[kind.dtype]}[{_listed(kind.shape)}]"
        if kind.strides != contiguous_strides(kind.shape):
            text += f" {{{_listed(kind.strides)}}}"
        return text if kind.device == self.device else f"{text} on {plain_or_quoted(kind.device, DEVICE)}"

    def value(self, value: Value) -> str:
        name = self.names.get(value.node)
        text = f"%{value.node}" if name is None else f"%{plain_or_quoted(name)}"
        return text if value.index == 0 and value.node in self.single else f"{text}:{value.index}"

    def arg(self, arg: Arg) -> str:
        if isinstance(arg, Value):
            return self.value(arg)
        if isinstance(arg, Symbol):
            return f"<{arg.kind} {plain_or_quoted(arg.name, DEVICE)}>"
        if isinstance(arg, tuple):
            return f"[{', '.join(self.arg(item) for item in arg)}]"
        if isinstance(arg, float):
            return "nan" if math.isnan(arg) else repr(arg)
        return json.dumps(arg) if isinstance(arg, str) else repr(arg)


def _usual_device(graph: Graph) -> str:
    kinds = [given.type for given in graph.inputs] + [kind for node in graph.nodes for kind in node.types]
    devices = Counter(kind.device for kind in kinds if isinstance(kind, TensorType))
    return max(devices, key=devices.__getitem__, default="cpu")


def _listed(numbers: Iterable[int]) -> str:
    return ", ".join(str(number) for number in numbers)


def _facts(node: Node) -> Iterator[str]:
    if node.op.random:
        yield "random" if node.stream is None else f"draw {node.stream}"
    elif node.stream is not None:
        yield f"stream {node.stream}"
    if not node.op.pure:
        yield "impure"


def _origin(origin: Origin) -> str:
    if origin == Origin():
        return ""
    return f"  @ {_place(origin.source)} {_place(origin.module)} {origin.phase}"


def _place(text: str) -> str:
    if text == "":
        return "-"
    return json.dumps(text) if text == "-" or not re.fullmatch(PLACE, text) else text
