"""Graph and Schedule to one readable Python file.

The file needs torch alone. It defines ``step(tensors, scalars)``: two mappings by the names of the
graph's inputs, to a tuple of what the program returns, in the order of ``Graph.outputs``. State is
updated in place.
"""

import json
from collections.abc import Iterator, Mapping
from itertools import chain, count, groupby
from pathlib import Path

from peakfold.bridge.codegen import operators
from peakfold.bridge.codegen.control import CLONE, TOLD, control_lines
from peakfold.bridge.codegen.frame import Frame
from peakfold.bridge.codegen.header import Header, docstring
from peakfold.bridge.codegen.host import HOST_EXPRESSIONS, host_expression
from peakfold.bridge.codegen.loops import loop_lines, place_lines
from peakfold.bridge.codegen.names import Namer, operator_names
from peakfold.bridge.codegen.packing import Packings
from peakfold.bridge.codegen.pieces import single
from peakfold.bridge.codegen.random import REDRAW, Streams
from peakfold.bridge.codegen.transfer import IMPORTS, Transfers
from peakfold.bridge.codegen.writer import INDENT, call, deletion, margin, section
from peakfold.cost.costs import Costs
from peakfold.errors import PlanError
from peakfold.ir.control import BODIES, WHILE
from peakfold.ir.graph import Graph, Kind, Node, Value
from peakfold.ir.plan import Commit, Compute, Free, Loop, Reuse, Schedule, Step
from peakfold.ir.types import TensorType
from peakfold.ops.inplace import PLACE, InPlace, reusable_operands
from peakfold.ops.recurrent import keeps_workspace
from peakfold.plan.fission.derived import LOOP
from peakfold.plan.fission.program import Nest, Repeat, bodies_of
from peakfold.plan.schedule.timeline import Timeline

PEAK = " <- peak"
"""What stands behind a line at which the most bytes live at once."""

_KINDS: dict[Kind, str] = {
    "parameter": "parameters",
    "buffer": "buffers",
    "gradient": "gradients",
    "optimizer": "optimizer state",
    "constant": "constants",
    "batch": "batch",
    "scalar": "numbers",
}


def emit(
    graph: Graph,
    schedule: Schedule,
    timeline: Timeline | None = None,
    header: Header | None = None,
    *,
    marks: bool = False,
    loops: Mapping[int, Repeat] | None = None,
    folder: Path | None = None,
    bodies: Mapping[int, tuple[Nest, ...]] | None = None,
    told: bool = False,
) -> str:
    """Return the source of a file that runs a schedule.

    Args:
        graph: what is computed.
        schedule: each step of it, legal for the graph.
        timeline: the same schedule simulated; the lines at which the peak is reached are marked.
        header: figures for the docstring.
        loops: the regions of the graph, by id of the node that stands for each.
        marks: call a third argument of ``step`` after each step of the schedule and of the parts of its
            regions, and once a region has what it fills, so that the bytes that live there can be measured.
        folder: where what is offloaded waits in a file; None for memory of the host.
        bodies: the planned graphs of the control flow, by id of the node; without it each is planned here.
        told: have functions of the file called with the way that each branch and loop goes.

    Raises:
        PlanError: the schedule reads or frees what does not live, or has a step that is not supported.
    """
    if bodies is None:
        bodies = bodies_of(graph, lambda _: Costs({}, {}))
    functions = operator_names(_operators(graph, schedule, loops or {}, bodies))
    namer = Namer(graph, functions.values())
    frame = Frame(graph, namer, functions, loops or {}, bodies=bodies)
    frame.forks = count() if told and bodies else None
    streams = Streams(graph, schedule, namer)
    transfers = Transfers(graph, schedule, frame, folder)
    packings = Packings(graph, schedule, frame)
    if transfers.is_used or packings.is_used:
        frame.move = lambda step: chain(transfers.step(step), packings.step(step))
    peaks = frozenset(timeline.hotspots if timeline is not None else ())
    body = list(_body(frame, streams, schedule, peaks, marks))
    body.append(_return(frame))
    keeping = {node.op.name for node in graph.nodes if keeps_workspace(node)}
    return "\n".join(
        [
            docstring(header or Header()),
            "",
            *(["import math", ""] if any("math." in line for line in body) else []),
            *((*IMPORTS, "") if transfers.is_used else ()),
            "import torch",
            "",
            *(operators.KEEPING[1:] if keeping else ()),
            *(
                f"{functions[name]} = {operators.reference(name, name in keeping)}"
                for name in sorted(frame.used)
                if name != PLACE
            ),
            *(place_lines(functions[PLACE]) if PLACE in frame.used else ()),
            *(REDRAW if streams.needs_redraw else ()),
            *packings.definitions(),
            *(TOLD if frame.forks is not None else ()),
            *transfers.definitions(),
            *transfers.entry(marks),
            "",
            "",
            "@torch.no_grad()",
            f"def {'run' if transfers.is_used else 'step'}(tensors, scalars{', mark' if marks else ''}):",
            *_prologue(frame, namer),
            *streams.prologue(),
            *body,
            "",
        ]
    )


