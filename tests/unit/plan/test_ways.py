"""Recordings of a program that goes several ways, laid over one another."""

import pytest

from peakfold.errors import PlanError
from peakfold.plan.memory.recorded import requests_of
from peakfold.plan.memory.trace import Trace
from peakfold.plan.memory.ways import ALLOCATE, FIRST, FREE, MARK, OVER, SECOND, every_way, turn


def recorder(program):
    """Return what records a program: a function of what is chosen for each fork that yields events."""
    seen = []

    def record(choices):
        seen.append(dict(choices))
        events = list(program(lambda fork: choices.get(fork, True)))
        return events, Trace(tuple(requests_of(events)))

    return record, seen


def into(fork, first):
    return turn(fork, FIRST if first else SECOND)


def nested(chosen):
    """A branch in the second side of a branch; each of the three ways leaves 64 bytes behind."""
    yield ALLOCATE, 100
    yield into(0, chosen(0))
    if chosen(0):
        yield ALLOCATE, 64
    else:
        yield ALLOCATE, 1000
        yield into(1, chosen(1))
        yield from [(ALLOCATE, 64)] if chosen(1) else [(ALLOCATE, 500), (ALLOCATE, 64), (FREE, 2)]
        yield turn(1, OVER)
        yield FREE, 1
    yield turn(0, OVER)
    yield MARK, 0
    yield FREE, {True: 1, False: 3 - chosen(1)}[chosen(0)]


def test_every_section_is_recorded_and_what_sides_give_out_is_one_request():
    record, seen = recorder(nested)
    trace = every_way(record)
    assert seen == [{}, {0: False}, {0: False, 1: False}]
    sizes = [request.size for request in trace.requests]
    assert sorted(sizes) == [64, 100, 500, 1000]
    assert [sizes[call] for call in trace.calls] == [100, 64, 1000, 64, 500, 64]
    assert trace.ways.turns == ((0, 1, 2, 6), (1, 3, 4, 6))
    assert trace.lower_bound == 128 + 1024 + 512 + 64
    shared = trace.requests[sizes.index(64)]
    other = trace.requests[sizes.index(1000)]
    assert shared.born < other.born < other.dies < shared.dies


def test_what_one_side_alone_leaves_behind_keeps_a_place_of_its_own():
    def program(chosen):
        yield into(0, chosen(0))
        yield ALLOCATE, 64 if chosen(0) else 128
        yield turn(0, OVER)
        yield FREE, 0

    trace = every_way(recorder(program)[0])
    assert [request.size for request in trace.requests] == [64, 128]
    assert trace.lower_bound == 128


def test_a_loop_is_one_pass_with_the_question_after_it():
    def program(chosen):
        yield ALLOCATE, 4
        yield FREE, 0
        yield into(0, True)
        yield from ((ALLOCATE, 64), (FREE, 1), (ALLOCATE, 4), (FREE, 2))
        yield into(0, False)
        yield turn(0, OVER)
        yield ALLOCATE, 32

    record, seen = recorder(program)
    trace = every_way(record)
    assert seen == [{}]
    assert trace.calls == (0, 1, 2, 3)
    assert trace.ways.turns == ((0, 1, 3, 3),)


def test_a_program_that_asks_for_something_else_each_time_is_refused():
    sizes = iter(range(64, 1000, 64))

    def program(chosen):
        yield into(0, chosen(0))
        yield turn(0, OVER)
        yield ALLOCATE, next(sizes)

    with pytest.raises(PlanError) as caught:
        every_way(recorder(program)[0])
    assert (
        caught.value.what
        == "what the program allocates differs from run to run beside what its branches decide"
    )
    assert (caught.value.expected, caught.value.got) == ("64 bytes as request 0", "128 bytes")
