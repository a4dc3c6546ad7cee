"""Times of programs, corrected by what operators took where they ran; clocks are fakes."""

from itertools import count

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from peakfold.cost.costs import Costs
from peakfold.ir.plan import Plan, Recompute, Region
from peakfold.pipeline import in_place
from peakfold.pipeline.in_place import InPlace, Share, clocked, corrected, shares
from peakfold.pipeline.program import emit_plan
from peakfold.pipeline.task import Task
from peakfold.plan.fission.dims import components
from peakfold.plan.fission.marks import marked
from peakfold.plan.fission.prepare import prepare
from peakfold.plan.fission.widest import widest


def costs_of(graph):
    """Return costs by the operator alone."""
    return Costs({n.id: 1e-3 * (1 + len(n.op.name) % 7) for n in graph.nodes if not n.is_view}, {})


@pytest.fixture(scope="module")
def programs():
    """Return the program of a small model as it is, with a value computed again, and in parts."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    task = Task(model, lambda m, x: m(x).square().mean(), optimizer, (torch.randn(4, 4),))
    captured = task.capture()
    graph = captured.graph
    first = next(node for node in graph.nodes if node.op.name == "aten.tanh.default")
    last = max(node.id for node in graph.nodes if any(value.node == first.id for value in node.inputs))
    whole = prepare(graph)
    batch = next(axis for axis in components(whole) if axis.name == "batch")
    plans = {
        "plain": Plan(graph.digest),
        "again": Plan(graph.digest, recompute=(Recompute(first.id, last),)),
        **{
            f"in {parts}": Plan(graph.digest, regions=(Region("batch", parts, widest(whole, batch)),))
            for parts in (2, 4)
        },
    }
    return {
        name: (task, emit_plan(captured, plan, costs_of(graph), costs_of=costs_of))
        for name, plan in plans.items()
    }


def of(programs, name, seconds=None):
    return shares(programs[name][1].nest, seconds)


def test_shares_add_up_to_the_predicted_time(programs):
    for name, (_, program) in programs.items():
        found = of(programs, name)
        assert sum(share.predicted for share in found.values()) == pytest.approx(program.timeline.seconds)
        assert sum(share.runs for share in found.values()) == len(list(marked(program.nest)))


def test_each_step_of_a_running_program_has_its_own_seconds(programs, monkeypatch):
    """The clock ticks once at each mark, so that each step takes one."""
    real, ticks = in_place.Clock, count()
    monkeypatch.setattr(in_place, "Clock", lambda: real(lambda: float(next(ticks))))
    found = clocked(programs, rounds=1)
    for name, seen in found.items():
        assert all(share.taken == share.runs for share in seen.values())
        assert {kind: share.runs for kind, share in seen.items()} == {
            kind: share.runs for kind, share in of(programs, name).items()
        }
    parts = [kind for kind, share in found["in 4"].items() if share.runs >= 4]
    assert len(parts) > 5


def test_of_each_step_the_least_run_counts(programs, monkeypatch):
    real, ticks = in_place.Clock, count()
    monkeypatch.setattr(in_place, "Clock", lambda: real(lambda: float(next(ticks) ** 2)))
    (seen,) = clocked({"plain": programs["plain"]}, rounds=3).values()
    steps = sum(share.runs for share in seen.values())
    assert sum(share.taken for share in seen.values()) == steps**2


def truth(kind: str, share: Share) -> float:
    """Seconds of one run of a step that no profile foresees."""
    return 1e-4 * (1 + len(kind) % 5) + 2 * share.predicted / share.runs


def run(programs, name):
    found = of(programs, name)
    return {
        kind: Share(share.runs, share.predicted, share.runs * truth(kind, share))
        for kind, share in found.items()
    }


def total(seen):
    return sum(share.taken for share in seen.values())


def test_what_was_seen_in_place_gives_the_time_of_another_program(programs):
    references = [(seen, total(seen)) for seen in (run(programs, "plain"), run(programs, "in 2"))]
    met = references[0][0].keys() | references[1][0].keys()
    again = {kind: share for kind, share in run(programs, "again").items() if kind in met}
    assert len(again) > len(of(programs, "again")) - 3
    assert InPlace(references).seconds(again) == pytest.approx(total(again))
    predicted = sum(share.predicted for share in again.values())
    plain, taken = programs["plain"][1].timeline.seconds, references[0][1]
    assert predicted / plain != pytest.approx(total(again) / taken)


def test_no_program_is_corrected_by_its_own_runs(programs):
    seen = {name: run(programs, name) for name in programs}
    taken = {name: total(found) for name, found in seen.items()}
    usual = corrected(programs, taken, "plain", lambda asked: {name: seen[name] for name in asked})
    for name in programs:
        tripled = {kind: Share(s.runs, s.predicted, 3 * s.taken) for kind, s in seen[name].items()}
        other = {**seen, name: tripled}
        found = corrected(
            programs,
            {**taken, name: 7 * taken[name]},
            "plain",
            lambda asked, other=other: {n: other[n] for n in asked},
        )
        assert found[name] == usual[name]
        assert any(found[one] != usual[one] for one in programs if one != name)


def test_clocks_run_in_the_plain_program_and_in_some_that_are_spread(programs, monkeypatch):
    asked = []
    monkeypatch.setattr(in_place, "REFERENCES", 2)

    def clocks(some):
        asked.extend(some)
        return {name: run(programs, name) for name in some}

    taken = {name: total(run(programs, name)) for name in programs}
    corrected(programs, taken, "plain", clocks)
    ordered = sorted(
        (name for name in programs if name != "plain"), key=lambda n: programs[n][1].timeline.seconds
    )
    assert asked == ["plain", ordered[0], ordered[-1]]


def test_a_clock_that_tells_no_time_corrects_nothing(programs):
    def clocks(some):
        none = {name: of(programs, name) for name in some}
        return {
            n: {k: Share(s.runs, s.predicted, 0.0) for k, s in found.items()} for n, found in none.items()
        }

    whole = {name: program.timeline.seconds for name, (_, program) in programs.items()}
    found = corrected(programs, {**whole, "plain": 3 * whole["plain"]}, "plain", clocks)
    assert found == {name: pytest.approx(3 * whole[name]) for name in programs}


def test_without_clocks_the_plain_program_corrects_all(programs, monkeypatch):
    monkeypatch.setattr(in_place, "have_clocks", lambda programs: False)
    taken = dict.fromkeys(programs, 5.0)
    whole = {name: program.timeline.seconds for name, (_, program) in programs.items()}
    assert corrected(programs, taken, "plain") == {
        name: pytest.approx(5.0 * whole[name] / whole["plain"]) for name in programs
    }


KINDS = [f"aten.{name}.default({size})" for name in ("mm", "add") for size in (1, 2, 3)] + ["Free"]
TABLES = st.fixed_dictionaries({kind: st.floats(1e-6, 1.0) for kind in KINDS})
COUNTS = st.dictionaries(st.sampled_from(KINDS), st.integers(1, 9), min_size=1)


@given(TABLES, TABLES, st.lists(COUNTS, min_size=1, max_size=4), st.data())
def test_kinds_that_were_seen_cost_what_they_took(profiled, true, references, data):
    def program(counts):
        return {kind: Share(n, n * profiled[kind], n * true[kind]) for kind, n in counts.items()}

    seen = sorted(set().union(*references))
    other = program(data.draw(st.dictionaries(st.sampled_from(seen), st.integers(1, 9), min_size=1)))
    known = InPlace([(program(one), total(program(one))) for one in references])
    assert known.seconds(other) == pytest.approx(total(other))


@given(TABLES, st.floats(0.1, 10.0), COUNTS, COUNTS)
def test_where_all_is_slower_alike_so_is_what_was_not_seen(profiled, slower, reference, other):
    def program(counts):
        return {
            k: Share(n, n * profiled[k], n * profiled[k] * slower) for k, n in counts.items() if k != "Free"
        }

    seen, asked = program(reference), program(other)
    if not seen or not asked:
        return
    assert InPlace([(seen, total(seen))]).seconds(asked) == pytest.approx(total(asked))
