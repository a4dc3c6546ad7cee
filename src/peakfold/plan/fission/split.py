"""From a graph and regions to the outer graph and a body for each region (MAGIS's F-Trans).

A node with run 0 in a region is computed there, and what the rest reads of it is an output of the
region's loop. A run above 0 is computed again inside, for readers inside alone. Views are no runs:
those between two runs of a region are done on parts, all others on whole values, where they are read.
"""

import heapq
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from peakfold.errors import PlanError
from peakfold.ir.graph import Graph, Node, Op, Origin, Value, substitute
from peakfold.ir.plan import Region, Run
from peakfold.ir.regions import why_not_inside
from peakfold.ir.types import Type
from peakfold.plan.fission.body import WITHOUT, Builder, PartOf, first_fresh, refused
from peakfold.plan.fission.derived import LOOP, Assigned, Body, Derived
from peakfold.plan.fission.started import apart, started

Assign = Callable[[Graph, Region, frozenset[int]], Assigned]
"""Gives the states of a region: its graph, the region, and the ids of its nodes and the views between."""


def split(graph: Graph, regions: Sequence[Region], assign: Assign, part_of: PartOf) -> Derived:
    """Return the outer graph and the bodies of regions.

    Args:
        graph: what is computed.
        regions: disjoint over runs.
        assign: gives the states of a region's values.
        part_of: gives a node as it is in a part.

    Raises:
        PlanError: a region is none: it names what is not there, cannot be split along its axis, shares a
            run with another one, or something outside needs to run in the middle of it.
    """
    if not regions:
        return Derived(graph, {})
    graph = apart(graph, regions)
    _require_runs(graph, regions)
    builders = [_builder(graph, region, assign, part_of) for region in regions]
    home = {run.node: index for index, region in enumerate(regions) for run in region.runs if not run.k}
    outer = _Outer(graph, home, builders)
    made = outer.made()
    loops: list[Node] = []
    bodies: dict[int, Body] = {}
    for builder, values in zip(builders, made, strict=True):
        built = builder.build(values)
        kinds = (*(graph.type(value) for value in values), *built.carried)
        loop = _loop(graph, builder, first_fresh(graph) + len(loops), kinds, built.graph.digest)
        plan = builder.region.plan
        nested_regions = plan.regions if plan is not None else ()
        _require_equal_parts(builder, nested_regions)
        inner = split(built.graph, nested_regions, assign, part_of)
        loops.append(loop)
        bodies[loop.id] = Body(
            region=builder.region,
            loop=loop,
            length=builder.length,
            size=builder.size,
            part=built.graph,
            derived=inner,
            operands=built.operands,
            made=values,
            results=built.results,
            initial=built.initial,
            numbers=built.numbers,
            is_even=builder.is_even,
        )
    return started(outer.graph(loops, made), bodies)


def _require_equal_parts(around: Builder, regions: Sequence[Region]) -> None:
    """Sizes inside a nested region are numbers: they must hold for every part of the one around it."""
    if regions and not around.is_even:
        rest = around.length % around.size
        sizes = (
            f"parts of {around.size} and one of {rest}" if rest else "parts that share rows with neighbours"
        )
        got = f"the region around it, along {around.region.axis}, has {sizes}"
        expected = f"parts of one size: {around.length} is a multiple of it" if rest else "parts of one size"
        raise refused(regions[0], got, expected, WITHOUT)


def _builder(graph: Graph, region: Region, assign: Assign, part_of: PartOf) -> Builder:
    inside = within(graph, region.runs)
    return Builder(graph, region, inside, assign(graph, region, frozenset(inside)), part_of)


def within(graph: Graph, runs: Iterable[Run]) -> dict[int, int]:
    """Return the runs of a region by node, with the views between them, in program order."""
    k_of = {run.node: run.k for run in runs if run.node in graph.node}
    after: set[int] = set()
    waiting = list(k_of)
    while waiting:
        node = graph.node[waiting.pop()]
        for ident in (user for value in node.outputs for user in graph.users.get(value, ())):
            if ident not in after and graph.node[ident].is_view:
                after.add(ident)
                waiting.append(ident)
    before: set[int] = set()
    waiting = list(k_of)
    while waiting:
        for value in graph.node[waiting.pop()].inputs:
            if value.node in after and value.node not in before:
                before.add(value.node)
                waiting.append(value.node)
    return {ident: k_of.get(ident, 0) for ident in sorted({*k_of, *before}, key=graph.place.__getitem__)}


def _require_runs(graph: Graph, regions: Sequence[Region]) -> None:
    seen: dict[Run, str] = {}
    for region in regions:
        if not region.runs:
            raise refused(region, "it names no node")
        for run in region.runs:
            node = graph.node.get(run.node)
            if node is None:
                raise refused(region, f"it names node {run.node}, which is not there")
            reason = why_not_inside(node)
            if reason:
                raise refused(region, f"{node.name}: {reason}")
            if run in seen:
                raise refused(region, f"{node.name}: run {run.k} is in two regions, or there twice")
            seen[run] = region.axis


def _loop(graph: Graph, builder: Builder, ident: int, kinds: tuple[Type, ...], digest: str) -> Node:
    region = builder.region
    kwargs = (("body", digest), ("parts", len(range(0, builder.length, builder.size))))
    phases = [graph.node[run.node].origin.phase for run in region.runs]
    phase = "backward" if "backward" in phases else phases[0]
    return Node(
        id=ident,
        name=f"split.{region.axis}.{ident}",
        op=Op(LOOP),
        args=tuple(builder.reads),
        kwargs=kwargs,
        types=kinds,
        aliases=(None,) * len(kinds),
        origin=Origin(phase=phase),
    )


