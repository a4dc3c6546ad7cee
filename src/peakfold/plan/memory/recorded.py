"""From what an allocator saw to the allocations of a program, each with the name of what is in it."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate

from peakfold.errors import PlanError
from peakfold.ir.graph import Graph, Value
from peakfold.ir.plan import Compute, Prefetch, Step, Unpack
from peakfold.ir.types import TensorType
from peakfold.plan.fission.program import Nest
from peakfold.plan.memory.lifetimes import KINDS, SCRATCH_OF, step_name
from peakfold.plan.memory.trace import Request, Trace
from peakfold.plan.memory.ways import ALLOCATE, FREE, MARK
from peakfold.plan.schedule.timeline import kinds


def recorded(events: Sequence[tuple[int, int]], nest: Nest) -> Trace:
    """Return what an allocator saw of one run as a trace, each request with its name.

    Args:
        events: pairs (`ALLOCATE`, bytes), (`FREE`, index of the request) and (`MARK`, 0), in order. A mark
            ends each step, of the parts of regions too; one more is where a region has what it fills.
        nest: what was run.

    Raises:
        PlanError: the marks are not those of the program.
    """
    rows, sections = [], []
    for row, section in _sections(nest):
        rows.append(row)
        sections.append(section)
    marks = sum(kind == MARK for kind, _ in events)
    if marks != len(sections):
        raise PlanError(
            stage="arena",
            what="a program was recorded that is not the planned one",
            expected=f"{len(sections)} steps, each part of a region counted",
            got=f"{marks} steps",
            hint="report this as a bug",
        )
    rows.append(len(nest.schedule.steps))
    requests = (
        replace(
            _named(request, sections),
            row=rows[request.row],
            until=rows[request.until] if request.until >= 0 else -1,
        )
        for request in requests_of(events)
    )
    names = tuple(step_name(nest.graph, step) for step in nest.schedule.steps)
    return Trace(tuple(requests), names, len(events) + 1)


def requests_of(events: Sequence[tuple[int, int]]) -> Iterator[Request]:
    """Yield what an allocator was asked for, by the places in the events; events as of `recorded`."""
    rows = list(accumulate((kind == MARK for kind, _ in events), initial=0))
    dies = {index: at for at, (kind, index) in enumerate(events) if kind == FREE}
    born = [(at, number) for at, (kind, number) in enumerate(events) if kind == ALLOCATE]
    for index, (at, size) in enumerate(born):
        end = dies.get(index)
        yield Request(size, at, end, rows[at], until=-1 if end is None else rows[end])


@dataclass(frozen=True)
class _Names:
    """What a program, or a part of a region, calls its values.

    Attributes:
        nest: its graph and schedule.
        is_part: it is a part, which hands nothing to the caller and may be smaller than planned.
    """

    nest: Nest
    is_part: bool

    @cached_property
    def kinds(self) -> Mapping[Value, str]:
        """Kind of each storage."""
        return kinds(self.nest.graph)

    @cached_property
    def kept(self) -> frozenset[Value]:
        """Storages that the caller gets, and those whose bytes they take over."""
        graph, outputs = self.nest.graph, () if self.is_part else self.nest.graph.outputs
        found = {graph.storage(output.value) for output in outputs}
        computed = [step for step in self.nest.schedule.steps if isinstance(step, Compute)]
        for step in reversed(computed):
            for reuse in step.reuses:
                if Value(step.run.node, reuse.output) in found:
                    found.add(graph.storage(reuse.operand))
        return frozenset(found)


class _Section:
    """What runs between two marks: a step of the program or of a part, and what it has yet to make."""

    def __init__(self, names: _Names, step: Step) -> None:
        self._names, self._step = names, step
        self._left = list(_made(names.nest.graph, step))

    def name(self, request: Request, *, passes: bool) -> Request:
        """Return a request with the name of the value that it is, or of the step whose workspace it is.

        Args:
            request: made here.
            passes: it is given back here too.
        """
        graph, step = self._names.nest.graph, self._step
        value = None if passes else self._value(request)
        if value is None:
            node = graph.node[step.run.node].name if isinstance(step, Compute) else step_name(graph, step)
            return replace(request, name=f"{SCRATCH_OF}{node}")
        self._left.remove(value)
        again = " (again)" if isinstance(step, Compute) and step.run.k else ""
        return replace(request, name=graph.name_of(value) + again, kind=KINDS[self._names.kinds[value]])

    def _value(self, request: Request) -> Value | None:
        """Return which of the values that are left a request is, or None."""
        nbytes, kept = self._names.nest.graph.nbytes, self._names.kept
        fitting = [value for value in self._left if nbytes(value) == request.size]
        alike = (value for value in fitting if (request.dies is None) == (value in kept))
        found = next(alike, None) or next(iter(fitting), None)
        if found is None and self._names.is_part:
            return next((value for value in self._left if nbytes(value) > request.size), None)
        return found


def _sections(nest: Nest, is_part: bool = False) -> Iterator[tuple[int, _Section]]:
    """Yield what ends at each mark of an emitted program, with the step of the program that it is in.

    What a region fills is a section before its parts; what follows the last part makes nothing.
    """
    names = _Names(nest, is_part)
    for row, step in enumerate(nest.schedule.steps):
        here = _Section(names, step)
        yield row, here
        if not isinstance(step, Compute) or step.run.node not in nest.loops:
            continue
        repeat = nest.loops[step.run.node]
        for _ in repeat.body.starts:
            for _, section in _sections(repeat.nest, is_part=True):
                yield row, section
        yield row, here


def _named(request: Request, sections: Sequence[_Section]) -> Request:
    if request.row == len(sections):
        return replace(request, name="the end of the step")
    return sections[request.row].name(request, passes=request.until == request.row)


def _made(graph: Graph, step: Step) -> Iterator[Value]:
    """Yield the values whose bytes a step asks for."""
    if isinstance(step, Prefetch | Unpack):
        yield step.buffer.value
    if not isinstance(step, Compute):
        return
    node = graph.node[step.run.node]
    reused = {reuse.output for reuse in step.reuses}
    for value, kind, alias in zip(node.outputs, node.types, node.aliases, strict=True):
        if alias is None and isinstance(kind, TensorType) and value.index not in reused:
            yield value
