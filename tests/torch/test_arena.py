"""Steps that run in one arena: every byte of theirs, every bit of their results."""

import threading
from dataclasses import replace

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

import peakfold
from peakfold.bridge.runtime import arena_native
from peakfold.bridge.runtime.arena import Arena, Recorder
from peakfold.cost.costs import Costs
from peakfold.errors import InfeasibleError, UsageError
from peakfold.ir.plan import Plan, Region
from peakfold.pipeline.arena import allocations, best_layout
from peakfold.pipeline.program import emit_plan
from peakfold.pipeline.prove import make_step
from peakfold.pipeline.task import Task
from peakfold.plan.fission.dims import components
from peakfold.plan.fission.prepare import prepare
from peakfold.plan.fission.widest import widest
from peakfold.plan.memory.check import check_placement
from peakfold.plan.memory.layout import Layout, lay_out, placed
from peakfold.plan.memory.lifetimes import predicted_nest
from peakfold.plan.memory.trace import Request, Trace
from peakfold.workloads import NAMES, build


def net(width=16):
    torch.manual_seed(0)
    layers = torch.nn.Linear(8, width), torch.nn.GELU(), torch.nn.Dropout(0.1), torch.nn.Linear(width, 4)
    return torch.nn.Sequential(*layers)


def loss_fn(model, x):
    out = model(x)
    return out.square().mean(), out


def task(rows=32, width=16):
    model = net(width)
    optimizer = torch.optim.AdamW(model.parameters())
    return Task(model, loss_fn, optimizer, (torch.randn(rows, 8),))


def program_of(of):
    captured = of.capture()
    return emit_plan(captured, Plan(captured.graph.digest), Costs({}, {}))


@pytest.fixture(scope="module")
def small():
    of = task()
    program = program_of(of)
    return of, program, best_layout(allocations(of, program))


def both(small, layout=None):
    """The same program with torch's allocator and in an arena, on copies."""
    of, program, found = small
    inside = replace(program, layout=layout or found, in_arena=True)
    mine, other = of.clone(), of.clone()
    return make_step(mine, program), make_step(other, inside), mine, other


def run_alike(plain, inside, batch, steps=4):
    for seed in range(steps):
        torch.manual_seed(seed)
        expected = plain(*batch)
        torch.manual_seed(seed)
        assert torch.equal(inside(*batch), expected)
        assert torch.equal(inside.outputs, plain.outputs)


def test_every_allocation_is_served_and_every_bit_is_the_same(small):
    plain, inside, mine, other = both(small)
    run_alike(plain, inside, mine.batch)
    use = inside.arena.use
    assert (use.requests, use.served, use.ordinary) == (len(small[2].trace.requests),) * 2 + (0,)
    assert use.high_water == small[2].arena == inside.arena_bytes
    for a, b in zip(mine.model.parameters(), other.model.parameters(), strict=True):
        assert torch.equal(a, b)


def test_dead_bytes_are_never_read(small):
    plain, inside, mine, _ = both(small)
    inside.arena.poison = True
    run_alike(plain, inside, mine.batch)


def test_poison_shows_what_is_read_too_late(small):
    memory = Layout(Trace((Request(64, 0, 1),), (), 3), (0,), 64, 64, 64, "optimal", 0.0)
    arena = Arena(memory)
    arena.poison = True
    pointers = []

    def step():
        x = torch.ones(16)
        pointers.append(x.data_ptr())
        del x
        return (torch.empty(16),)

    arena.run(step)
    assert pointers == [arena.memory.address]
    assert arena.use.ordinary == 1
    assert arena.use.named == ("64 bytes after the last planned one",)


def test_nothing_reaches_the_system_in_steady_state(small):
    _, inside, mine, _ = both(small)
    loss = inside(*mine.batch)
    loss = inside(*mine.batch)
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        loss = inside(*mine.batch)
    events = [e for e in profiler.profiler.kineto_results.events() if e.name() == "[memory]"]
    assert [event.nbytes() for event in events] == []
    assert loss.isfinite()


