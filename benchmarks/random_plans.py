"""Random plans: any regions, parts, second runs, orders, offloads, reuse; whether they compute the same."""

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise

import torch
from torch.nn import functional

from benchmarks.case import Row
from benchmarks.small_steps import small_task
from peakfold.bridge.codegen.emit import emit
from peakfold.bridge.runtime.compare import BOUND, FLOOR, error_of
from peakfold.bridge.runtime.interpret import interpret
from peakfold.bridge.runtime.source import load_source
from peakfold.cost.costs import Costs
from peakfold.errors import PlanError
from peakfold.ir.graph import Graph, Node, Value
from peakfold.ir.plan import OffloadGap, Plan, Recompute, Region, Run
from peakfold.ir.recompute import why_not_again
from peakfold.ir.regions import candidates as splittable
from peakfold.ir.types import TensorType
from peakfold.pipeline.exact import casts_down
from peakfold.pipeline.task import Task
from peakfold.plan.check import require_legal
from peakfold.plan.fission.axes import Axes
from peakfold.plan.fission.candidates import Candidate, candidates
from peakfold.plan.fission.derive import derive
from peakfold.plan.fission.dims import Component
from peakfold.plan.fission.prepare import prepare
from peakfold.plan.fission.program import Nest, outer_plan, planned
from peakfold.plan.fission.stages import stages
from peakfold.plan.fission.tree import region_of, rest_of
from peakfold.plan.fission.widest import widest
from peakfold.plan.schedule.transfers import Movable
from peakfold.workloads import BEYOND_NAMES, build
from peakfold.workloads.losses import LOSSES

FREE = Costs({}, {})
KINDS = ("none", "stretch", "twice", "two", "stages", "grown", "grown", "nested")
MOST_DECISIONS = 6
TRIES = 8
MOST_REFUSED = 40
"""Plans that one number may draw until one is legal."""
SMALL = "small"
DROPOUT = 0.1
NOISE = 0.01
"""Is added to parameters: a fault in what is zero at first would have no effect."""
WITHOUT_DROPOUT = frozenset({"resnet50", *BEYOND_NAMES})


