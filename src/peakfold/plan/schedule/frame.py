"""A graph in one order of first runs, with what decoding needs: gaps, update cones, what may be dropped.

*Base steps* are all steps but the updates, in the order of their first runs. *Update steps* are of the
update phase and feed update steps only; they are put between the base runs by `sequence`.

A *gap* is a pair (producer, user) of base steps: the storages of the producer that the user reads,
between their reader before it (or their production) and that user. A *tail* is what follows the last
base reader of a step's outputs. The decisions of a plan are one mode for each gap and tail: KEEP;
HOLD, what is computed again stays; DROP, it does not; SINCE + p, it stays if it was computed again for
the base step at place p or a later one.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from peakfold.errors import PlanError
from peakfold.ir.order import first_broken
from peakfold.ir.plan import Plan, Recompute
from peakfold.plan.schedule.arrays import Flags, Ints, Tables, begins, flat

KEEP, HOLD, DROP, SINCE = 0, 1, 2, 3


@dataclass(frozen=True)
class Frame:
    """Tables in one order. ``x[x_begin[i]:x_begin[i + 1]]`` belongs to row ``i``.

    Attributes:
        tables: the graph.
        base: base steps, in the order of their first runs.
        rank: place of each step in that order; update steps come after all base steps.
        late: which steps are update steps.
        need_begin, need: for each step, the storages it reads that steps make (numbers apart).
        need_gap: for each of ``need``, its gap; -1 where the reader is an update step.
        use_begin, use_gap: for each storage, the gaps that end at its base readers, in order.
        gap_producer, gap_user: the two steps of each gap.
        droppable: for each step, whether its outputs may be dropped and computed again.
    """

    tables: Tables
    base: Ints
    rank: Ints
    late: Flags
    need_begin: Ints
    need: Ints
    need_gap: Ints
    use_begin: Ints
    use_gap: Ints
    gap_producer: Ints
    gap_user: Ints
    droppable: Flags

    @property
    def gaps(self) -> int:
        """Number of gaps; the mode of the tail of step ``s`` is at ``gaps + s``."""
        return len(self.gap_producer)

    @cached_property
    def gap_of(self) -> Mapping[tuple[int, int], int]:
        """Gap of each (producer, user)."""
        pairs = zip(self.gap_producer.tolist(), self.gap_user.tolist(), strict=True)
        return {pair: gap for gap, pair in enumerate(pairs)}

    @cached_property
    def targets(self) -> tuple["Target", ...]:
        """What completes each state pair, in program order of the new values."""
        return tuple(_targets(self))


@dataclass(frozen=True, slots=True)
class Target:
    """A state pair whose new value update steps make.

    Attributes:
        old: storage of the state input.
        producers: base steps whose first runs must be past.
        cone: update steps to run, in order.
    """

    old: int
    producers: tuple[int, ...]
    cone: tuple[int, ...]


def frame(tables: Tables, order: Sequence[int] = ()) -> Frame:
    """Return the frame of an order.

    Args:
        tables: the graph.
        order: node ids of all steps in the order of their first runs; empty for the program's own.

    Raises:
        PlanError: the order is not one of this graph.
    """
    steps = _order(tables, order)
    late = _late(tables)
    base = np.array([s for s in steps if not late[s]], np.int32)
    rank = np.empty(tables.steps, np.int32)
    rank[base] = np.arange(len(base))
    rank[[s for s in steps if late[s]]] = np.arange(len(base), tables.steps)
    made = (tables.producer >= 0) & ~tables.host_number
    needs = [
        [v for v in _row(tables.operand_begin, tables.operands, s) if made[v]] for s in range(tables.steps)
    ]
    gap_of: dict[tuple[int, int], int] = {}
    uses: list[list[int]] = [[] for _ in tables.storages]
    for user in base.tolist():
        for v in needs[user]:
            uses[v].append(gap_of.setdefault((int(tables.producer[v]), user), len(gap_of)))
    gaps = [
        gap_of.get((int(tables.producer[v]), s), -1) if not late[s] else -1
        for s in range(tables.steps)
        for v in needs[s]
    ]
    return Frame(
        tables=tables,
        base=base,
        rank=rank,
        late=late,
        need_begin=begins(needs),
        need=flat(needs),
        need_gap=np.array(gaps, np.int32),
        use_begin=begins(uses),
        use_gap=flat(uses),
        gap_producer=np.array([pair[0] for pair in gap_of], np.int32),
        gap_user=np.array([pair[1] for pair in gap_of], np.int32),
        droppable=_droppable(tables, late, needs),
    )


def modes_of(frame: Frame, plan: Plan) -> list[int]:
    """Return the mode of each gap and tail that a plan decides.

    A ``use`` that reads the node decides the gap before it. Any other one decides the tail: the outputs
    are dropped after their last reader, and computed again on the way to other values.

    Raises:
        PlanError: a decision names what the graph has not, or what cannot be computed again.
    """
    modes = [KEEP] * (frame.gaps + frame.tables.steps)
    for decision in plan.recompute:
        fault = fault_of(frame, decision)
        if fault is not None:
            raise _refused(*fault)
        producer, user = frame.tables.step_of[decision.node], frame.tables.step_of[decision.use]
        slot = frame.gap_of.get((producer, user), frame.gaps + producer)
        modes[slot] = _mode(frame, decision)
    return modes


def fault_of(frame: Frame, decision: Recompute) -> tuple[str, str] | None:
    """Return why a decision cannot be made, and where; None where it can."""
    step_of = frame.tables.step_of
    for node in (decision.node, decision.use):
        if node not in step_of:
            return "a recompute names a node that is no step", f"node {node}"
    producer, user = step_of[decision.node], step_of[decision.use]
    if not frame.droppable[producer]:
        return "this node cannot be computed again", _name(frame, producer)
    if frame.late[user] or frame.rank[user] < frame.rank[producer]:
        return "a recompute's use must come after its node", _name(frame, user)
    if decision.hold and decision.since is not None:
        since = step_of.get(decision.since)
        if since is None or frame.late[since]:
            return "a recompute holds since a node that is no step of the program", f"node {decision.since}"
    return None


def _mode(frame: Frame, decision: Recompute) -> int:
    if not decision.hold:
        return DROP
    if decision.since is None:
        return HOLD
    return SINCE + int(frame.rank[frame.tables.step_of[decision.since]])


def _refused(what: str, got: str) -> PlanError:
    hint = "remove the line, or name another node"
    return PlanError(stage="lower", what=what, got=got, hint=hint)


def _name(frame: Frame, step: int) -> str:
    return frame.tables.graph.node[int(frame.tables.nodes[step])].name


def _order(tables: Tables, order: Sequence[int]) -> list[int]:
    if not order:
        return list(range(tables.steps))
    if sorted(order) != sorted(tables.nodes.tolist()):
        raise _refused("the order does not name every step of the graph once", f"{len(order)} nodes")
    broken = first_broken(tables.graph, order)
    if broken is not None:
        early, late = broken.node.name, broken.other.name
        raise _refused(f"the order has {early} before {late}, {broken.why}", f"{early} before {late}")
    return [tables.step_of[node] for node in order]


def _late(tables: Tables) -> Flags:
    """Update steps: of the update phase, and read by such steps only."""
    late = tables.update.copy()
    for step in range(tables.steps - 1, -1, -1):
        for v in _row(tables.output_begin, tables.outputs, step):
            if not late[_row(tables.user_begin, tables.users, v)].all():
                late[step] = False
    return late


def _droppable(tables: Tables, late: Flags, needs: Sequence[Sequence[int]]) -> Flags:
    """Steps that repeat exactly, own all their outputs, and feed no update and make no state in place."""
    allowed: Flags = ~tables.host & ~late & (tables.pure | tables.random)
    mixed = [any(a is not None for a in tables.graph.node[int(n)].aliases) for n in tables.nodes]
    allowed &= ~np.array(mixed, np.bool_)
    for step in np.flatnonzero(mixed).tolist():
        allowed[[int(tables.producer[v]) for v in needs[step]]] = False
    for step in np.flatnonzero(late).tolist():
        allowed[[int(tables.producer[v]) for v in needs[step]]] = False
    kept = np.flatnonzero((tables.is_output | _written_over(tables)) & (tables.producer >= 0))
    allowed[tables.producer[kept]] = False
    return allowed


def _written_over(tables: Tables) -> Flags:
    """New values of states that can be written over the old ones: what makes them cannot run again."""
    found = np.zeros(len(tables.storages), np.bool_)
    ways = set(zip(tables.reuse_output.tolist(), tables.reuse_operand.tolist(), strict=True))
    for old, new in zip(tables.state_input.tolist(), tables.state_output.tolist(), strict=True):
        found[new] = (new, old) in ways
    return found


def _targets(frame: Frame) -> Iterable[Target]:
    tables = frame.tables
    pairs = zip(tables.state_input.tolist(), tables.state_output.tolist(), strict=True)
    made = [(int(tables.producer[new]), old) for old, new in pairs if tables.producer[new] >= 0]
    for step, old in sorted(made, key=lambda item: (frame.rank[item[0]], item[1])):
        if frame.late[step]:
            yield _target(frame, step, old)


def _target(frame: Frame, step: int, old: int) -> Target:
    """The update steps that a new value needs, those that read the old value included."""
    tables = frame.tables
    readers = [u for u in _row(tables.user_begin, tables.users, old) if frame.late[u] and u < step]
    cone: set[int] = set()
    producers: set[int] = set()
    stack = [step, *readers]
    while stack:
        item = stack.pop()
        if item in cone:
            continue
        cone.add(item)
        for v in _row(tables.operand_begin, tables.operands, item):
            maker = int(tables.producer[v])
            if maker >= 0:
                stack.append(maker) if frame.late[maker] else producers.add(maker)
    ordered = sorted(cone, key=lambda s: int(frame.rank[s]))
    return Target(old, tuple(sorted(producers)), tuple(ordered))


def _row(begin: Ints, items: Ints, row: int) -> list[int]:
    found: list[int] = items[begin[row] : begin[row + 1]].tolist()
    return found
