"""Orders of least peak against all orders there are, on small random graphs."""

from hypothesis import given, settings
from hypothesis import strategies as st

from peakfold.plan.reorder.condense import condense
from peakfold.plan.reorder.downsets import greedy, lower_bound, plain, solve
from peakfold.plan.reorder.incremental import extended, in_parts, reschedule, whole
from peakfold.plan.reorder.problem import Problem
from peakfold.plan.reorder.reach import Reach


@st.composite
def problems(draw, most=6):
    """Random items in an order that is valid, with all that an item can have."""
    size = draw(st.integers(1, most))
    given_values = draw(st.integers(0, 2))
    count = given_values
    reads, makes, reuses, after = [], [], [], []
    for item in range(size):
        known = range(count)
        read = draw(st.lists(st.sampled_from(known), max_size=3, unique=True)) if count else []
        made = list(range(count, count + draw(st.integers(0, 2))))
        count += len(made)
        reads.append(tuple(read))
        makes.append(tuple(made))
        reuses.append(tuple((a, b) for a in made for b in read if draw(st.booleans())))
        after.append(tuple(draw(st.lists(st.integers(0, item - 1), max_size=1))) if item else ())
    nbytes = draw(st.lists(st.integers(0, 9), min_size=count, max_size=count))
    return Problem(
        reads=tuple(reads),
        makes=tuple(makes),
        nbytes=tuple(nbytes),
        kept=frozenset(v for v in range(count) if draw(st.integers(0, 4)) == 0),
        workspace=tuple(draw(st.lists(st.integers(0, 4), min_size=size, max_size=size))),
        after=tuple(after),
        reuses=tuple(reuses) if all_fit(reuses, nbytes) else (),
    )


def all_fit(reuses, nbytes):
    """A result is written into an operand that has room for it."""
    return all(nbytes[a] <= nbytes[b] for row in reuses for a, b in row)


def brute(problem, order=()):
    """The least peak of all orders that begin in one way."""
    if len(order) == problem.size:
        return problem.peak(order)
    done = sum(1 << item for item in order)
    ready = [k for k in range(problem.size) if not done >> k & 1 and not problem.before[k] & ~done]
    return min(brute(problem, (*order, item)) for item in ready)


@settings(max_examples=100, deadline=None)
@given(problems())
def test_no_order_has_a_lower_peak(problem):
    found = solve(problem, range(problem.size))
    assert found.exact
    assert problem.is_order(found.order)
    assert problem.peak(found.order) == found.peak == brute(problem)
    oracle = plain(problem, range(problem.size))
    assert oracle.exact
    assert problem.is_order(oracle.order)
    assert problem.peak(oracle.order) == oracle.peak == found.peak


@settings(max_examples=100, deadline=None)
@given(problems())
def test_the_bound_holds(problem):
    assert lower_bound(problem, range(problem.size)) <= brute(problem)


@settings(max_examples=100, deadline=None)
@given(problems(10), st.sets(st.integers(0, 9), min_size=1))
def test_every_way_gives_an_order_that_is_not_worse(problem, changed):
    known = tuple(range(problem.size))
    for found in (
        whole(problem, known),
        in_parts(problem, known),
        reschedule(problem, known, changed),
        solve(problem, known, limit=1),
    ):
        assert problem.is_order(found.order)
        assert problem.peak(found.order) == found.peak <= problem.peak(known)
    assert problem.is_order(greedy(problem))


@settings(max_examples=100, deadline=None)
@given(problems(10))
def test_groups_have_every_item_once_in_an_order(problem):
    small = condense(problem, range(problem.size))
    assert problem.is_order(small.expanded(small.order))
    assert small.problem.is_order(small.order)
    assert problem.peak(small.expanded(small.order)) <= small.problem.peak(small.order)


@settings(max_examples=60, deadline=None)
@given(problems(10), st.integers(0, 9), st.sampled_from((-1, 1)))
def test_a_stretch_grows_within_the_order(problem, place, step):
    order = range(problem.size)
    place = min(place, problem.size - 1)
    end = extended(Reach.of(problem, order), order, place, step)
    assert 0 <= end < problem.size
    assert (end - place) * step >= 0


def test_a_change_between_two_waists_is_ordered_as_the_whole_would_be():
    """Two diamonds in a row; in the second, the long branch first is best."""
    reads = ((), (0,), (0,), (1, 2), (3,), (4,), (3,), (5, 6))
    nbytes = (1, 9, 1, 1, 9, 1, 5, 1)
    problem = Problem(reads, tuple((v,) for v in range(8)), nbytes, frozenset({7}), (0,) * 8)
    known = (0, 1, 2, 3, 6, 4, 5, 7)
    assert problem.peak(known) > reschedule(problem, known, {6}).peak == brute(problem)
