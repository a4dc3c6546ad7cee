"""The joint search on real programs: split plans are found, kept to their budget, equal and repeatable."""

from itertools import pairwise

import pytest
import torch

import peakfold
from peakfold.cost.roofline import estimate
from peakfold.errors import CacheError, InfeasibleError
from peakfold.ir.plan import Plan, Region
from peakfold.ir.text import print_plan
from peakfold.pipeline.api import optimize_target
from peakfold.pipeline.optimize import optimize
from peakfold.pipeline.request import request
from peakfold.pipeline.task import Task
from peakfold.plan.fission.derive import Splitter
from peakfold.plan.fission.dims import components
from peakfold.plan.fission.prepare import prepare
from peakfold.plan.fission.solve import Effort, Solver
from peakfold.plan.fission.widest import widest
from peakfold.plan.schedule.goal import Goal
from peakfold.plan.schedule.infeasible import bytes_text
from peakfold.plan.schedule.lower import lower
from peakfold.plan.schedule.offload_search import Host
from peakfold.plan.schedule.simulate import simulate
from peakfold.plan.search.joint import BATCH, Joint, optimize_front
from peakfold.plan.search.saved import read, text_of
from peakfold.workloads.load import load_target


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    """No plan is there that an earlier run kept."""
    monkeypatch.setenv("PEAKFOLD_CACHE", str(tmp_path / "cache"))


def mlp(width=256):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(16, width), torch.nn.GELU(), torch.nn.Linear(width, 16))
    batch = (torch.randn(512, 16), torch.randn(512, 16))
    return model, lambda m, x, y: (m(x) - y).square().mean(), torch.optim.AdamW(model.parameters()), batch


def deep(width=256):
    torch.manual_seed(0)
    layers = (16, width, width, 16)
    model = torch.nn.Sequential(
        *(layer for ins, outs in pairwise(layers) for layer in (torch.nn.Linear(ins, outs), torch.nn.GELU()))
    )
    batch = (torch.randn(512, 16), torch.randn(512, 16))
    return model, lambda m, x, y: (m(x) - y).square().mean(), torch.optim.AdamW(model.parameters()), batch


def test_a_budget_that_no_unsplit_plan_keeps_is_kept_by_parts():
    with pytest.raises(InfeasibleError, match="every program needs"):
        peakfold.optimize_step(*mlp(), memory="30%", iterations=300)
    step = peakfold.optimize_step(*mlp(), memory="30%", iterations=300, fission=True)
    assert step.report.equal.ok
    assert step.plan.regions
    assert step.report.optimized.peak_bytes <= 0.3 * step.report.eager.peak_bytes


def test_parts_and_what_waits_on_the_host_are_planned_together(tmp_path):
    """What lies around a loop waits on the host meanwhile: less than parts or offloads alone come to."""
    graph = Task(*deep()).capture().graph
    whole = prepare(graph)
    regions = (Region("batch", 4, widest(whole, components(whole)[0])),)
    lowest = {}
    for host in (None, Host(memory=0), Host(lends=False), Host()):
        solver = Solver(graph, costs_of, Effort(iterations=60), host=host)
        found = solver.solve(regions, latency=1.0)
        line = solver.nest(found.plan).timeline
        assert (line.peak, line.seconds) == (found.peak_bytes, pytest.approx(found.seconds, rel=1e-9))
        lowest[host] = found.peak_bytes
    assert lowest[Host()] < lowest[Host(lends=False)] <= lowest[None] == lowest[Host(memory=0)]
    text = print_plan(found.plan, graph, splitter=Splitter())
    asked = request(None, None, 5, 5, 0, "eager", True, plan=text, offload=str(tmp_path))
    report = optimize(Task(*deep()), asked).report
    assert report.equal.ok
    assert report.optimized.host_bytes
    assert report.optimized.peak_bytes == report.optimized.predicted_peak_bytes


