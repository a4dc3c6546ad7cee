"""The same plan for another capture of the same program: another precision, batch or machine."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

from peakfold.errors import PlanError
from peakfold.ir.graph import Graph, Value
from peakfold.ir.plan import Anchor, CompressGap, OffloadGap, Plan, Recompute, Region, Run
from peakfold.ops.links import Factor
from peakfold.plan.fission.axes import Axes, anchor_of, find
from peakfold.plan.fission.derive import derive
from peakfold.plan.fission.prepare import prepare
from peakfold.plan.fission.split import within


def transfer(plan: Plan, graph: Graph, other: Graph) -> Plan | None:
    """Return a plan of one graph for another in which the nodes have the same names.

    Decisions that name what the other graph lacks are left out; None when that is more than one in
    ten, since the plan would no longer have the same structure.

    Example:
        >>> from peakfold.ir.graph import Input, Node, Op, Output, Value
        >>> from peakfold.ir.types import tensor
        >>> def program(n):
        ...     x = Input(0, "x", "batch", tensor(n))
        ...     node = Node(1, "y", Op("aten.exp.default"), (Value(0),), (), (tensor(n),), (None,))
        ...     return Graph((x,), (node,), (Output("y", Value(1)),))
        >>> small, large = program(2), program(8)
        >>> transfer(Plan(small.digest), small, large).graph == large.digest
        True
    """
    if plan.regions:
        return _with_regions(plan, prepare(graph), prepare(other), other.digest)
    ids = {node.name: node.id for node in other.nodes}
    inputs = {given.name: given.id for given in other.inputs}

    def there(node: int) -> int | None:
        given = graph.input.get(node)
        return ids.get(graph.node[node].name) if given is None else inputs.get(given.name)

    moved = [
        Recompute(node, use, item.hold, None if item.since is None else there(item.since))
        for item in plan.recompute
        if (node := there(item.node)) is not None and (use := there(item.use)) is not None
    ]
    away = list(_offloads(plan, there))
    if len(moved) < 0.9 * len(plan.recompute) or len(away) < 0.9 * len(plan.offload):
        return None
    order = tuple(node for item in plan.order if (node := there(item)) is not None)
    steps = sum(not node.is_view for node in other.nodes)
    return replace(
        plan,
        graph=other.digest,
        recompute=tuple(sorted(moved)),
        order=order if len(order) == steps else (),
        offload=tuple(sorted(away)),
        compress=tuple(sorted(_packed(plan, there))),
    )


def _with_regions(plan: Plan, graph: Graph, other: Graph, digest: str) -> Plan | None:
    """Carry the regions over first, then what is decided outside and inside of them."""
    axes = Axes()
    try:
        there = [_region(region, graph, other, axes) for region in plan.regions]
        mine, theirs = derive(graph, plan.regions, axes), derive(other, there, axes)
    except PlanError:
        return None
    outer = transfer(replace(plan, regions=()), mine.graph, theirs.graph)
    parts = [
        None if region.plan is None else _of_body(region.plan, one.part, two.part)
        for region, one, two in zip(plan.regions, mine.bodies.values(), theirs.bodies.values(), strict=True)
    ]
    lost = any(r.plan is not None and p is None for r, p in zip(plan.regions, parts, strict=True))
    if outer is None or lost:
        return None
    regions = tuple(replace(region, plan=part) for region, part in zip(there, parts, strict=True))
    return replace(outer, graph=digest, regions=regions)


def _of_body(plan: Plan, part: Graph, other: Graph) -> Plan | None:
    """Carry the plan of a body over, whose graph was prepared with the whole."""
    return _with_regions(plan, part, other, other.digest) if plan.regions else transfer(plan, part, other)


def _region(region: Region, graph: Graph, other: Graph, axes: Axes) -> Region:
    """Return a region of another graph, in as many parts as it has, or as its axis allows."""
    ids = {node.name: node.id for node in other.nodes} | {given.name: given.id for given in other.inputs}
    names = {node.id: node.name for node in graph.nodes} | {given.id: given.name for given in graph.inputs}
    known = {Run(ids[names[r.node]], r.k) for r in region.runs if names[r.node] in ids}
    runs = tuple(sorted(known | set(_between(other, known, set(names.values())))))
    known_ids = {ident: ids[name] for ident, name in names.items() if name in ids}
    moved = replace(region, runs=runs, anchor=_anchor(region, graph, known_ids, axes), plan=None)
    length = find(axes.of(other), moved, other)[0].length
    size = -(-length // min(region.parts, length))
    return replace(moved, parts=-(-length // size))


def _anchor(region: Region, graph: Graph, there: Mapping[int, int], axes: Axes) -> Anchor | None:
    """Return what says a region's axis in another graph: another split value, where that lacks its own."""
    anchor = region.anchor
    if anchor is None:
        return None
    if anchor.value.node in there:
        return replace(anchor, value=Value(there[anchor.value.node], anchor.value.index))
    states = axes(graph, region, frozenset(within(graph, region.runs))).states
    for value, state in states.items():
        if isinstance(state, Factor) and value.node in there:
            return anchor_of((Value(there[value.node], value.index), state))
    return None


def _between(graph: Graph, runs: set[Run], known: set[str]) -> Iterator[Run]:
    """Yield runs of nodes that the other graph lacks, such as casts, between those of a region."""
    k_of: dict[int, int] = {run.node: run.k for run in runs}
    inside = set(k_of)
    for node in graph.nodes:
        reads = [k_of[value.node] for value in node.inputs if value.node in k_of]
        if reads and node.id not in k_of and (node.is_view or node.name not in known):
            k_of[node.id] = min(reads)
    before: set[int] = set()
    for node in reversed(graph.nodes):
        if node.id in inside or (node.id in before and node.id in k_of):
            before.update(value.node for value in node.inputs)
        if node.id in before and node.id in k_of and node.id not in inside and not node.is_view:
            yield Run(node.id, k_of[node.id])


def _packed(plan: Plan, there: Callable[[int], int | None]) -> Iterator[CompressGap]:
    for item in plan.compress:
        maker, after, use = there(item.value.node), there(item.after), there(item.use)
        if maker is not None and after is not None and use is not None:
            yield CompressGap(Value(maker, item.value.index), after, use)


def _offloads(plan: Plan, there: Callable[[int], int | None]) -> Iterator[OffloadGap]:
    for item in plan.offload:
        maker = there(item.value.node)
        places = [
            node for at in (item.after, item.gone, item.fetch, item.use) if (node := there(at)) is not None
        ]
        if maker is not None and len(places) == 4:
            yield OffloadGap(Value(maker, item.value.index), *places)
