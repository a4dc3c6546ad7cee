"""Lowering: Graph + Plan -> Schedule, every step in order.

What runs, and when, `sequence` says. Here each buffer is given back right after the last read of
that run's value, results are written into dying operands, and state inputs get their new values:
in place by the last reader of the old value where its operator can, by a copy (Commit) otherwise.
Values that wait on the host are moved between these steps, as `transfers` says.
"""

from collections.abc import Iterator, Sequence
from functools import cached_property

from peakfold.cost.costs import Costs
from peakfold.ir.graph import Graph, Value
from peakfold.ir.plan import Buffer, Commit, Compute, Free, Plan, Reuse, ReuseKind, Run, Schedule, Step
from peakfold.ops.inplace import reusable_operands
from peakfold.plan.schedule.arrays import Tables, tabulate
from peakfold.plan.schedule.chains import chain
from peakfold.plan.schedule.frame import frame, modes_of
from peakfold.plan.schedule.sequence import sequence
from peakfold.plan.schedule.transfers import with_packing, with_transfers


def lower(graph: Graph, plan: Plan) -> Schedule:
    """Return the schedule that a plan comes to; the same input always gives the same one.

    Raises:
        PlanError: a decision is not legal for this graph.

    Example:
        >>> from peakfold.ir.graph import Input, Node, Op, Output
        >>> from peakfold.ir.types import tensor
        >>> x = Input(0, "x", "batch", tensor(4))
        >>> exp = Node(1, "exp", Op("aten.exp.default"), (Value(0),), (), (tensor(4),), (None,))
        >>> neg = Node(2, "neg", Op("aten.neg.default"), (Value(1),), (), (tensor(4),), (None,))
        >>> graph = Graph((x,), (exp, neg), (Output("y", Value(2)),))
        >>> for step in lower(graph, Plan(graph.digest)).steps:
        ...     print(step.run, [reuse.kind for reuse in step.reuses])
        Run(node=1, k=0) []
        Run(node=2, k=0) ['donate']
    """
    return lower_tables(tabulate(graph, Costs({}, {})), plan)


def lower_tables(tables: Tables, plan: Plan) -> Schedule:
    """Return the schedule that a plan comes to, from the tables of its graph."""
    placed = frame(tables, plan.order)
    kept = stored(tables, sequence(placed, modes_of(placed, plan), plan.updates), plan.reuse)
    packed = with_packing(tables.graph, kept, plan.compress)
    return with_transfers(tables.graph, packed, plan.offload)


def stored(tables: Tables, runs: Sequence[int], reuse: bool) -> Schedule:
    """Return the schedule of a sequence of runs: each step as often as it stands in ``runs``."""
    return Schedule(tuple(_Storage(tables, runs, reuse).steps()))


