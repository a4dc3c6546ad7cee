"""What a report says of each block of an arena: when it is there, what is in it, and of which kind."""

from collections import Counter
from dataclasses import replace
from itertools import combinations

import pytest
import torch
from tests.torch.test_arena import program_of, split_program, task
from tests.torch.test_arena_control import inference
from tests.torch.test_arena_offload import plan_of
from tests.torch.test_control import Passes, Sides
from tests.torch.test_regions import in_two

import peakfold
from peakfold.cost.costs import Costs
from peakfold.ir.plan import Compute, Plan, Region
from peakfold.pipeline.arena import allocations, best_layout, over
from peakfold.pipeline.program import emit_plan
from peakfold.pipeline.task import Task
from peakfold.plan.fission.derive import derive
from peakfold.plan.fission.dims import components
from peakfold.plan.fission.prepare import prepare
from peakfold.plan.fission.widest import widest
from peakfold.plan.memory.lifetimes import SCRATCH, SCRATCH_OF, predicted, predicted_nest
from peakfold.report.arena import arena_of
from peakfold.workloads import build


def plain():
    of = task()
    return of, program_of(of)


def workload():
    of = Task.of(build("unet", "tiny"))
    return of, program_of(of)


def one_region():
    return split_program("bert", 4)


def uneven_parts():
    return of_regions(lambda _, region: (replace(region, parts=3),))


def two_regions():
    return of_regions(in_two)


def nested_regions():
    return of_regions(lambda whole, region: (inside(whole, region),))


def of_regions(split):
    """A training step with regions that a function makes of its widest one along the batch."""
    of = task()
    captured = of.capture()
    whole = prepare(captured.graph)
    axis = next(found for found in components(whole) if found.name == "batch")
    regions = split(whole, Region("batch", 4, widest(whole, axis)))
    return of, emit_plan(captured, Plan(captured.graph.digest, regions=regions), Costs({}, {}))


def inside(whole, region):
    """A region with another one inside of its parts, along the same axis."""
    (body,) = derive(whole, (region,)).bodies.values()
    axis = next(found for found in components(body.part) if found.length > 1)
    inner = Region(axis.name, 2, widest(body.part, axis))
    return replace(region, plan=Plan(body.part.digest, regions=(inner,)))


def of_inference(module, *batch):
    of = inference(module, *batch)
    return of, program_of(of)


def training_with_sides():
    torch.manual_seed(0)
    model = Sides()
    optimizer = torch.optim.SGD(model.parameters())
    of = Task(model, lambda m, x: m(x).square().mean(), optimizer, (torch.rand(16, 8),))
    return of, program_of(of)


def offload():
    of = task()
    captured = of.capture()
    return of, emit_plan(captured, plan_of(captured.graph, 0, own=False), Costs({}, {}))


PROGRAMS = {
    "plain": plain,
    "workload": workload,
    "one region": one_region,
    "two regions": two_regions,
    "nested regions": nested_regions,
    "uneven parts": uneven_parts,
    "two sides": lambda: of_inference(Sides(), torch.rand(16, 8)),
    "two sides in training": training_with_sides,
    "a loop": lambda: of_inference(Passes(), torch.rand(48), torch.tensor(3)),
    "offload": offload,
}


@pytest.fixture(scope="module", params=PROGRAMS)
def placed_program(request):
    of, program = PROGRAMS[request.param]()
    return request.param, program, best_layout(allocations(of, program))


LOOPS = {
    "one region": [4],
    "two regions": [4, 4],
    "nested regions": [4, 2],
    "uneven parts": [3],
}
"""Parts of each region of a program."""


def loops_of(nest):
    return [len(repeat.body.starts) for one in nest.nests() for repeat in one.loops.values()]


def made(nest, row=-1):
    """Yield (step, name, kind, bytes) of every value that a simulated program makes, in each part anew."""
    for found in predicted(nest.graph, nest.schedule, Costs({}, {})).requests:
        yield found.row if row < 0 else row, found.name, found.kind, found.size
    for at, step in enumerate(nest.schedule.steps):
        if isinstance(step, Compute) and step.run.node in nest.loops:
            repeat = nest.loops[step.run.node]
            for _ in repeat.body.starts:
                yield from made(repeat.nest, at if row < 0 else row)


