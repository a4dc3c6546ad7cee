"""The Graph: WHAT is computed. An immutable dataflow of ATen-level values."""

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from peakfold.ir.types import TensorType, Type

Kind = Literal["parameter", "buffer", "gradient", "optimizer", "batch", "constant", "scalar"]
Phase = Literal["forward", "backward", "update"]


@dataclass(frozen=True, slots=True)
class Op:
    """An operator: one object a name.

    Attributes:
        name: qualified name with overload, e.g. ``"aten.addmm.default"``; operators on host scalars
            are ``"host.mul"`` and the like.
        pure: whether equal inputs give equal outputs and nothing else happens.
        random: whether it draws from the generator's stream.
    """

    name: str
    pure: bool = True
    random: bool = False

    @property
    def packet(self) -> str:
        """The name without namespace and overload: ``"addmm"`` of ``"aten.addmm.default"``."""
        return self.name.split(".")[1]


@dataclass(frozen=True, slots=True, order=True)
class Value:
    """Output ``index`` of the node or graph input ``node``."""

    node: int
    index: int = 0


@dataclass(frozen=True, slots=True)
class Symbol:
    """A torch constant in an argument, e.g. ``Symbol("dtype", "float32")``."""

    kind: Literal["dtype", "device", "layout", "memory_format"]
    name: str


Arg = Value | Symbol | int | float | bool | str | None | tuple["Arg", ...]


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a node comes from in the user's program.

    Attributes:
        module: path of the module that ran, e.g. ``"encoder.layer.0.attention"``.
        source: file and line of the model's code, ``"model.py:41"``, or empty.
        phase: forward, backward or update.
    """

    module: str = ""
    source: str = ""
    phase: Phase = "forward"


@dataclass(frozen=True, slots=True)
class Input:
    """A value that the program is given.

    Attributes:
        id: in one space with node ids; ``Value(id)`` reads it.
        name: unique in the graph and the user's own where there is one, e.g. ``"fc.weight"``.
        kind: what it is; decides how reports colour it.
        type: its type; a host number has a ScalarType.
    """

    id: int
    name: str
    kind: Kind
    type: Type


@dataclass(frozen=True)
class Node:
    """One application of an operator.

    Attributes:
        id: stable across rewrites.
        name: unique in the graph and readable, e.g. ``"encoder.layer.0.addmm"``.
        op: the operator.
        args: positional arguments; tensors and host scalars as Values, lists as tuples.
        kwargs: keyword arguments, in the operator's own order.
        types: one an output.
        aliases: one an output: the input Value whose storage it shares, None for a new storage.
        stream: position in the program's own random stream for a random operator, else None.
        origin: where it comes from.
        bodies: graphs that a node of control flow runs, see `peakfold.ir.control`; empty for all others.
    """

    id: int
    name: str
    op: Op
    args: tuple[Arg, ...]
    kwargs: tuple[tuple[str, Arg], ...]
    types: tuple[Type, ...]
    aliases: tuple[Value | None, ...]
    stream: int | None = None
    origin: Origin = Origin()
    bodies: "tuple[Graph, ...]" = ()

    @cached_property
    def inputs(self) -> tuple[Value, ...]:
        """Every Value read, in argument order, repeats included."""
        return tuple(values_in((*self.args, *(arg for _, arg in self.kwargs))))

    @cached_property
    def outputs(self) -> tuple[Value, ...]:
        """The node's own Values."""
        return tuple(Value(self.id, i) for i in range(len(self.types)))

    @cached_property
    def is_view(self) -> bool:
        """Whether it only renames storage: free, rebuilt where it is read, never a step."""
        return bool(self.aliases) and all(alias is not None for alias in self.aliases)

    @property
    def is_host(self) -> bool:
        """Whether it computes host numbers only."""
        return not any(isinstance(t, TensorType) for t in self.types)


@dataclass(frozen=True, slots=True)
class State:
    """A graph input that the program replaces: parameter, buffer, optimizer state, gradient."""

    input: int
    output: Value


@dataclass(frozen=True, slots=True)
class Output:
    """A value that the program returns, e.g. ``"loss"``, ``"outputs.logits"``."""

    name: str
    value: Value


