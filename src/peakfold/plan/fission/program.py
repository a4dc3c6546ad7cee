"""A program with regions, planned: outer graph and bodies, each with its costs, schedule and timeline."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import chain

from peakfold.cost.costs import Costs
from peakfold.ir.control import WHILE, planned_bodies
from peakfold.ir.graph import Graph, Node, Value
from peakfold.ir.plan import Plan, Schedule
from peakfold.ir.types import TensorType
from peakfold.plan.fission.borders import COPY, PLACE
from peakfold.plan.fission.derived import LOOP, Body, Derived
from peakfold.plan.reorder.orders import least_peak
from peakfold.plan.schedule.arrays import tabulate
from peakfold.plan.schedule.frame import frame
from peakfold.plan.schedule.lower import lower
from peakfold.plan.schedule.simulate import simulate
from peakfold.plan.schedule.timeline import Timeline

PASSES = 1
"""Passes of a while loop that its seconds are those of."""

CostsOf = Callable[[Graph], Costs]
"""Gives seconds and hidden bytes of the operators of a graph; loops may be absent."""


@dataclass(frozen=True)
class Nest:
    """A graph with the loops in it, all planned.

    Attributes:
        graph: the outer graph, or that of one part.
        plan: the decisions about its nodes.
        costs: of its nodes, loops included.
        schedule: what the plan comes to.
        timeline: the schedule simulated; a loop is one step of it.
        loops: by id of the loop's node.
        bodies: the graphs that a node of control flow runs, by its id.
    """

    graph: Graph
    plan: Plan
    costs: Costs
    schedule: Schedule
    timeline: Timeline
    loops: Mapping[int, "Repeat"]
    bodies: "Mapping[int, tuple[Nest, ...]]" = field(default_factory=dict)

    def nests(self) -> Iterator["Nest"]:
        """Yield this one and all that are nested in it."""
        yield self
        for repeat in self.loops.values():
            yield from repeat.nest.nests()
        for body in chain.from_iterable(self.bodies.values()):
            yield from body.nests()


@dataclass(frozen=True)
class Repeat:
    """A loop: what a part is, and how it is planned."""

    body: Body
    nest: Nest

    @property
    def seconds(self) -> float:
        """Of all parts."""
        return self.body.parts * self.nest.timeline.seconds

    @property
    def workspace(self) -> int:
        """The most bytes that a part holds beyond operands and results."""
        return self.nest.timeline.peak - self.nest.timeline.resident


def planned(derived: Derived, plan: Plan, costs_of: CostsOf) -> Nest:
    """Lower and simulate a derived graph and its bodies, the innermost first.

    Args:
        derived: the graphs.
        plan: the decisions about the outer graph; those about a part are in its region.
        costs_of: gives the costs of a graph.

    Raises:
        PlanError: a decision is not legal.
    """
    loops = {
        ident: Repeat(body, planned(body.derived, inside_plan(body), costs_of))
        for ident, body in derived.bodies.items()
    }
    bodies = bodies_of(derived.graph, costs_of)
    costs = with_bodies(derived.graph, with_loops(derived.graph, costs_of(derived.graph), loops), bodies)
    schedule = lower(derived.graph, plan)
    timeline = simulate(derived.graph, costs, schedule)
    return Nest(derived.graph, plan, costs, schedule, timeline, loops, bodies)


def bodies_of(graph: Graph, costs_of: CostsOf) -> Mapping[int, tuple[Nest, ...]]:
    """Return the graphs that the control flow of a graph runs, each planned by itself, by id of the node."""
    return {
        node.id: tuple(_ordered(body, costs_of) for body in planned_bodies(node))
        for node in graph.nodes
        if node.bodies
    }


def _ordered(body: Graph, costs_of: CostsOf) -> Nest:
    """Return a graph planned in its own order, or in one of less bytes, which takes no more time."""
    own = planned(Derived(body, {}), Plan(body.digest), costs_of)
    order = least_peak(frame(tabulate(body, own.costs)))
    if not order:
        return own
    plan = Plan(body.digest, order=order)
    schedule = lower(body, plan)
    timeline = simulate(body, own.costs, schedule)
    other = replace(own, plan=plan, schedule=schedule, timeline=timeline)
    return min(own, other, key=lambda nest: nest.timeline.peak)


def with_bodies(graph: Graph, costs: Costs, bodies: Mapping[int, tuple[Nest, ...]]) -> Costs:
    """Return the costs of a graph with those of its control flow.

    A branch costs what its dearer side does, in bytes and in seconds. A loop holds what it carries, and what
    its pass or its question takes beside that; its seconds are those of `PASSES` passes, since nothing says
    how many there are.
    """
    if not bodies:
        return costs
    seconds, workspace = dict(costs.seconds), dict(costs.workspace)
    for ident, nests in bodies.items():
        node, times = graph.node[ident], [nest.timeline.seconds for nest in nests]
        beside = max(nest.timeline.peak - nest.timeline.resident for nest in nests)
        loops = node.op.name == WHILE
        seconds[ident] = PASSES * sum(times) if loops else max(times)
        made = sum(kind.nbytes for kind in node.types if isinstance(kind, TensorType))
        workspace[ident] = beside if loops else beside - made
    return replace(costs, seconds=seconds, workspace=workspace)


def controlled(graph: Graph, costs_of: CostsOf) -> Costs:
    """Return the costs of a graph with those of its control flow, whose graphs are planned by themselves."""
    return with_bodies(graph, costs_of(graph), bodies_of(graph, costs_of))


def inside_plan(body: Body) -> Plan:
    """Return the decisions about one part, without those about what is nested in it."""
    return outer_plan(body.region.plan or Plan(body.graph.digest), body.derived)


def outer_plan(plan: Plan, derived: Derived) -> Plan:
    """Return the decisions of a plan about the outer graph that its regions make."""
    return replace(plan, graph=derived.graph.digest, regions=())


def with_loops(graph: Graph, costs: Costs, loops: Mapping[int, Repeat]) -> Costs:
    """Return the costs of a graph with those of its loops and borders.

    A border of which nothing is known writes the part alone into its place: it is no copy of the whole.
    """
    seconds, workspace = dict(costs.seconds), dict(costs.workspace)
    for node in graph.nodes:
        if node.op.name in (PLACE, COPY) and node.id not in costs.seconds:
            seconds[node.id] = costs.link.latency + 2 * _written(graph, node) / costs.link.copy
            workspace[node.id] = 0
    seconds.update({ident: repeat.seconds for ident, repeat in loops.items()})
    workspace.update({ident: repeat.workspace for ident, repeat in loops.items()})
    return replace(costs, seconds=seconds, workspace=workspace)


def _written(graph: Graph, node: Node) -> int:
    part = node.args[1]
    kind = graph.type(part) if isinstance(part, Value) else None
    return kind.nbytes if isinstance(kind, TensorType) else 0


def is_loop(node: Node) -> bool:
    """Whether a node stands for a region."""
    return node.op.name == LOOP
