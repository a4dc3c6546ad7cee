"""Models of allocators: their rounding, splitting and segments, as the real ones have them."""

import pytest

from peakfold.plan.memory.allocators import MIB, Bfc, Caching, Settings, SizeClasses
from peakfold.plan.memory.pools import advice, compare, events, replay
from peakfold.plan.memory.trace import Request, Trace


def caching(**settings):
    return Caching(Settings(**settings))


@pytest.mark.parametrize(
    ("size", "reserved"),
    [
        (1, 2 * MIB),
        (MIB, 2 * MIB),
        (MIB + 1, 20 * MIB),
        (10 * MIB - 512, 20 * MIB),
        (10 * MIB, 10 * MIB),
        (10 * MIB + 1, 12 * MIB),
    ],
)
def test_segments_of_the_caching_allocator(size, reserved):
    pool = caching()
    pool.take(0, size)
    assert pool.reserved == reserved


def test_blocks_are_of_512_bytes_and_neighbours_join():
    pool = caching()
    for ident in range(4096):
        pool.take(ident, 1)
    assert (pool.reserved, pool.used) == (2 * MIB, 2 * MIB)
    for ident in range(4096):
        pool.give(ident)
    assert (pool.used, pool.cached) == (0, 2 * MIB)
    pool.take(0, MIB)
    assert pool.reserved == 2 * MIB


def test_the_best_block_is_taken_and_a_small_rest_stays_in_it():
    pool = caching()
    pool.take(0, 19 * MIB // 2)
    pool.take(1, 10 * MIB)
    assert pool.reserved == 20 * MIB
    pool.give(1)
    pool.take(2, 19 * MIB // 2)
    assert (pool.used, pool.reserved) == (20 * MIB, 20 * MIB)


def test_large_blocks_are_not_split_beyond_the_limit():
    free, limited = caching(), caching(max_split_size_mb=32)
    for pool in (free, limited):
        pool.take(0, 100 * MIB)
        pool.give(0)
        pool.take(1, 40 * MIB)
        pool.take(2, 40 * MIB)
    assert (free.reserved, limited.reserved) == (100 * MIB, 180 * MIB)


def test_expandable_segments_grow_by_pages():
    pool = caching(expandable_segments=True)
    pool.take(0, 30 * MIB)
    pool.give(0)
    pool.take(1, 50 * MIB)
    assert pool.reserved == 60 * MIB
    pool.take(2, 10 * MIB)
    assert pool.reserved == 60 * MIB


def test_sizes_are_rounded_between_powers_of_two():
    pool = caching(roundup_power2_divisions=4)
    pool.take(0, 1200 * 1024)
    assert pool.used == 1280 * 1024


def test_regions_of_bfc_double():
    pool = Bfc()
    pool.take(0, MIB)
    pool.take(1, 2 * MIB)
    assert pool.reserved == 2 * MIB + 4 * MIB
    assert pool.used == MIB + 2 * MIB


def test_size_classes_are_four_between_powers_of_two():
    pool = SizeClasses()
    pool.take(0, 65)
    assert pool.used == 80
    pool.give(0)
    pool.take(1, 80)
    assert (pool.reserved, pool.cached) == (80, 0)


TRACE = Trace((Request(3 * MIB, 0, 2), Request(30 * MIB, 1, 3), Request(4, 3, None)), length=4)


def test_a_replay_is_of_a_steady_state():
    found = replay(TRACE, caching())
    assert found.allocated == 33 * MIB + 4
    assert found.reserved == (20 + 30 + 2) * MIB
    assert found.cached == 50 * MIB
    assert found.compaction == found.reserved - 512
    assert found.fragmentation == pytest.approx(1 - (33 * MIB + 4) / (52 * MIB))


def test_events_are_in_order_and_what_dies_goes_first():
    assert list(events(Trace((Request(8, 0, 1), Request(4, 1, 2)), length=3))) == [
        (0, 8),
        (0, -8),
        (1, 4),
        (1, -4),
    ]


def test_every_model_is_compared():
    assert [found.model for found in compare(TRACE)] == ["BFC", "caching", "size classes"]


def test_settings_are_advised_where_they_save():
    growing = Trace(tuple(Request((21 + 2 * i) * MIB, 2 * i, 2 * i + 1) for i in range(9)), length=20)
    assert "expandable_segments:True would reserve" in advice(growing)
    assert advice(TRACE).startswith("on CUDA")
    assert "default settings serve" in advice(Trace((Request(MIB, 0, 1),), length=2))