def test_results_are_never_overwritten(small):
    _, inside, mine, _ = both(small)
    losses = [inside(*mine.batch) for _ in range(4)]
    values = [float(loss) for loss in losses]
    inside(*mine.batch)
    assert [float(loss) for loss in losses] == values
    assert len(set(values)) == 4
    assert len({loss.data_ptr() for loss in losses}) == 4


def test_places_of_results_are_used_again(small):
    _, inside, mine, _ = both(small)
    loss, seen, spares = None, set(), []
    for _ in range(6):
        loss = inside(*mine.batch)
        seen.add(loss.data_ptr())
        spares.append(inside.arena.use.spares)
    assert len(seen) == 2
    assert spares[2:] == [0, 0, 0, 0]


def test_results_outlive_the_step():
    of = task()
    program = program_of(of)
    inside = replace(program, layout=best_layout(allocations(of, program)), in_arena=True)
    step = make_step(of.clone(), inside)
    loss = step(*of.batch)
    value = float(loss)
    del step
    torch.full((1 << 16,), 3.0)
    assert float(loss) == value


def test_what_is_not_as_planned_goes_to_the_ordinary_allocator(small):
    layout = small[2]
    passing = layout.trace.passing[3]
    wrong = replace(layout.trace.requests[passing], size=layout.trace.requests[passing].size + 64)
    requests = (*layout.trace.requests[:passing], wrong, *layout.trace.requests[passing + 1 :])
    plain, inside, mine, _ = both(small, lay_out(replace(layout.trace, requests=requests)))
    run_alike(plain, inside, mine.batch)
    use = inside.arena.use
    assert use.ordinary >= 1
    assert use.served + use.ordinary == use.requests
    assert use.named[0].startswith(f"{layout.trace.requests[passing].size} bytes before ")


def test_a_wrong_plan_costs_bytes_and_never_a_result(small):
    layout = small[2]
    offsets = tuple(0 for _ in layout.offsets)
    plain, inside, mine, _ = both(small, replace(layout, offsets=offsets))
    run_alike(plain, inside, mine.batch)
    assert inside.arena.use.ordinary > 0


@pytest.fixture(scope="module")
def still():
    """A program without random numbers."""
    of = task()
    of.model.eval()
    program = program_of(of)
    return of, program, best_layout(allocations(of, program))


