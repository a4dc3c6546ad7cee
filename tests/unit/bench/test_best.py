import pytest

from peakfold.bench.best import best_at, best_at_peers, bound_ratio
from peakfold.bench.rows import Results, Row


def row(variant, constraint="", memory=1.0, time=1.0, **more):
    return Row("bert", variant, constraint, memory_ratio=memory, latency_ratio=time, **more)


EAGER = row("eager", peak_bytes=100)
ROWS = (
    EAGER,
    row("checkpoint-1", memory=0.4, time=1.3),
    row("selective", memory=0.8, time=1.05),
    row("accumulate-4", memory=0.2, time=0.9),
    row("peakfold", "none", 0.9, 0.95),
    row("peakfold", "latency 1.10", 0.5, 1.09, lower_bound_bytes=30),
    row("peakfold", "latency 1.35", 0.3, 1.34, lower_bound_bytes=30),
)


def at(limit, rows=ROWS):
    (found,) = best_at(Results(rows), [limit])
    return found


@pytest.mark.parametrize(
    ("limit", "mine", "plan", "peer", "of"),
    [
        (0.9, None, "", None, ""),
        (1.0, 0.9, "none", 1.0, "eager"),
        (1.1, 0.5, "latency 1.10", 0.8, "selective"),
        (1.35, 0.3, "latency 1.35", 0.4, "checkpoint-1"),
    ],
)
def test_the_least_memory_within_a_time(limit, mine, plan, peer, of):
    found = at(limit)
    assert (found.peakfold, found.plan, found.peer, found.of) == (mine, plan, peer, of)


def test_to_be_ahead_is_a_part_of_the_peer_or_the_bound():
    assert at(1.35).most == pytest.approx(0.85 * 0.4)
    assert at(1.35).reached is True
    assert at(1.0).reached is False
    assert at(0.9).reached is None
    close = (*ROWS[:-1], row("peakfold", "latency 1.35", 0.38, 1.34, lower_bound_bytes=38))
    assert at(1.35, close).most == pytest.approx(0.38)
    assert at(1.35, close).reached is True


def test_the_times_of_peers_are_limits_too():
    found = {best.why: best for best in best_at_peers(Results(ROWS))}
    assert list(found) == ["eager", "checkpoint-1", "selective"]
    assert found["selective"].limit == 1.05
    assert found["selective"].peakfold == 0.9


def test_a_program_that_is_not_equal_does_not_count():
    wrong = (*ROWS, row("peakfold", "memory 10%", 0.1, 1.0, equal=False))
    assert at(1.1, wrong).peakfold == 0.5


def test_rows_that_failed_or_were_not_timed_are_left_out():
    rows = (EAGER, Row("bert", "checkpoint-1", error="failed"), Row("bert", "peakfold", memory_ratio=0.5))
    assert (at(1.1, rows).peakfold, at(1.1, rows).of) == (None, "eager")


def test_no_bound_without_a_search():
    assert bound_ratio(ROWS[:4]) is None
    assert bound_ratio(ROWS) == 0.3
