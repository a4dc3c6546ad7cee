"""A Graph as dataflow without control flow: what is chosen flows, what is not is dead [Dennis; TensorFlow].

``switch(p, x)`` gives x on one of two wires and a dead value on the other. An operator that reads a dead
value gives dead values, and is not run. ``merge(a, b)`` gives the one that is alive, or a dead value where
both are dead. A loop is a function of its own: one pass, which ends in a merge of what leaves and of the
function itself on what goes on; on dead values it gives dead values.

An operator that reads nothing would always run: inside of control flow it has a *gate*, the wire whose life
it shares.
"""

import keyword
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from peakfold.ir.control import COND, operands
from peakfold.ir.graph import Graph, Node, Value

Wire = str

RESERVED = ("switch", "merge", "alive", "program", "aten", "torch", "math")
"""Names that a program in Python needs itself."""


@dataclass(frozen=True, slots=True)
class Apply:
    """Run an operator unless what it reads is dead.

    Attributes:
        node: the operator and its arguments.
        reads: a wire for each of ``node.inputs``.
        makes: a wire for each output.
        gate: the wire whose life an operator shares that reads nothing; None for one that reads.
    """

    node: Node
    reads: tuple[Wire, ...]
    makes: tuple[Wire, ...]
    gate: Wire | None = None


@dataclass(frozen=True, slots=True)
class Switch:
    """Put a value on one of two wires."""

    predicate: Wire
    value: Wire
    false: Wire
    true: Wire


@dataclass(frozen=True, slots=True)
class Merge:
    """Take the value that is alive."""

    first: Wire
    second: Wire
    made: Wire


@dataclass(frozen=True, slots=True)
class Enter:
    """Give values to the first pass of a loop, and take what leaves the last one."""

    loop: str
    reads: tuple[Wire, ...]
    makes: tuple[Wire, ...]


Step = Apply | Switch | Merge | Enter


@dataclass(frozen=True, slots=True)
class Loop:
    """One pass of a loop.

    Attributes:
        name: of the function.
        parameters: what is carried, then what is the same in each pass.
        steps: of a pass, in an order in which they can run.
        leaves: what is carried, where there is no further pass; dead where there is.
        goes_on: what the next pass is given; dead where there is none.
    """

    name: str
    parameters: tuple[Wire, ...]
    steps: tuple[Step, ...]
    leaves: tuple[Wire, ...]
    goes_on: tuple[Wire, ...]


@dataclass(frozen=True, slots=True)
class Dataflow:
    """A program of switches and merges.

    Attributes:
        inputs: a wire for each input of the graph.
        steps: in an order in which they can run.
        outputs: wires of what the graph gives out: its outputs, then the new values of its state.
        loops: every loop, the inner ones first.
    """

    inputs: tuple[Wire, ...]
    steps: tuple[Step, ...]
    outputs: tuple[Wire, ...]
    loops: tuple[Loop, ...]


def dataflow(graph: Graph) -> Dataflow:
    """Return a graph as switches and merges; each graph inside of it is laid into its surroundings.

    Example:
        >>> from peakfold.ir.graph import Input, Op, Output
        >>> from peakfold.ir.types import tensor
        >>> def side(op):
        ...     made = Node(1, "side", Op(op), (Value(0),), (), (tensor(2),), (None,))
        ...     return Graph((Input(0, "x", "batch", tensor(2)),), (made,), (Output("out.0", Value(1)),))
        >>> given = Input(0, "p", "batch", tensor(dtype="bool")), Input(1, "x", "batch", tensor(2))
        >>> bodies = side("aten.exp.default"), side("aten.neg.default")
        >>> kind = (tensor(2),)
        >>> cond = Node(2, "y", Op(COND), (Value(0), Value(1)), (), kind, (None,), bodies=bodies)
        >>> program = dataflow(Graph(given, (cond,), (Output("y", Value(2)),)))
        >>> [type(step).__name__ for step in program.steps]
        ['Switch', 'Apply', 'Apply', 'Merge']
        >>> program.outputs
        ('y',)
    """
    loops: list[Loop] = []
    scope = _Scope(loops, set(RESERVED))
    inputs = tuple(scope.name(given.name) for given in graph.inputs)
    wires = {Value(given.id): wire for given, wire in zip(graph.inputs, inputs, strict=True)}
    scope.lay(graph, wires)
    results = [out.value for out in graph.outputs] + [pair.output for pair in graph.state]
    return Dataflow(inputs, tuple(scope.steps), tuple(wires[value] for value in results), tuple(loops))