@dataclass(frozen=True)
class Subject:
    """A program in float64 with numbers for all that it reads.

    Attributes:
        name: of the workload.
        graph: the program.
        tensors: by id of the input.
        scalars: by id of the input.
        axes: of the graphs that were split.
    """

    name: str
    graph: Graph
    tensors: Mapping[int, torch.Tensor]
    scalars: Mapping[int, float]
    axes: Axes = field(default_factory=Axes)

    @staticmethod
    def of(name: str, task: Task) -> "Subject":
        """Capture a task, with its own tensors, and positive numbers for the optimizer's state.

        Casts to a narrower type are widened: sums of another order are rounded otherwise there, beside which
        a lost part is not seen.
        """
        model = task.model
        graph = task.capture().graph
        if all(weight.dtype == torch.float64 for weight in model.parameters()) and casts_down(graph):
            graph = replace(task, widened=True).capture().graph
        named: dict[str, torch.Tensor] = {**dict(model.named_parameters()), **dict(model.named_buffers())}
        if isinstance(task.batch, tuple):
            named |= {f"batch.{i}": leaf for i, leaf in enumerate(task.batch)}
        generator = torch.Generator().manual_seed(3)
        tensors, scalars = {}, {}
        for item in graph.inputs:
            if not isinstance(item.type, TensorType):
                scalars[item.id] = 0.1
                continue
            made = torch.rand(item.type.shape, generator=generator, dtype=torch.float64)
            found = named.get(item.name)
            if found is None:
                tensors[item.id] = (made + 0.5).to(getattr(torch, item.type.dtype))
            else:
                own = found.detach()
                noisy = item.kind == "parameter"
                tensors[item.id] = own + NOISE * made.to(own.dtype) if noisy else own.clone()
        return Subject(name, graph, tensors, scalars)

    @cached_property
    def prepared(self) -> Graph:
        """The program that regions are of."""
        return prepare(self.graph)

    @cached_property
    def long(self) -> tuple[Component, ...]:
        """The axes of more than one place."""
        return tuple(one for one in self.axes.of(self.prepared) if one.length > 1)

    @cached_property
    def grown(self) -> tuple[Candidate, ...]:
        """Every candidate of the fission tree, whatever lives at the peak."""
        graph = self.prepared
        hot = {value for value in graph.storages() if value.node in graph.node}
        return candidates(graph, hot, self.long)

    @cached_property
    def expected(self) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
        """What the program itself leaves, and the random stream after it."""
        torch.manual_seed(1)
        values = interpret(self.graph, self.tensors, self.scalars)
        made = {out.name: values[out.value] for out in self.graph.outputs}
        made |= {f"new {self.graph.input[p.input].name}": values[p.output] for p in self.graph.state}
        return {name: value.clone() for name, value in made.items()}, torch.get_rng_state()

    def nest(self, plan: Plan) -> Nest:
        """Return what a plan comes to, checked.

        Raises:
            PlanError: it is not legal.
        """
        whole = self.prepared if plan.regions else self.graph
        found = derive(whole, plan.regions, self.axes)
        nest = planned(found, outer_plan(plan, found), lambda _: FREE)
        for part in nest.nests():
            require_legal(part.graph, part.schedule)
        return nest

    def source(self, plan: Plan) -> str:
        """Return the emitted program of a plan."""
        nest = self.nest(plan)
        return emit(nest.graph, nest.schedule, nest.timeline, loops=nest.loops, bodies=nest.bodies)

    def results(self, source: str) -> dict[str, torch.Tensor] | None:
        """Run an emitted program; return what it leaves, None where the random stream is another one."""
        inputs = self.graph.inputs
        given = {item.name: self.tensors[item.id].clone() for item in inputs if item.id in self.tensors}
        numbers = {item.name: self.scalars[item.id] for item in inputs if item.id in self.scalars}
        torch.manual_seed(1)
        results = load_source(source)(given, numbers)
        if not torch.equal(torch.get_rng_state(), self.expected[1]):
            return None
        found = {out.name: result for out, result in zip(self.graph.outputs, results, strict=True)}
        names = [self.graph.input[pair.input].name for pair in self.graph.state]
        return found | {f"new {name}": given[name] for name in names}

    def error(self, source: str) -> float:
        """Run an emitted program; return its largest error, infinite where the random stream is another."""
        expected, found = self.expected[0], self.results(source)
        if found is None:
            return float("inf")
        floor = FLOOR * max(float(t.abs().max()) for t in expected.values() if t.is_floating_point())
        return max(error_of(expected[name], found[name], floor) for name in expected)


def subject_of(workload: str, optimizer: str) -> Subject:
    """Return a workload of size tiny in float64, with dropout: of the images where ResNet has none itself."""
    dropout = 0.0 if workload in WITHOUT_DROPOUT else DROPOUT
    target = build(workload, "tiny", optimizer=optimizer, dtype=torch.float64, dropout=dropout)
    if workload == "resnet50":
        target = replace(target, loss_fn=_of_dropped(LOSSES[workload]))
    return Subject.of(workload, Task.of(target))