def test_the_search_of_parts_offloads_where_that_is_on():
    kept = []
    apart, together = (searching(deep, 4.0, host=host, save=kept.append) for host in (None, Host()))
    found = together.run()
    saved = read(text_of(kept[0], together.graph, "key"), together.graph, "key", "file")
    assert saved.front == together.archive.front
    assert found.plan.offload
    assert found.plan.regions
    assert found.peak_bytes < apart.run().peak_bytes


def test_the_same_seed_and_iterations_give_the_same_plan():
    made = [peakfold.optimize_step(*mlp(), memory="30%", iterations=200, fission=True) for _ in range(2)]
    assert made[0].source == made[1].source


def test_a_simulated_device_needs_no_run():
    asked = request("60%", None, 60, 100, 0, "eager", True, "sim:rtx3090", offload="none", fission=True)
    report = optimize_target(load_target("bert", size="tiny"), asked).report
    assert report.optimized.predicted_peak_bytes <= 0.6 * report.eager.peak_bytes


def test_no_state_is_planned_twice():
    search = searching()
    search.run()
    planned = [visit.parts for visit in search.visits]
    assert len(planned) > 1
    assert len(set(planned)) == len(planned)
    assert search.clock.counts["sketch"] == len(search.scout.seen) - 1


def test_two_processes_find_what_one_does():
    alone, side_by_side = searching(), searching(workers=2)
    assert alone.run().front == side_by_side.run().front
    assert [visit.parts for visit in alone.visits] == [visit.parts for visit in side_by_side.visits]


def test_a_search_that_is_gone_on_with_ends_as_one_without_a_break():
    whole = searching()
    found = whole.run()
    kept = []
    half = searching(save=kept.append)
    half.progress = interrupting(after=2, beginning=lambda: half.visits)
    assert half.run().stop_reason == "interrupted"
    graph = half.graph
    saved = read(text_of(kept[0], graph, "key"), graph, "key", "file")
    assert 0 < len(saved.visits) < len(whole.visits)
    again = searching(saved=saved)
    went_on = again.run()
    assert went_on.front == found.front
    assert [visit.parts for visit in again.visits] == [visit.parts for visit in whole.visits]


def test_a_search_ends_while_it_plans_without_regions():
    search = searching(progress=interrupting(after=1))
    found = search.run()
    assert found.stop_reason == "interrupted"
    assert not search.visits
    assert found.states < searched().states / 2


def test_a_saved_search_that_ended_at_once_is_gone_on_with():
    whole, kept = searched(), []
    half = searching(save=kept.append, progress=interrupting(after=1))
    assert half.run().stop_reason == "interrupted"
    assert not half.visits
    assert searching(saved=kept[0]).run().front == whole.front


def test_progress_never_goes_back():
    shares = []
    searching(progress=lambda state: shares.append(state.share)).run()
    assert shares == sorted(shares)
    assert shares[-1] <= 1


