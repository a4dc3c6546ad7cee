"""Control flow as ``if`` and ``while`` of the emitted step."""

from collections.abc import Callable, Iterator

from peakfold.bridge.codegen.frame import Frame
from peakfold.bridge.codegen.loops import indented
from peakfold.bridge.codegen.writer import INDENT, deletion, margin
from peakfold.ir.control import COND, operands
from peakfold.ir.graph import Node, Value
from peakfold.ir.plan import Compute
from peakfold.plan.fission.program import Nest

CLONE = "aten.clone.default"

TOLD = (
    "",
    "",
    "def holds(fork, value):",
    '    """Say which side of a branch runs; an arena is told, or one that records all sides decides."""',
    "    return bool(value)",
    "",
    "",
    "def goes_on(fork, value):",
    '    """Say whether there is another pass of a loop; as of `holds`."""',
    "    return bool(value)",
    "",
    "",
    "def over(fork):",
    '    """Say that a branch or loop is over."""',
)
"""Lines of the functions that a program calls which says which way it goes."""

WriteBody = Callable[[Frame, Nest], Iterator[str]]
"""Yields the lines of a graph, as those of a step."""


def control_lines(frame: Frame, step: Compute, write: WriteBody) -> Iterator[str]:
    """Yield the lines of a branch or of a while loop."""
    node = frame.graph.node[step.run.node]
    return (_branch if node.op.name == COND else _while)(frame, node, step, write)


def _branch(frame: Frame, node: Node, step: Compute, write: WriteBody) -> Iterator[str]:
    predicate = node.args[0]
    assert isinstance(predicate, Value)
    live, test = frame.live, frame.read(predicate)
    given = [frame.read(value) for value in operands(node)]
    names = frame.define(node, step.run)
    fork = None if frame.forks is None else next(frame.forks)
    asked = test if fork is None else f"holds({fork}, {test})"
    for nest, words, suffix in zip(
        frame.bodies[node.id], (f"if {asked}:", "else:"), ("_then", "_else"), strict=True
    ):
        yield f"{INDENT}{words}"
        inside = _inside(frame, nest, given, suffix)
        inside.live = live
        yield from map(indented, _returning(inside, nest, names, write))
    yield from _over(fork)


def _while(frame: Frame, node: Node, step: Compute, write: WriteBody) -> Iterator[str]:
    """Yield a loop over copies of what is carried at first; each pass writes into them."""
    given = [frame.read(value) for value in operands(node)]
    clone = frame.function(CLONE)
    live = frame.live
    names = frame.define(node, step.run)
    for name, first, value in zip(names, given, node.outputs, strict=False):
        live += frame.graph.nbytes(value)
        yield margin(f"{INDENT}{name} = {clone}({first})", frame.graph.nbytes(value), live)
    inputs = [*names, *given[len(names) :]]
    test, body = frame.bodies[node.id]
    again = frame.namer.fresh("again")
    fork = None if frame.forks is None else next(frame.forks)
    yield f"{INDENT}while True:"
    asking = _inside(frame, test, inputs, "_test")
    yield from map(indented, _asking(asking, test, again, fork, write))
    yield f"{INDENT}{INDENT}if not {again}:"
    yield f"{INDENT}{INDENT}{INDENT}break"
    yield from map(indented, write(_inside(frame, body, inputs, "_pass"), body))
    yield from _over(fork)


def _over(fork: int | None) -> Iterator[str]:
    if fork is not None:
        yield f"{INDENT}over({fork})"


def _inside(frame: Frame, nest: Nest, given: list[str], suffix: str) -> Frame:
    """Return the names in a graph; its inputs are expressions of the outside."""
    texts = {one.id: text for one, text in zip(nest.graph.inputs, given, strict=True)}
    return frame.nested(nest, texts, suffix)


def _returning(inside: Frame, nest: Nest, names: list[str], write: WriteBody) -> Iterator[str]:
    """Yield the lines of a side, which leave its outputs under names of the outside."""
    outputs = list(zip(names, (out.value for out in nest.graph.outputs), strict=True))
    for name, value in outputs:
        if nest.graph.storage(value) == value:
            inside.namer.share(value, name)
    yield from write(inside, nest)
    for name, value in outputs:
        if nest.graph.storage(value) != value:
            yield f"{INDENT}{name} = {inside.read(value)}"
    ended = [own for _, value in outputs for own in inside.leave(value)]
    yield from deletion([own for own in ended if own not in names])


def _asking(inside: Frame, nest: Nest, again: str, fork: int | None, write: WriteBody) -> Iterator[str]:
    """Yield the lines of a question, which leave its answer as a truth value."""
    yield from write(inside, nest)
    (answer,) = (out.value for out in nest.graph.outputs)
    value = inside.read(answer)
    yield f"{INDENT}{again} = " + (f"bool({value})" if fork is None else f"goes_on({fork}, {value})")
    yield from deletion(inside.leave(answer))