def _operators(
    graph: Graph, schedule: Schedule, loops: Mapping[int, Repeat], bodies: Mapping[int, tuple[Nest, ...]]
) -> list[str]:
    """Return every operator that the schedule may call, in program order, without repeats."""
    uncalled = {*HOST_EXPRESSIONS, LOOP, *BODIES}
    called = [node.op.name for node in graph.nodes if node.op.name not in uncalled]
    called += [single(graph, node, 0).op.name for node in graph.nodes if node.is_view]
    forms = [
        _form(graph, graph.node[step.run.node], reuse).form
        for step in schedule.steps
        if isinstance(step, Compute)
        for reuse in step.reuses
        if step.run.node not in loops
    ]
    nests = (*(repeat.nest for repeat in loops.values()), *chain.from_iterable(bodies.values()))
    inside = [_operators(one.graph, one.schedule, one.loops, one.bodies) for one in nests]
    if any(node.op.name == WHILE for node in graph.nodes):
        inside.append([CLONE])
    return list(dict.fromkeys([*called, *forms, *chain.from_iterable(inside)]))


def _form(graph: Graph, node: Node, reuse: Reuse) -> InPlace:
    storage = graph.storage(reuse.operand)
    for way in reusable_operands(graph, node):
        if way.output == reuse.output and graph.storage(way.operand) == storage:
            return way
    raise PlanError(
        stage="codegen",
        what=f"{node.name} cannot be written into {graph.name_of(reuse.operand)}",
        expected="an operand of the output's type, and an operator with an in-place form",
        got=node.op.name,
        hint="leave this reuse out of the schedule",
    )


def _prologue(frame: Frame, namer: Namer) -> Iterator[str]:
    graph, resident = frame.graph, 0
    for kind, title in _KINDS.items():
        given = [one for one in graph.inputs if one.kind == kind]
        nbytes = sum(graph.nbytes(Value(one.id)) for one in given)
        read = [one for one in given if one.id in frame.read_inputs]
        resident += nbytes
        if read or nbytes:
            yield margin(section(title), nbytes, resident)
        for one in read:
            source = "tensors" if isinstance(one.type, TensorType) else "scalars"
            yield f"{INDENT}{namer.value(Value(one.id))} = {source}[{json.dumps(one.name)}]"


def _body(
    frame: Frame, streams: Streams, schedule: Schedule, peaks: frozenset[int], marks: bool
) -> Iterator[str]:
    title = ""
    rows = groupby(enumerate(schedule.steps), lambda row: isinstance(row[1], Free) and not marks)
    for freeing, steps in rows:
        if freeing:
            yield from _free(frame, [step for _, step in steps if isinstance(step, Free)])
            continue
        for row, step in steps:
            heading = _heading(frame.graph, step)
            if heading not in ("", title):
                title = heading
                yield section(title)
            yield from _step(frame, streams, step, PEAK if row in peaks else "", marks)
            if marks:
                yield f"{INDENT}mark()"


def _heading(graph: Graph, step: Step) -> str:
    """Return phase and block of a step, e.g. ``"forward encoder.layer.0"``; empty for a free."""
    if not isinstance(step, Compute):
        return ""
    origin = graph.node[step.run.node].origin
    parts = origin.module.split(".")
    numbered = [i for i, part in enumerate(parts) if part.isdigit()]
    block = ".".join(parts[: numbered[0] + 1] if numbered else parts[:1])
    again = " again" if step.run.k else ""
    return f"{origin.phase} {block}".rstrip() + again