class _Storage:
    """Last reads, deaths and buffers of a sequence of runs."""

    def __init__(self, tables: Tables, runs: Sequence[int], reuse: bool) -> None:
        self.tables = tables
        self.runs = runs
        self.reuse = reuse
        self.last_read = self._last_reads()
        self.in_place = dict(self._in_place())
        self.commits = self._commits()
        self.dies = self._deaths()

    def steps(self) -> Iterator[Step]:
        tables = self.tables
        count = [0] * tables.steps
        current = [0] * len(tables.storages)
        for at, step in enumerate(self.runs):
            for v in self._made(step):
                current[v] = count[step]
            reuses = self._reuses(at)
            yield Compute(Run(int(tables.nodes[step]), count[step]), tuple(reuses.values()))
            count[step] += 1
            for old in self.commits.get(at, ()):
                yield Commit(tables.storages[old].node)
            for v in self.dies[at]:
                if v not in reuses:
                    yield Free(Buffer(tables.storages[v], current[v]))

    def _last_reads(self) -> dict[int, int]:
        return {v: at for at, step in enumerate(self.runs) for v in self._read(step)}

    def _in_place(self) -> Iterator[tuple[int, tuple[int, int]]]:
        """Yield (value, (run, operand)) for what is written over a state input from its last reader on."""
        first = {step: at for at, step in reversed(list(enumerate(self.runs)))}
        for old, new in self._new_of.items():
            links = chain(self.tables, old, new)
            makers = [int(self.tables.producer[v]) for v in links]
            at = self.last_read.get(old, -1)
            if links and at >= 0 and self.runs[at] == makers[0]:
                operands = (old, *links[:-1])
                places = ((first[maker], operand) for maker, operand in zip(makers, operands, strict=True))
                yield from zip(links, places, strict=True)

    def _commits(self) -> dict[int, list[int]]:
        """State inputs that are copied into, by the run that the copy follows."""
        found: dict[int, list[int]] = {}
        first: dict[int, int] = {}
        for at, step in enumerate(self.runs):
            first.setdefault(step, at)
        for old, new in self._new_of.items():
            if self.tables.replaces[new] == old and new in self.in_place:
                continue
            made = first.get(int(self.tables.producer[new]), -1)
            at = max(made, self.last_read.get(old, -1), 0)
            found.setdefault(at, []).append(old)
        return found

    @cached_property
    def _new_of(self) -> dict[int, int]:
        """Storage of the new value of each state input that changes."""
        pairs = zip(self.tables.state_input.tolist(), self.tables.state_output.tolist(), strict=True)
        return {old: new for old, new in pairs if old != new}

    def _deaths(self) -> list[list[int]]:
        """Storages whose value is needed no more after each run."""
        tables = self.tables
        needed = tables.is_output | (tables.producer < 0) | tables.host_number
        needed[list(self.in_place)] = True
        dies: list[list[int]] = [[] for _ in self.runs]
        for at in range(len(self.runs) - 1, -1, -1):
            step = self.runs[at]
            for v in dict.fromkeys((*self._copied(at), *self._read(step), *self._made(step))):
                if not needed[v]:
                    dies[at].append(v)
                needed[v] = True
            needed[self._made(step)] = False
        return dies

    def _copied(self, at: int) -> list[int]:
        """New values that are copied into their state inputs after a run."""
        return [self._new_of[old] for old in self.commits.get(at, ())]

    def _reuses(self, at: int) -> dict[int, Reuse]:
        """What the run writes in place, by the storage that it takes."""
        tables, step = self.tables, self.runs[at]
        node = tables.graph.node[int(tables.nodes[step])]
        ways = self._ways(step)
        found: dict[int, Reuse] = {}
        for way in reusable_operands(tables.graph, node) if ways else ():
            new, old = tables.storage_of[Value(node.id, way.output)], tables.index(way.operand)
            done = old in found or any(reuse.output == way.output for reuse in found.values())
            kind = self._kind(at, new, old)
            if kind and not done and (new, old) in ways:
                found[old] = Reuse(way.output, way.operand, kind)
        return found

    def _kind(self, at: int, new: int, old: int) -> ReuseKind | None:
        """How a run may write a new value over an operand."""
        if new in self.in_place:
            return "update" if self.in_place[new] == (at, old) else None
        dying = self.reuse and old in self.dies[at] and old not in self._copied(at)
        return "donate" if dying else None

    def _ways(self, step: int) -> list[tuple[int, int]]:
        begin = self.tables.reuse_begin
        rows = slice(begin[step], begin[step + 1])
        return list(
            zip(
                self.tables.reuse_output[rows].tolist(), self.tables.reuse_operand[rows].tolist(), strict=True
            )
        )

    def _read(self, step: int) -> list[int]:
        begin = self.tables.operand_begin
        found: list[int] = self.tables.operands[begin[step] : begin[step + 1]].tolist()
        return found

    def _made(self, step: int) -> list[int]:
        begin = self.tables.output_begin
        found: list[int] = self.tables.outputs[begin[step] : begin[step + 1]].tolist()
        return found