def _of_dropped(loss_fn: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """A loss of images that were dropped twice, with two probabilities."""

    def loss(model: torch.nn.Module, pixels: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return loss_fn(model, functional.dropout(functional.dropout(pixels, DROPOUT), 2 * DROPOUT), labels)

    return loss


def random_plan(subject: Subject, rng: random.Random) -> Plan:
    """Return a plan of any regions that split, with any decisions outside and inside of them."""
    for _ in range(TRIES):
        regions = _regions(subject, rng, rng.choice(KINDS))
        try:
            found = derive(subject.prepared, regions, subject.axes)
        except PlanError:
            continue
        if not regions:
            return _decided(subject.graph, rng)
        inner = tuple(
            replace(region, plan=_inside(body.part, body.derived.graph, region.plan, rng))
            for region, body in zip(regions, found.bodies.values(), strict=True)
        )
        return replace(_decided(found.graph, rng), graph=subject.graph.digest, regions=inner)
    return _decided(subject.graph, rng)


def _inside(part: Graph, outer: Graph, plan: Plan | None, rng: random.Random) -> Plan:
    regions = plan.regions if plan is not None else ()
    return replace(_decided(outer, rng, moves=False), graph=part.digest, regions=regions)


def _regions(subject: Subject, rng: random.Random, kind: str) -> tuple[Region, ...]:
    graph = subject.prepared
    if kind == "none":
        return ()
    if kind == "stages":
        axis = rng.choice(subject.long[:4])
        count = _parts(axis.length, rng)
        return tuple(Region(axis.name, count, p.runs, None, p.anchor) for p in stages(graph, axis))
    if kind == "grown" and subject.grown:
        one = rng.choice(subject.grown)
        count = _parts(one.length, rng)
        return (region_of(one, count), *rest_of(one, count))
    region = _stretch(graph, subject.long, rng)
    if region is None:
        return ()
    if kind == "twice":
        return _in_two(graph, region)
    if kind == "two":
        other = _stretch(graph, subject.long, rng)
        taken = {run.node for run in region.runs}
        apart = other is not None and taken.isdisjoint(run.node for run in other.runs)
        return (region, other) if other is not None and apart else (region,)
    return (_nested(subject, region, rng),) if kind == "nested" else (region,)


def _parts(length: int, rng: random.Random) -> int:
    """A number of parts that comes out."""
    size = -(-length // rng.randint(2, min(length, 5)))
    return -(-length // size)


def _stretch(graph: Graph, axes: Sequence[Component], rng: random.Random) -> Region | None:
    """The widest region of some stretch of the program along some axis."""
    axis = rng.choice(axes[:12])
    nodes = [ident for ident in splittable(graph) if graph.node[ident].origin.phase != "update"]
    begin = rng.randrange(len(nodes))
    end = rng.choice((len(nodes), rng.randint(begin + 1, len(nodes)), min(begin + 30, len(nodes))))
    runs = widest(graph, axis, nodes[begin:end])
    return Region(axis.name, _parts(axis.length, rng), runs) if runs else None


def _in_two(graph: Graph, region: Region) -> tuple[Region, ...]:
    """A loop of the forward, and one of the backward in which the forward is computed again."""
    forward = [run for run in region.runs if graph.node[run.node].origin.phase == "forward"]
    backward = [run for run in region.runs if run not in forward]
    if not forward or not backward:
        return (region,)
    again = [Run(run.node, 1) for run in forward]
    return replace(region, runs=tuple(forward)), replace(region, runs=tuple(sorted((*backward, *again))))


def _nested(subject: Subject, region: Region, rng: random.Random) -> Region:
    """A region with another one in its parts, where its parts are of one size and one is found."""
    (body,) = derive(subject.prepared, (region,), subject.axes).bodies.values()
    axes = [one for one in subject.axes.of(body.part) if one.length > 1]
    if body.length % body.size or not axes:
        return region
    inner = _stretch(body.part, axes, rng)
    return region if inner is None else replace(region, plan=Plan(body.part.digest, regions=(inner,)))


def _decided(graph: Graph, rng: random.Random, *, moves: bool = True) -> Plan:
    """Decisions about one graph: what is computed again, order, reuse, updates, what waits on the host."""
    order = _order(graph, rng) if rng.random() < 0.5 else ()
    steps = order or tuple(node.id for node in graph.nodes if not node.is_view)
    return Plan(
        graph.digest,
        tuple(sorted(set(_again(graph, steps, rng)))),
        rng.choice(("early", "last")),
        rng.random() < 0.8,
        order,
        tuple(sorted(set(_moved(graph, steps, rng)))) if moves and rng.random() < 0.5 else (),
    )


def _again(graph: Graph, steps: Sequence[int], rng: random.Random) -> Iterator[Recompute]:
    refused = why_not_again(graph)
    allowed = [at for at, ident in enumerate(steps[:-1]) if ident not in refused]
    for _ in range(rng.randint(0, MOST_DECISIONS) if allowed else 0):
        at = rng.choice(allowed)
        readers = {user for out in graph.node[steps[at]].outputs for user in graph.users.get(out, ())}
        later = [ident for ident in steps[at + 1 :] if graph.node[ident].origin.phase != "update"]
        near = [ident for ident in later if ident in readers]
        if later:
            yield Recompute(steps[at], rng.choice(near or later), rng.random() < 0.5)


def _moved(graph: Graph, steps: Sequence[int], rng: random.Random) -> Iterator[OffloadGap]:
    movable = Movable(graph)
    values = [value for value in graph.storages() if movable.why_not(value) is None]
    place = {ident: at for at, ident in enumerate(steps)}
    for _ in range(rng.randint(1, MOST_DECISIONS) if values else 0):
        value = rng.choice(values)
        readers = sorted(place[user] for user in graph.users.get(value, ()) if user in place)
        first = place.get(value.node, -1)
        if not readers or readers[-1] <= first + 2:
            continue
        use = rng.choice(readers)
        after = max([first, *(at for at in readers if at < use)])
        if use - after > 2:
            gone, fetch = sorted(rng.sample(range(after + 1, use), 2))
            yield OffloadGap(
                value, value.node if after < 0 else steps[after], steps[gone], steps[fetch], steps[use]
            )


def _order(graph: Graph, rng: random.Random) -> tuple[int, ...]:
    """A random order of all steps, random operators in theirs."""
    steps = [node for node in graph.nodes if not node.is_view]
    needs = {node.id: set(_makers(graph, node)) for node in steps}
    for before, after in pairwise([node.id for node in steps if node.op.random]):
        needs[after].add(before)
    users: dict[int, list[int]] = {}
    for ident, makers in needs.items():
        for maker in makers:
            users.setdefault(maker, []).append(ident)
    ready = [ident for ident, makers in needs.items() if not makers]
    order = []
    while ready:
        order.append(ready.pop(rng.randrange(len(ready))))
        for user in users.get(order[-1], ()):
            needs[user].discard(order[-1])
            if not needs[user]:
                ready.append(user)
    return tuple(order)


def _makers(graph: Graph, node: Node) -> Iterator[int]:
    """Steps whose results a node reads, through views."""
    stack: list[Value] = list(node.inputs)
    while stack:
        maker = graph.node.get(stack.pop().node)
        if maker is not None and maker.is_view:
            stack += maker.inputs
        elif maker is not None:
            yield maker.id


def plans(workload: str, optimizer: str, first: int, count: int, seed: int) -> list[Row]:
    """Return how many of so many random plans compute something else than the program.

    Each plan has a random stream of its own, which its number says: one alone can be made again.

    Args:
        workload: its name; ``"small"`` is another small random step for each plan.
        optimizer: its optimizer.
        first: number of the first plan.
        count: of plans.
        seed: of the random streams.
    """
    errors: dict[int, float] = {}
    loops = refused = 0
    subject = None if workload == SMALL else subject_of(workload, optimizer)
    for number in range(first, first + count):
        rng = random.Random(f"{workload}/{optimizer}/{seed}/{number}")
        one = Subject.of(workload, small_task(optimizer, rng)) if subject is None else subject
        for _ in range(MOST_REFUSED):
            plan = random_plan(one, rng)
            try:
                source = one.source(plan)
            except PlanError:
                refused += 1
                continue
            loops += len(plan.regions)
            errors[number] = one.error(source)
            break
    wrong = [number for number, error in errors.items() if not error <= BOUND]
    row: Row = {
        "workload": workload,
        "optimizer": optimizer,
        "first": first,
        "seed": seed,
        "plans": len(errors),
        "regions": loops,
        "refused": refused,
        "wrong": len(wrong),
        "wrong_numbers": wrong,
        "max_error": max(errors.values(), default=0.0),
    }
    return [row]