@dataclass
class _Outer:
    """What is left outside, and what it reads of the regions.

    Attributes:
        graph: the graph.
        home: index of the region of each node whose run 0 is in one.
        builders: of the regions.
    """

    graph_: Graph
    home: Mapping[int, int]
    builders: Sequence[Builder]

    def made(self) -> list[tuple[Value, ...]]:
        """Return what each region makes for the rest, in program order."""
        found: list[set[Value]] = [set() for _ in self.builders]
        for value in self._demanded():
            region = self.home.get(value.node)
            if region is not None:
                found[region].add(value)
        place = {node.id: at for at, node in enumerate(self.graph_.nodes)}
        return [tuple(sorted(values, key=lambda v: (place[v.node], v.index))) for values in found]

    def _demanded(self) -> set[Value]:
        """Every Value that lives outside: what results, effects and regions need."""
        graph = self.graph_
        stack = [out.value for out in graph.outputs] + [pair.output for pair in graph.state]
        stack += [value for builder in self.builders for value in builder.reads]
        for node in graph.nodes:
            if (node.op.random or not node.op.pure) and node.id not in self.home:
                stack.extend(node.outputs)
        found: set[Value] = set()
        while stack:
            value = stack.pop()
            if value in found:
                continue
            found.add(value)
            node_ = graph.node.get(value.node)
            if node_ is not None and value.node not in self.home:
                stack.extend(node_.inputs)
        return found

    def graph(self, loops: Sequence[Node], made: Sequence[Sequence[Value]]) -> Graph:
        """Return the outer graph."""
        kept = {value.node for value in self._demanded()}
        new = {
            value: Value(loop.id, index)
            for loop, values in zip(loops, made, strict=True)
            for index, value in enumerate(values)
        }
        nodes = [n for n in self.graph_.nodes if n.id in kept and n.id not in self.home]
        return renamed(self.graph_, self._ordered([*nodes, *loops], new), new)

    def _ordered(self, nodes: Sequence[Node], new: Mapping[Value, Value]) -> list[Node]:
        """Put the nodes where they stood, a loop where its first run stood, and all after what they read."""
        place = self._places(nodes)
        makers: dict[int, set[int]] = {node.id: set() for node in nodes}
        for node in nodes:
            makers[node.id] = {new.get(v, v).node for v in node.inputs} & makers.keys()
        drawn = [node.id for node in nodes if node.op.random]
        for before, after in pairwise(drawn):
            makers[after].add(before)
        users: dict[int, list[int]] = {node.id: [] for node in nodes}
        for ident, reads in makers.items():
            for maker in reads:
                users[maker].append(ident)
        ready = [(place[ident], ident) for ident, reads in makers.items() if not reads]
        heapq.heapify(ready)
        by_id = {node.id: node for node in nodes}
        found: list[Node] = []
        while ready:
            _, ident = heapq.heappop(ready)
            found.append(by_id[ident])
            for user in users[ident]:
                makers[user].discard(ident)
                if not makers[user]:
                    heapq.heappush(ready, (place[user], user))
        if len(found) < len(nodes):
            raise self._not_convex([ident for ident, reads in makers.items() if reads])
        return found

    def _places(self, nodes: Sequence[Node]) -> dict[int, int]:
        at = {node.id: at for at, node in enumerate(self.graph_.nodes)}
        loops = [node for node in nodes if node.op.name == LOOP]
        found = {node.id: at[node.id] for node in nodes if node.id in at}
        for loop, builder in zip(loops, self.builders, strict=True):
            found[loop.id] = min(
                (at[run.node] for run in builder.region.runs if not run.k),
                default=max(at[run.node] for run in builder.region.runs),
            )
        return found

    def _not_convex(self, left: Sequence[int]) -> PlanError:
        """Return the error of a region that something outside both needs and feeds."""
        between = [self.graph_.node[ident].name for ident in left if ident in self.graph_.node]
        names = ", ".join(between[:3]) or "another region"
        return refused(self.builders[0].region, f"{names} reads what a region makes, and a region reads that")


def renamed(graph: Graph, nodes: Sequence[Node], new: Mapping[Value, Value]) -> Graph:
    """Return a graph of these nodes, with Values replaced where ``new`` names them."""

    def inside(node: Node) -> Node:
        args = tuple(substitute(arg, new) for arg in node.args)
        kwargs = tuple((key, substitute(arg, new)) for key, arg in node.kwargs)
        aliases = tuple(alias if alias is None else new.get(alias, alias) for alias in node.aliases)
        return replace(node, args=args, kwargs=kwargs, aliases=aliases)

    outputs = tuple(replace(out, value=new.get(out.value, out.value)) for out in graph.outputs)
    state = tuple(replace(pair, output=new.get(pair.output, pair.output)) for pair in graph.state)
    return Graph(graph.inputs, tuple(inside(node) for node in nodes), outputs, state)


def nested(derived: Derived) -> Iterator[Body]:
    """Yield every body, nested ones after the one that they are in."""
    for body in derived.bodies.values():
        yield body
        yield from nested(body.derived)
