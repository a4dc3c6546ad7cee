"""Random problems: the plan is optimal where brute force can say so, and legal everywhere."""

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.memory.brute import least_arena, legal

from peakfold.errors import InfeasibleError, PlanError
from peakfold.plan.memory import Buffer, Problem, check_placement, lower_bound, plan
from peakfold.plan.memory.bound import aligned_bound


@st.composite
def problems(draw, most=8, longest=8, largest=12, alignments=(1,)):
    rows = draw(
        st.lists(
            st.tuples(
                st.integers(0, longest),
                st.integers(1, longest),
                st.integers(1, largest),
                st.sampled_from(alignments),
            ),
            min_size=1,
            max_size=most,
        )
    )
    return Problem(tuple(Buffer(str(i), a, a + w, size, al) for i, (a, w, size, al) in enumerate(rows)))


@settings(max_examples=150, deadline=None)
@given(problems())
def test_up_to_eight_buffers_are_placed_optimally(problem):
    placement = plan(problem, time_budget=60)
    assert legal(problem, placement.offsets)
    assert placement.arena == least_arena(problem)
    assert placement.status == "optimal"
    assert placement.lower_bound == placement.arena


@settings(max_examples=60, deadline=None)
@given(problems(most=7, alignments=(1, 2, 8)))
def test_aligned_buffers_are_placed_optimally(problem):
    placement = plan(problem, time_budget=60)
    assert legal(problem, placement.offsets)
    assert placement.arena == least_arena(problem)
    assert placement.status == "optimal"


@settings(max_examples=100, deadline=None)
@given(problems(most=5, longest=4, largest=100, alignments=(1, 2, 8, 64)))
def test_no_arena_is_below_the_bound_of_aligned_buffers(problem):
    assert aligned_bound(problem) <= least_arena(problem)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(1, 200), min_size=1, max_size=6), st.sampled_from([1, 4, 64]))
def test_the_bound_of_aligned_buffers_that_live_at_once_is_reached(sizes, alignment):
    problem = Problem(tuple(Buffer(str(i), i, 10, size, alignment) for i, size in enumerate(sizes)))
    placement = plan(problem)
    assert aligned_bound(problem) == placement.arena == placement.lower_bound


@settings(max_examples=60, deadline=None)
@given(problems(most=7), st.integers(-3, 6))
def test_a_capacity_is_kept_or_refuted(problem, more):
    least, capacity = least_arena(problem), lower_bound(problem).size + more
    try:
        placement = plan(problem, capacity=capacity, time_budget=60)
    except InfeasibleError:
        assert more < 0
        return
    assert placement.fits == (least <= capacity)
    assert (placement.arena <= capacity) == placement.fits
    assert placement.status in (("optimal", "fits") if placement.fits else ("infeasible",))
    assert placement.lower_bound <= least


@settings(max_examples=60, deadline=None)
@given(problems(most=60, longest=40, largest=100, alignments=(1, 4)), st.integers(0, 3))
def test_larger_problems_are_legal_and_repeatable(problem, seed):
    one, two = (plan(problem, capacity=2 * lower_bound(problem).size + 4 * 60, seed=seed) for _ in range(2))
    assert legal(problem, one.offsets)
    assert one.arena >= one.lower_bound >= lower_bound(problem).size
    assert one.offsets == two.offsets


@settings(max_examples=200, deadline=None)
@given(problems(most=6, alignments=(1, 2)), st.data())
def test_the_checker_agrees_with_all_pairs(problem, data):
    count = len(problem.buffers)
    offsets = data.draw(st.lists(st.integers(0, 30), min_size=count, max_size=count))
    try:
        top = check_placement(problem.placed(offsets))
    except PlanError:
        assert not legal(problem, offsets)
        return
    assert legal(problem, offsets)
    assert top == max(o + b.size for o, b in zip(offsets, problem.buffers, strict=True))