def test_blocks_are_named_as_the_values_that_the_program_makes(placed_program):
    name, program, layout = placed_program
    assert loops_of(program.nest) == LOOPS.get(name, [])
    expected = Counter(made(program.nest))
    values = [one for one in layout.trace.requests if not one.name.startswith(SCRATCH_OF)]
    found = Counter((one.row, one.name, one.kind, one.size) for one in values)
    if name == "uneven parts":
        expected, found = (Counter(key[:3] for key in rows.elements()) for rows in (expected, found))
    assert found == expected


def test_workspace_lives_in_one_step(placed_program):
    _, program, layout = placed_program
    names = [node.name for nest in program.nest.nests() for node in nest.graph.nodes]
    for one in layout.trace.requests:
        if one.name.startswith(SCRATCH_OF):
            assert (one.kind, one.until) == (SCRATCH, one.row), one
            assert one.name.removeprefix(SCRATCH_OF) in names


def test_blocks_lie_in_the_step_and_never_on_each_other(placed_program):
    _, program, layout = placed_program
    arena = arena_of(layout)
    assert len(arena.blocks) == len(layout.trace.requests)
    assert len(arena.steps) == len(program.nest.schedule.steps)
    for block, one in zip(arena.blocks, layout.trace.requests, strict=True):
        assert 0 <= one.row <= block.start < block.end <= len(arena.steps)
        assert block.start < one.row + 1
        assert block.end == len(arena.steps) if one.dies is None else one.until < block.end <= one.until + 1
    require_apart(arena.blocks)


def test_predicted_blocks_lie_in_the_step_and_never_on_each_other(placed_program):
    _, program, _ = placed_program
    arena = arena_of(best_layout(predicted_nest(program.nest)))
    assert all(0 <= block.start < block.end <= len(arena.steps) for block in arena.blocks)
    require_apart(arena.blocks)


def require_apart(blocks):
    for one, other in combinations(blocks, 2):
        beside = one.offset + one.nbytes <= other.offset or other.offset + other.nbytes <= one.offset
        assert beside or one.end <= other.start or other.end <= one.start, (one, other)


@pytest.mark.parametrize("name", ["one region", "two regions", "nested regions"])
def test_a_refusal_names_what_a_split_program_makes(name):
    of, program = PROGRAMS[name]()
    layout = best_layout(allocations(of, program))
    text = str(over(layout, layout.arena - 64, 0, proved=False, given=False))
    (line,) = (line for line in text.splitlines() if "largest in the smallest arena" in line)
    words = line.partition("arena: ")[2].split(", ")
    values = {f"{name} {size} bytes" for _, name, _, size in made(program.nest)}
    assert len(words) > 1
    assert {word for word in words if not word.startswith(SCRATCH_OF)} <= values
    assert words[0] in values


def test_a_workspace_that_grows_with_the_threads_is_served_elsewhere_and_named():
    threads = torch.get_num_threads()
    model = torch.nn.Sequential(torch.nn.Linear(16, 64), torch.nn.LayerNorm(64), torch.nn.Linear(64, 8))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    try:
        torch.set_num_threads(1)
        step = peakfold.optimize_step(
            model,
            lambda model, x: model(x).square().mean(),
            optimizer,
            (torch.randn(32, 16),),
            memory="arena:1MiB",
            time_budget=1,
            verify=False,
        )
        x = torch.randn(32, 16)
        losses = [float(step(x))]
        assert step.arena.use.ordinary == 0
        torch.set_num_threads(2)
        losses.append(float(step(x)))
    finally:
        torch.set_num_threads(threads)
    use = step.arena.use
    assert losses[0] == losses[1]
    assert (use.ordinary, use.served) == (1, use.requests - 1)
    assert use.named[0].endswith(" bytes before scratch of 1.backward.native_layer_norm_backward")