@dataclass(frozen=True)
class Graph:
    """An immutable program. ``nodes`` stand in the order in which the original computes them.

    Attributes:
        inputs: what the program is given.
        nodes: in topological order.
        outputs: what it returns; the first of a training step is the loss.
        state: pairs (input, new value); the program leaves the new value in the input's place.

    Example:
        >>> from peakfold.ir.types import tensor
        >>> x = Input(0, "x", "batch", tensor(2, 2))
        >>> relu = Node(1, "relu", Op("aten.relu.default"), (Value(0),), (), (tensor(2, 2),), (None,))
        >>> graph = Graph((x,), (relu,), (Output("y", Value(1)),), ())
        >>> graph.storage(Value(1))
        Value(node=1, index=0)
    """

    inputs: tuple[Input, ...]
    nodes: tuple[Node, ...]
    outputs: tuple[Output, ...]
    state: tuple[State, ...] = ()

    @cached_property
    def node(self) -> Mapping[int, Node]:
        """Nodes by id."""
        return {node.id: node for node in self.nodes}

    @cached_property
    def place(self) -> Mapping[int, int]:
        """Where each node stands in the program, by id."""
        return {node.id: at for at, node in enumerate(self.nodes)}

    @cached_property
    def input(self) -> Mapping[int, Input]:
        """Inputs by id."""
        return {given.id: given for given in self.inputs}

    @cached_property
    def users(self) -> Mapping[Value, tuple[int, ...]]:
        """Ids of the nodes that read each Value, in program order, without repeats."""
        found: dict[Value, dict[int, None]] = {}
        for node in self.nodes:
            for value in node.inputs:
                found.setdefault(value, {})[node.id] = None
        return {value: tuple(ids) for value, ids in found.items()}

    @cached_property
    def _roots(self) -> Mapping[Value, Value]:
        roots: dict[Value, Value] = {Value(given.id): Value(given.id) for given in self.inputs}
        for node in self.nodes:
            for value, alias in zip(node.outputs, node.aliases, strict=True):
                roots[value] = value if alias is None else roots[alias]
        return roots

    def type(self, value: Value) -> Type:
        """Return the type of a Value."""
        given = self.input.get(value.node)
        return given.type if given is not None else self.node[value.node].types[value.index]

    def tensor_type(self, value: Value) -> TensorType:
        """Return the type of a Value that is a tensor."""
        kind = self.type(value)
        assert isinstance(kind, TensorType), value
        return kind

    def name_of(self, value: Value) -> str:
        """Return a readable, unique name of a Value."""
        given = self.input.get(value.node)
        if given is not None:
            return given.name
        node = self.node[value.node]
        return node.name if len(node.types) == 1 else f"{node.name}:{value.index}"

    def storage(self, value: Value) -> Value:
        """Return the Value that owns the storage of a Value (itself unless it is a view)."""
        return self._roots[value]

    def storages(self) -> Iterator[Value]:
        """Yield every Value that owns a tensor storage, inputs first, in program order."""
        for value, root in self._roots.items():
            if value == root and isinstance(self.type(value), TensorType):
                yield value

    def nbytes(self, value: Value) -> int:
        """Return the bytes of the storage of a Value; 0 for a host scalar."""
        kind = self.type(self.storage(value))
        return kind.nbytes if isinstance(kind, TensorType) else 0

    @cached_property
    def new_value(self) -> Mapping[int, Value]:
        """New Value of each state input, by input id."""
        return {pair.input: pair.output for pair in self.state}

    @cached_property
    def results(self) -> frozenset[Value]:
        """Values that the program gives out: its outputs, and the new values of its state."""
        return frozenset((*(out.value for out in self.outputs), *(pair.output for pair in self.state)))

    @cached_property
    def digest(self) -> str:
        """Hex digest of what is computed: names and origins do not count."""
        state = hashlib.sha256()
        for given in self.inputs:
            state.update(repr((given.id, given.kind, given.type)).encode())
        for node in self.nodes:
            head = (node.id, node.op.name, node.args, node.kwargs, node.types, node.aliases, node.stream)
            state.update(repr(head).encode())
            for body in node.bodies:
                state.update(body.digest.encode())
        state.update(repr((tuple(out.value for out in self.outputs), self.state)).encode())
        return state.hexdigest()[:16]


def values_in(args: tuple[Arg, ...]) -> Iterator[Value]:
    """Yield the Values in nested arguments, in order.

    Example:
        >>> list(values_in((Value(1), (2, (Value(3), None)))))
        [Value(node=1, index=0), Value(node=3, index=0)]
    """
    stack: list[Arg] = list(reversed(args))
    while stack:
        arg = stack.pop()
        if isinstance(arg, Value):
            yield arg
        elif isinstance(arg, tuple):
            stack.extend(reversed(arg))


def substitute(arg: Arg, new: Mapping[Value, Value]) -> Arg:
    """Return an argument with Values replaced where ``new`` names them.

    Example:
        >>> substitute((Value(1), 2), {Value(1): Value(5)})
        (Value(node=5, index=0), 2)
    """
    if isinstance(arg, Value):
        return new.get(arg, arg)
    if isinstance(arg, tuple):
        return tuple(substitute(item, new) for item in arg)
    return arg