def test_a_saved_search_is_for_its_own_graph_and_question():
    search, kept = searching(), []
    search.save = kept.append
    search.run()
    text = text_of(kept[0], search.graph, "key")
    other = Task(*mlp(width=32)).capture().graph
    with pytest.raises(CacheError, match="for another graph"):
        read(text, other, "key", "file")
    with pytest.raises(CacheError, match="other costs"):
        read(text, search.graph, "another", "file")
    for damaged in ("", "[]", text[: len(text) // 2], text.replace('"visits"', '"visit"')):
        with pytest.raises(CacheError, match="saved search"):
            read(damaged, search.graph, "key", "file")


def test_a_sketch_of_what_splits_nothing_is_exact():
    search = searching()
    search.run()
    prepared = prepare(search.graph)
    costs = search.costs_of(prepared)
    timeline = simulate(prepared, costs, lower(prepared, Plan(prepared.digest)))
    assert search.scout.sketch.plain == timeline.peak


class Ticking:
    """A clock on which time passes whenever it is read."""

    def __init__(self, tick):
        self.tick, self.reads = tick, 0

    def __call__(self):
        self.reads += 1
        return self.reads * self.tick


def test_no_clock_decides_where_iterations_are_counted():
    clock = Ticking(1e6)
    assert searching(now=clock).run().front == searched().front
    assert clock.reads > 0


@pytest.mark.parametrize("reads", [2, 100, 400, 1000])
def test_a_search_ends_with_its_time_in_every_stage(reads):
    """Behind the end each of the stages that are left looks at the clock, and none goes on.

    A batch of states that was begun is planned: of each its whole and up to two loops inside one another,
    and each of these plans looks a dozen times at a clock that is behind the end.
    """
    graph = Task(*mlp()).capture().graph
    seconds = sum(costs_of(graph).seconds.values())
    clock = Ticking(1.0)
    search = Joint(
        graph, costs_of, Goal(None, 1.35 * seconds), float(reads), times=(seconds, 1.35 * seconds), now=clock
    )
    assert search.run_front().front
    assert reads <= clock.reads <= reads + BATCH * 3 * 12


def interrupting(after, beginning=lambda: True):
    """Progress that ends a search as Ctrl-C would, after so many calls since it began."""
    calls = []

    def told(state):
        if beginning():
            calls.append(state)
        if len(calls) == after:
            raise KeyboardInterrupt

    return told


def test_the_same_search_finds_the_same_front():
    assert searched().front == searched().front


def test_a_whole_front_says_what_its_plans_come_to():
    graph = Task(*mlp()).capture().graph
    plain = sum(costs_of(graph).seconds.values())
    times = [ratio * plain for ratio in (1.0, 1.1, 1.5)]
    found = [
        optimize_front(graph, costs_of(graph), costs_of, times=times, iterations=60)[0].front
        for _ in range(2)
    ]
    assert found[0] == found[1]
    assert any(point.plan.regions for point in found[0])
    for point in found[0]:
        line = Solver(graph, costs_of).nest(point.plan).timeline
        assert line.peak == point.peak_bytes
        assert line.seconds == pytest.approx(point.seconds, rel=1e-9)


def costs_of(graph):
    return estimate(graph, "rtx3090")


def searching(target=mlp, slack=1.1, **options):
    """A search for a small step, with no plan kept from before."""
    graph = Task(*target()).capture().graph
    seconds = sum(costs_of(graph).seconds.values())
    return Joint(graph, costs_of, Goal(None, slack * seconds), 60.0, 20, most=6, **options)


def searched():
    """What the search itself finds for a small step."""
    return searching().run()


def test_what_was_optimized_and_proved_can_still_be_offloaded():
    parts = mlp()
    step = peakfold.optimize_step(*parts, memory="90%", iterations=50)
    assert step.report.equal.ok
    held = [*parts[0].parameters(), *parts[3]]
    assert all(tensor.untyped_storage().resizable() for tensor in held)


def test_a_budget_that_nothing_keeps_is_not_said_to_be_below_every_program():
    """What is proved of programs without parts is not so of those with."""
    search = searching()
    search.most, search.goal = 2, Goal(search.graph.nbytes(search.graph.outputs[0].value), None)
    with pytest.raises(InfeasibleError, match="was found, in parts or not") as caught:
        search.run()
    assert "every program needs" not in str(caught.value)
    assert caught.value.got.endswith(f"without parts at least {bytes_text(search.unsplit.bound)}")
    assert caught.value.lower_bound_bytes <= caught.value.lowest_peak_bytes < search.unsplit.bound


def test_without_time_nothing_is_split_and_that_is_said():
    report = peakfold.optimize_step(*mlp(), time_budget=0, fission=True).report
    assert report.equal.bit_equal
    (said,) = (note for note in report.notes if note.startswith("nothing is done in parts"))
    assert "the time budget is 0" in said