def test_two_threads_have_two_arenas(still):
    pairs = [both(still) for _ in range(2)]
    expected = [[float(plain(*mine.batch)) for _ in range(20)] for plain, _, mine, _ in pairs]
    found = [[], []]

    def work(at):
        _, inside, mine, _ = pairs[at]
        found[at] += [float(inside(*mine.batch)) for _ in range(20)]

    threads = [threading.Thread(target=work, args=(at,)) for at in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == expected
    assert [pair[1].arena.use.ordinary for pair in pairs] == [0, 0]


def test_threads_that_share_an_arena_wait_for_each_other(still):
    pairs = [both(still) for _ in range(2)]
    expected = [[float(plain(*mine.batch)) for _ in range(20)] for plain, _, mine, _ in pairs]
    nbytes = peakfold.share_arena(*(pair[1] for pair in pairs))
    assert nbytes == still[2].arena == pairs[0][1].arena_bytes
    assert pairs[0][1].arena.memory is pairs[1][1].arena.memory
    found = [[], []]

    def work(at):
        found[at] += [float(pairs[at][1](*pairs[at][2].batch)) for _ in range(20)]

    threads = [threading.Thread(target=work, args=(at,)) for at in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == expected
    assert [pair[1].arena.use.ordinary for pair in pairs] == [0, 0]
    assert pairs[0][1].arena.use.high_water == still[2].arena


def test_steps_without_an_arena_share_nothing(still):
    with pytest.raises(UsageError) as caught:
        peakfold.share_arena(both(still)[0])
    assert str(caught.value) == (
        "arena: a step has no arena to share\n"
        "  at: step 1 of 1\n"
        "  expected: steps that were made with memory='arena:SIZE'"
    )


@pytest.mark.parametrize(("given", "at", "got"), [(("a",), "step 1 of 1", "'a'"), ((), "", "")])
def test_what_is_no_step_shares_nothing(given, at, got):
    with pytest.raises(UsageError) as caught:
        peakfold.share_arena(*given)
    assert (caught.value.where, caught.value.got) == (at, got)


@pytest.mark.parametrize("name", NAMES)
def test_every_workload_runs_in_its_arena(name):
    target = build(name, "tiny")
    of = Task.of(target)
    program = program_of(of)
    trace = allocations(of, program)
    layout = best_layout(trace, 1 << 32)
    check_placement(placed(layout), layout.passing)
    assert layout.gap <= 0.005
    inside = make_step(of.clone(), replace(program, layout=layout, in_arena=True))
    plain = make_step(of.clone(), program)
    args = of.batch if isinstance(of.batch, tuple) else (of.batch,)
    for seed in range(3):
        inside.arena.poison = seed == 2
        torch.manual_seed(seed)
        expected = plain(*args)
        torch.manual_seed(seed)
        assert torch.equal(inside(*args), expected)
    assert (inside.arena.use.ordinary, inside.arena.use.high_water) == (0, layout.arena)


def test_what_is_predicted_is_what_is_recorded(small):
    _, program, layout = small
    trace = predicted_nest(program.nest)
    assert trace.lower_bound == layout.trace.lower_bound
    named = {(r.name, r.size, r.kind) for r in layout.trace.requests if not r.name.startswith("scratch")}
    assert named == {(r.name, r.size, r.kind) for r in trace.requests}


def fitted(memory, **options):
    model, x = net(), torch.randn(32, 8)
    model.eval()
    return peakfold.optimize_inference(model, (x,), memory, time_budget=1, **options), model, x


def test_inference_stays_in_its_arena():
    step, model, x = fitted("arena:1MiB")
    assert torch.equal(step(x), model(x))
    found = step.report.arena
    assert (found.budget_bytes, found.runs, found.ordinary, found.copies) == (1 << 20, True, 0, 0)
    assert found.nbytes == step.arena_bytes == step.arena.use.high_water
    assert step.report.optimized.peak_bytes == step.report.optimized.predicted_peak_bytes


def test_an_arena_to_the_byte_is_enough_and_a_little_less_is_refused():
    least = fitted("arena:1MiB")[0].report.arena.nbytes
    assert fitted(f"arena:{least}")[0].report.arena.nbytes == least
    with pytest.raises(InfeasibleError) as caught:
        fitted(f"arena:{least - 64 * 8}")
    assert caught.value.exit_code == 3
    assert 0 < caught.value.lower_bound_bytes <= caught.value.lowest_peak_bytes <= least
    assert "expected: an arena of" in str(caught.value)


def test_an_arena_of_the_largest_shape_serves_smaller_ones():
    step, model, _ = fitted("arena:1MiB", verify=False)
    large = step.arena
    for rows in (31, 8, 32):
        y = torch.randn(rows, 8)
        assert torch.equal(step(y), model(y))
        assert step.arena.use.ordinary == 0
        assert step.arena.memory is large.memory
    assert step.arena.layout.offsets == large.layout.offsets


def test_a_saved_step_keeps_its_arena(tmp_path):
    step, model, x = fitted("arena:1MiB")
    step.save(tmp_path / "step.zip")
    again = peakfold.load(tmp_path / "step.zip", model)
    assert torch.equal(again(x), step(x))
    assert again.arena.layout == step.arena.layout
    assert again.arena.use.ordinary == 0


@pytest.fixture
def no_compiler(monkeypatch, tmp_path):
    monkeypatch.setenv("CXX", "/no/such/compiler")
    monkeypatch.setenv("PEAKFOLD_CACHE", str(tmp_path))
    arena_native.native.cache_clear()
    yield
    arena_native.native.cache_clear()


def test_without_a_compiler_steps_run_and_say_so(no_compiler):
    step, model, x = fitted("arena:1MiB")
    assert torch.equal(step(x), model(x))
    assert step.arena is None
    assert step.report.arena.runs is False
    assert [note for note in step.report.notes if "without its arena" in note] == [
        "the program runs without its arena: there is no C++ compiler (none on the PATH); "
        "install g++ or clang++, or set CXX; without one steps run without an arena"
    ]


def test_without_a_compiler_a_step_that_had_an_arena_warns(small, no_compiler):
    with pytest.warns(RuntimeWarning, match="runs without its arena: arena: there is no C\\+\\+ compiler"):
        plain, inside, mine, _ = both(small)
    assert inside.arena is None
    run_alike(plain, inside, mine.batch)


def test_a_compiler_that_fails_says_why(monkeypatch, tmp_path):
    monkeypatch.setenv("CXX", "false")
    with pytest.raises(UsageError) as caught:
        arena_native.library(tmp_path)
    assert caught.value.what == "the C++ compiler fails"
    assert list(tmp_path.iterdir()) == []


def on_another_thread(work):
    found = []
    thread = threading.Thread(target=lambda: found.append(work()))
    thread.start()
    thread.join()
    return found[0]


def test_blocks_of_other_threads_are_recorded_and_served():
    recorder, kept = Recorder(), []

    def step(mark=None):
        on_another_thread(lambda: torch.ones(4).add_(1))
        kept.append(on_another_thread(lambda: torch.full((100,), 2.0)))
        return ()

    recorder.run(step)
    assert (16 in recorder.beside, 400 in recorder.beside) == (True, True)
    layout = lay_out(Trace((Request(64, 0, 1),), (), 2, recorder.beside))
    assert layout.passing == layout.arena == layout.lower_bound >= 64 + 64 + 448
    arena = Arena(layout)
    arena.run(step)
    assert (arena.use.elsewhere, arena.use.beside >= 2) == (0, True)
    assert 0 <= kept[-1].data_ptr() - arena.memory.address < layout.arena
    arena.run(step)
    assert arena.use.elsewhere == 1
    assert arena.use.elsewhere_bytes == 400
    assert [tensor.unique().tolist() for tensor in kept] == [[2.0]] * 3


def test_operators_on_several_threads_ask_nobody_else():
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        of = Task.of(build("bert_sdpa", "tiny"))
        program = program_of(of)
        inside = replace(program, layout=best_layout(allocations(of, program)), in_arena=True)
        step = make_step(of.clone(), inside)
        for _ in range(3):
            step(*of.batch)
            assert (step.arena.use.elsewhere, step.arena.use.ordinary) == (0, 0)
    finally:
        torch.set_num_threads(threads)


def test_memory_lives_as_long_as_a_tensor_in_it():
    layout = lay_out(Trace((Request(64, 0, None),), (), 1))
    arena = Arena(layout)
    (kept,) = arena.run(lambda: (torch.arange(8),))
    del arena
    torch.ones(1 << 12)
    assert kept.tolist() == list(range(8))


def split_program(name, parts):
    of = Task.of(build(name, "tiny"))
    captured = of.capture()
    whole = prepare(captured.graph)
    axis = next(axis for axis in components(whole) if axis.name == "batch")
    region = Region("batch", parts, widest(whole, axis))
    return of, emit_plan(captured, Plan(captured.graph.digest, regions=(region,)), Costs({}, {}))


@pytest.mark.parametrize(("name", "parts"), [("bert", 2), ("bert", 4), ("unet", 2)])
def test_a_program_with_regions_runs_in_its_arena(name, parts):
    of, program = split_program(name, parts)
    assert program.nest.loops
    layout = best_layout(allocations(of, program))
    assert layout.gap <= 0.005
    plain, inside, mine, _ = both((of, program, layout))
    for seed in range(2):
        torch.manual_seed(seed)
        expected = plain(*mine.batch)
        torch.manual_seed(seed)
        assert torch.equal(inside(*mine.batch), expected)
    assert (inside.arena.use.ordinary, inside.arena.use.high_water) == (0, layout.arena)


def test_the_arena_of_a_program_with_regions_is_predicted():
    of, program = split_program("bert", 4)
    trace, found = predicted_nest(program.nest), allocations(of, program)
    assert lay_out(trace).arena == pytest.approx(lay_out(found).arena, rel=0.02)
    assert lay_out(trace).arena <= program.timeline.peak - program.timeline.resident + 64 * len(
        trace.requests
    )
