"""Prices of operators where they run, and searches that go on with them; clocks are fakes."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from peakfold.bridge.runtime.profile import machine
from peakfold.cost.costs import Costs
from peakfold.cost.key import keys
from peakfold.ir.plan import Plan
from peakfold.pipeline import attempts, repriced
from peakfold.pipeline.attempts import MARGIN
from peakfold.pipeline.in_place import IN_PLACE, InPlace, Share
from peakfold.pipeline.program import emit_plan
from peakfold.pipeline.proof_cache import Times
from peakfold.pipeline.prove import Figures
from peakfold.pipeline.repriced import Repriced
from peakfold.pipeline.stage import Stages
from peakfold.pipeline.task import Task
from peakfold.pipeline.tried import Tried


def step():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return model, lambda m, x: m(x).square().mean(), optimizer, (torch.randn(64, 8),)


def costs_of(graph):
    return Costs(dict.fromkeys(keys(graph, machine(torch.get_num_threads())), 1e-3), {})


def twice() -> Repriced:
    """Everything takes twice its profile."""
    return Repriced(InPlace([({"x": Share(1, 1.0, 2.0)}, 2.0)]), machine(torch.get_num_threads()))


def test_what_was_seen_costs_what_it_took_and_the_rest_what_is_like_it():
    graph = Task(*step()).capture().graph
    named = keys(graph, machine(torch.get_num_threads()))
    tanhs = [node.id for node in graph.nodes if node.op.packet == "tanh"]
    mms = [node.id for node in graph.nodes if node.op.packet in ("mm", "addmm")]
    profiled = Costs(dict.fromkeys(named, 1.0), dict.fromkeys(named, 7))
    seen = {
        named[tanhs[0]] + IN_PLACE: Share(2, 2.0, 6.0),
        named[mms[0]]: Share(1, 1.0, 1.5),
        "free": Share(3, 0.0, 0.5),
    }
    found = Repriced(InPlace([(seen, 16.0)]), machine(torch.get_num_threads())).costs(graph, profiled)
    assert found.workspace == profiled.workspace
    assert found.seconds[tanhs[0]] == pytest.approx(6.0)
    assert found.seconds[mms[0]] == pytest.approx(3.0)
    alike = [node for node in mms if graph.node[node].op == graph.node[mms[0]].op]
    assert len(alike) > 1
    assert [found.seconds[node] for node in alike] == pytest.approx([3.0] * len(alike))
    others = [node.id for node in graph.nodes if node.op.packet == "pow"]
    assert others
    assert [found.seconds[node] for node in others] == pytest.approx([5.0] * len(others))


def test_a_clock_that_tells_nothing_gives_no_prices(monkeypatch):
    for seen in ({}, {"plan": {"x": Share(1, 1.0, 0.0)}}):
        monkeypatch.setattr(repriced, "clocks_in", lambda programs, seen=seen: seen)
        assert repriced.repriced({}, {"plan": 1.0}) is None


@pytest.fixture
def found():
    """What is known of a step, what is asked, its program; and the searches and clockings that were made."""
    task = Task(*step())
    captured = task.capture()
    program = emit_plan(captured, Plan(captured.graph.digest), costs_of(captured.graph), costs_of=costs_of)
    asked = SimpleNamespace(
        plan=None, resume=None, save_search=None, fission=True, latency=3.0, verify=False, memory=None
    )
    stages = Stages(lambda *_: None)
    run = SimpleNamespace(task=task, asked=asked, runnable=True, costs=costs_of, stages=stages)
    eager = SimpleNamespace(cpu_seconds=1.0, measured=False)
    facts = SimpleNamespace(
        captured=captured, costs=program.costs, known=None, in_arena=False, budget=None, eager=eager
    )
    return run, facts, program


def searches(monkeypatch, found, taken):
    """Search until the time is kept, by programs that take so many times eager's; return what was asked."""
    run, facts, program = found
    asked, clocked, times = [], [], iter(taken)

    def search(run, facts, bounds, prices):
        asked.append((bounds.seconds, prices))
        return Tried(program, None, facts)

    def measure(run, tried, plain):
        seconds = next(times)
        figures = Figures(program.peak, seconds)
        return replace(tried, figures=figures, times=Times(1.0, seconds, 1.0, ""))

    monkeypatch.setattr(attempts, "try_once", search)
    monkeypatch.setattr(attempts, "_measure", measure)
    monkeypatch.setattr(attempts, "repriced", lambda *of: clocked.append(of) or twice())
    attempts.within(run, facts, program)
    return asked, clocked


def test_after_a_missed_time_the_search_goes_on_with_what_operators_took(found, monkeypatch):
    program = found[2]
    asked, clocked = searches(monkeypatch, found, (3.3, 3.1, 2.99))
    predicted = program.timeline.seconds
    second = MARGIN * 3.0 * 2 / 3.3
    limits = [3.0, second, MARGIN * min(second, 3.0 * 2 / 3.1)]
    assert [bound for bound, _ in asked] == pytest.approx([limit * predicted for limit in limits])
    assert asked[0][1] is None
    assert asked[1][1] is asked[2][1] is not None
    ((programs, seconds),) = clocked
    assert programs["plan"][1] is program
    assert seconds == {"plain": 1.0, "plan": 3.3}


@pytest.mark.parametrize("what", ["resume", "save_search"])
def test_a_search_that_is_saved_goes_on_with_the_costs_that_it_was_saved_with(found, monkeypatch, what):
    setattr(found[0].asked, what, "a file")
    asked, clocked = searches(monkeypatch, found, (3.3, 2.99))
    assert [prices for _, prices in asked] == [None, None]
    assert clocked == []
    assert asked[1][0] == pytest.approx(MARGIN * 3.0 * found[2].timeline.seconds / 3.3)