@dataclass
class _Scope:
    """One function as it is written.

    Attributes:
        loops: all functions of loops so far.
        taken: names that are in use; functions have theirs among them.
        steps: so far.
        gate: the wire whose life operators share that read nothing; None where they always run.
        suffix: what is behind a name where it is taken.
        functions: names of all functions so far.
    """

    loops: list[Loop]
    taken: set[str]
    steps: list[Step] = field(default_factory=list)
    gate: Wire | None = None
    suffix: str = ""
    functions: set[str] = field(default_factory=set)

    def name(self, text: str) -> Wire:
        """Return a wire that reads like a text."""
        base = re.sub(r"\W+", "_", text, flags=re.ASCII).strip("_") or "v"
        base = f"v{base}" if base[0].isdigit() else base
        base = f"{base}_" if keyword.iskeyword(base) else base
        found, count = base, 0
        if found in self.taken and self.suffix:
            base = found = f"{base}_{self.suffix}"
        while found in self.taken:
            count += 1
            found = f"{base}_{count}"
        self.taken.add(found)
        return found

    def _function(self, text: str) -> str:
        """Return a name of a function: no other has it, and no wire here."""
        found = self.name(text)
        while found in self.functions:
            found = self.name(text)
        self.functions.add(found)
        return found

    def lay(self, graph: Graph, wires: dict[Value, Wire]) -> None:
        """Write the nodes of a graph, and add their wires."""
        for node in graph.nodes:
            reads = tuple(wires[value] for value in node.inputs)
            if not node.bodies:
                makes = tuple(self.name(graph.name_of(value)) for value in node.outputs)
                self.steps.append(Apply(node, reads, makes, None if reads else self.gate))
            elif node.op.name == COND:
                makes = self._branch(node, reads[0], [wires[value] for value in operands(node)])
            else:
                makes = self._loop(node, [wires[value] for value in operands(node)])
            wires.update(zip(node.outputs, makes, strict=True))

    def _branch(self, node: Node, predicate: Wire, given: Sequence[Wire]) -> tuple[Wire, ...]:
        switched = {wire: self._switch(predicate, wire, "then", "else") for wire in given}
        made: list[list[Wire]] = []
        for which, body in enumerate(node.bodies):
            inside = {
                Value(one.id): switched[wire][which] for one, wire in zip(body.inputs, given, strict=True)
            }
            made.append(self._inside(body, inside, predicate, ("then", "else"), which))
        merged = [
            self.name(f"{node.name}.{i}" if len(made[0]) > 1 else node.name) for i in range(len(made[0]))
        ]
        self.steps += [Merge(*pair) for pair in zip(*made, merged, strict=True)]
        return tuple(merged)

    def _inside(
        self, body: Graph, wires: dict[Value, Wire], predicate: Wire, words: tuple[str, str], which: int
    ) -> list[Wire]:
        """Write a graph that runs where a predicate is so; operators that read nothing share its life."""
        before = self.gate, self.suffix
        self.suffix = words[which]
        if any(not node.inputs for node in body.nodes):
            self.gate = self._switch(predicate, predicate, *words)[which]
        self.lay(body, wires)
        self.gate, self.suffix = before
        return [wires[out.value] for out in body.outputs]

    def _switch(self, predicate: Wire, value: Wire, true: str, false: str) -> tuple[Wire, Wire]:
        """Write a switch; return its wires where the predicate holds, and where it does not."""
        made = Switch(predicate, value, self.name(f"{value}.{false}"), self.name(f"{value}.{true}"))
        self.steps.append(made)
        return made.true, made.false

    def _loop(self, node: Node, given: Sequence[Wire]) -> tuple[Wire, ...]:
        name = self._function(f"{node.name}.pass")
        scope = _Scope(self.loops, {*RESERVED, name}, functions=self.functions)
        test, body = node.bodies
        parameters = tuple(scope.name(one.name) for one in body.inputs)
        scope.gate = parameters[0]
        wires = _bound(test, parameters)
        scope.lay(test, wires)
        (predicate,) = (wires[out.value] for out in test.outputs)
        switched = [scope._switch(predicate, wire, "in", "out") for wire in parameters]
        carried = len(body.outputs)
        inside = _bound(body, [true for true, _ in switched])
        following = scope._inside(body, inside, predicate, ("in", "out"), 0)
        leaves = tuple(false for _, false in switched[:carried])
        goes_on = (*following, *(true for true, _ in switched[carried:]))
        self.loops.append(Loop(name, parameters, tuple(scope.steps), leaves, goes_on))
        makes = tuple(self.name(f"{node.name}.{i}" if carried > 1 else node.name) for i in range(carried))
        self.steps.append(Enter(name, tuple(given), makes))
        return makes


def _bound(graph: Graph, wires: Iterable[Wire]) -> dict[Value, Wire]:
    return {Value(one.id): wire for one, wire in zip(graph.inputs, wires, strict=True)}
