"""Every lowered plan is legal; every small damage to a schedule is found."""

from dataclasses import replace

from hypothesis import assume, given, settings
from hypothesis import strategies as st
from tests.strategies import plans, runnable_graphs

from peakfold.ir.order import first_broken
from peakfold.ir.plan import Compute, Plan, Run, Schedule
from peakfold.plan.check import check_graph, check_plan, check_schedule, require_legal
from peakfold.plan.schedule.lower import lower


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_what_lowering_makes_is_legal(data):
    graph = data.draw(runnable_graphs())
    plan = data.draw(plans(graph))
    assert check_graph(graph) == []
    assert check_plan(graph, plan) == []
    assert check_schedule(graph, lower(graph, plan)) == []
    require_legal(graph, lower(graph, plan))


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_the_first_pair_of_an_order_that_may_not_be(data):
    """What lowering and the text refuse is what the check finds; the pair is one of those that it names."""
    graph = data.draw(runnable_graphs())
    order = data.draw(st.permutations([node.id for node in graph.nodes if not node.is_view]))
    found = first_broken(graph, order)
    violations = check_plan(graph, Plan(graph.digest, order=tuple(order)))
    assert (found is None) == (not violations)
    if found is not None:
        assert order.index(found.node.id) < order.index(found.other.id)
        assert any(one.where == found.node.name and found.other.name in one.what for one in violations)


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_every_step_matters(data):
    """Without any one step that is a free, a commit, a move or a first run, the schedule is refused."""
    graph = data.draw(runnable_graphs(max_nodes=5))
    steps = lower(graph, data.draw(plans(graph))).steps
    at = data.draw(st.integers(0, len(steps) - 1))
    assume(not isinstance(steps[at], Compute) or graph.node[steps[at].run.node].op.random)
    assert check_schedule(graph, Schedule(steps[:at] + steps[at + 1 :]))


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_a_step_twice_is_refused(data):
    graph = data.draw(runnable_graphs(max_nodes=5))
    steps = lower(graph, data.draw(plans(graph))).steps
    at = data.draw(st.integers(0, len(steps) - 1))
    assert check_schedule(graph, Schedule((*steps[: at + 1], *steps[at:])))


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_a_reader_before_what_it_reads_is_refused(data):
    graph = data.draw(runnable_graphs(max_nodes=5))
    steps = list(lower(graph, data.draw(plans(graph))).steps)
    readers = [at for at, step in enumerate(steps) if isinstance(step, Compute) and reads_steps(graph, step)]
    assume(readers)
    at = data.draw(st.sampled_from(readers))
    assume(steps[at].run.k == 0)
    steps.insert(0, steps.pop(at))
    assert check_schedule(graph, Schedule(tuple(steps)))


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_a_reuse_of_what_is_read_again_is_refused(data):
    """A run at the end that reads an operand that was written over."""
    graph = data.draw(runnable_graphs())
    steps = lower(graph, data.draw(plans(graph))).steps
    over = [step for step in steps if isinstance(step, Compute) and step.reuses]
    assume(over)
    taken = data.draw(st.sampled_from(over))
    again = Compute(
        Run(taken.run.node, sum(s.run.node == taken.run.node for s in steps if isinstance(s, Compute)))
    )
    found = check_schedule(graph, Schedule((*steps, again)))
    assert any("written over" in item.what for item in found)


@settings(max_examples=100, deadline=None)
@given(runnable_graphs())
def test_damaged_graphs_are_found(graph):
    twice = replace(graph, nodes=(*graph.nodes, graph.nodes[-1]))
    turned = replace(graph, nodes=graph.nodes[::-1])
    assert check_graph(twice)
    linked = any(value.node in graph.node for node in graph.nodes for value in node.inputs)
    assert bool(check_graph(turned)) == linked or any(node.op.random for node in graph.nodes)


def reads_steps(graph, step):
    return any(graph.storage(value).node in graph.node for value in graph.node[step.run.node].inputs)