def _step(frame: Frame, streams: Streams, step: Step, note: str, marks: bool) -> Iterator[str]:
    if isinstance(step, Compute) and step.run.node in frame.loops:
        return _loop(frame, step, bool(note), marks)
    if isinstance(step, Compute) and step.run.node in frame.bodies:
        return _control(frame, step, bool(note))
    if isinstance(step, Compute):
        return _compute(frame, streams, step, note)
    if isinstance(step, Free):
        return _free(frame, [step])
    if isinstance(step, Commit):
        return _commit(frame, step)
    if frame.move is not None and not isinstance(step, Loop):
        return frame.move(step)
    raise PlanError(
        stage="codegen",
        what=f"a {type(step).__name__.lower()} step cannot be emitted",
        expected="compute, free and commit steps; moves to the host outside of loops",
        hint="make a plan without it",
    )


def _loop(frame: Frame, step: Compute, at_peak: bool, marks: bool) -> Iterator[str]:
    def write(inside: Frame, nest: Nest) -> Iterator[str]:
        streams = Streams(nest.graph, nest.schedule, inside.namer)
        peaks = frozenset(nest.timeline.hotspots if at_peak else ())
        return _body(inside, streams, nest.schedule, peaks, marks)

    return loop_lines(frame, step, write, marks)


def _control(frame: Frame, step: Compute, at_peak: bool) -> Iterator[str]:
    """Yield the lines of control flow; what it runs has no marks, since which of it runs is not known."""
    most = max(_beside(nest) for nest in frame.bodies[step.run.node])

    def write(inside: Frame, nest: Nest) -> Iterator[str]:
        peaks = frozenset(nest.timeline.hotspots if at_peak and _beside(nest) == most else ())
        return _body(inside, Streams(nest.graph, nest.schedule, inside.namer), nest.schedule, peaks, False)

    return control_lines(frame, step, write)


def _beside(nest: Nest) -> int:
    """Return the most bytes that a graph holds beside what it is given."""
    return nest.timeline.peak - nest.timeline.resident


def _compute(frame: Frame, streams: Streams, step: Compute, note: str) -> Iterator[str]:
    node = frame.graph.node[step.run.node]
    arguments = frame.arguments(node)
    if node.op.name in HOST_EXPRESSIONS:
        (name,) = frame.define(node, step.run)
        yield f"{INDENT}{name} = {host_expression(node.op.name, arguments)}"
        return
    yield from streams.before(step.run)
    function = node.op.name
    for reuse in step.reuses:
        way = _form(frame.graph, node, reuse)
        function = way.form
        if way.keyword:
            arguments.append(f"{way.keyword}={frame.read(way.operand)}")
    before = frame.live
    names = frame.define(node, step.run)
    ended = [name for reuse in step.reuses for name in frame.take(node, step.run, reuse)]
    prefix = f"{operators.targets(node.op.name, names)} = "
    if frame.is_nested and any(reuse.kind == "update" for reuse in step.reuses):
        prefix = frame.rename(node, step.reuses)
    lines = call(*streams.call(step.run, frame.function(function), arguments), prefix)
    yield from lines[:-1]
    yield margin(lines[-1], frame.live - before, frame.live) + note
    yield from deletion(ended)
    yield from streams.after(step.run)


def _free(frame: Frame, steps: list[Free]) -> Iterator[str]:
    names, given_back = [], 0
    for step in steps:
        ended, nbytes = frame.free(step.buffer)
        names += ended
        given_back += nbytes
    lines = deletion(names)
    yield from lines[:-1]
    if lines:
        yield margin(lines[-1], -given_back, frame.live)


def _commit(frame: Frame, step: Commit) -> Iterator[str]:
    state = frame.read(Value(step.input))
    new = frame.read(frame.graph.new_value[step.input])
    yield margin(f"{INDENT}{state}.copy_({new})", 0, frame.live)


def _return(frame: Frame) -> str:
    values = ", ".join(frame.view(output.value) for output in frame.graph.outputs)
    return f"{INDENT}return ({values},)" if values else f"{INDENT}return ()"
