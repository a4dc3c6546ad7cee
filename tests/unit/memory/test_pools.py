"""Models of allocators: their rounding, splitting and segments, as the real ones have them."""

import pytest

from peakfold.plan.memory.allocators import MIB, Bfc, Caching, Settings, SizeClasses
from peakfold.plan.memory.pools import MOST_STEPS, advice, compare, events, replay
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


def test_expandable_segments_split_from_one_line_on():
    pool = caching(expandable_segments=True)
    for ident in range(40):
        pool.take(ident, 39 * MIB // 2)
    assert (pool.used, pool.reserved) == (780 * MIB, 780 * MIB)
    pool.take(40, 20 * MIB - 512)
    assert pool.used == 800 * MIB - 512
    pool.take(41, 1 + MIB)
    assert (pool.used, pool.reserved) == (801 * MIB, 820 * MIB)


def test_rests_in_ordinary_segments_of_one_mebibyte_stay_with_their_blocks():
    pool = caching()
    pool.take(0, 9 * MIB)
    pool.take(1, 10 * MIB)
    assert (pool.used, pool.reserved) == (20 * MIB, 20 * MIB)
    pool = caching()
    pool.take(0, 9 * MIB)
    pool.take(1, 10 * MIB - 512)
    assert pool.used == 19 * MIB - 512


def test_small_blocks_are_split_from_one_line_on():
    pool = caching()
    pool.take(0, MIB)
    pool.take(1, MIB - 512)
    pool.take(2, 1)
    assert (pool.used, pool.reserved) == (2 * MIB, 2 * MIB)


def test_an_inner_gap_goes_before_the_end_that_can_grow():
    pool = caching(expandable_segments=True)
    for ident, size in enumerate((15, 2, 18)):
        pool.take(ident, size * MIB)
    assert pool.reserved == 40 * MIB
    pool.give(0)
    pool.take(3, 4 * MIB)
    assert pool.reserved == 40 * MIB
    pool.take(4, 15 * MIB)
    assert pool.reserved == 60 * MIB


def test_an_end_within_the_limit_of_splitting_does_not_shrink_the_segment():
    pool = caching(expandable_segments=True, max_split_size_mb=21)
    pool.take(0, 60 * MIB)
    pool.give(0)
    pool.take(1, 2 * MIB)
    assert (pool.used, pool.reserved) == (2 * MIB, 60 * MIB)


def test_an_emptied_cache_of_expandable_segments_keeps_pages_in_use():
    pool = caching(expandable_segments=True)
    pool.take(0, 50 * MIB)
    pool.take(1, 30 * MIB)
    pool.give(0)
    assert (pool.reserved, pool.cached) == (80 * MIB, 40 * MIB)


def test_the_limit_of_splitting_is_of_requests():
    pool = caching(max_split_size_mb=25)
    pool.take(0, 49 * MIB // 2)
    assert (pool.used, pool.reserved) == (49 * MIB // 2, 26 * MIB)


@pytest.mark.parametrize(("size", "reserved"), [(28 * MIB + 512, 48 * MIB), (28 * MIB, 76 * MIB)])
def test_a_large_request_takes_no_block_that_is_20_mebibytes_larger(size, reserved):
    pool = caching(max_split_size_mb=25)
    pool.take(0, 48 * MIB)
    pool.give(0)
    pool.take(1, size)
    assert pool.reserved == reserved


@pytest.mark.parametrize(("size", "reserved"), [(24 * MIB, 50 * MIB), (26 * MIB, 26 * MIB)])
def test_a_request_below_the_limit_takes_no_block_at_it(size, reserved):
    pool = caching(max_split_size_mb=26)
    pool.take(0, 26 * MIB)
    pool.give(0)
    pool.take(1, size)
    assert pool.reserved == reserved


@pytest.mark.parametrize(
    ("divisions", "size", "rounded"),
    [
        (0, 1200 * 1024 + 1, 1200 * 1024 + 512),
        (1, 1200 * 1024 + 1, 1200 * 1024 + 512),
        (4, 2048, 2048),
        (4, 2049, 2560),
        (4, 1, 512),
        (4, 1025, 1536),
        (8, 4097, 4608),
        (8, 4096, 4096),
        (2, 1280 * 1024, 1536 * 1024),
        (2, 1600 * 1024, 2048 * 1024),
    ],
)
def test_rounding_to_divisions_of_powers_of_two(divisions, size, rounded):
    pool = caching(roundup_power2_divisions=divisions, expandable_segments=True)
    pool.take(0, size)
    assert pool.used == rounded


@pytest.mark.parametrize(
    ("sizes", "reserved"),
    [
        ((100, 100), (128, 256)),
        ((1, 2, 2, 2), (2, 6, 6, 14)),
        ((2, 2, 100, 100, 30), (2, 6, 134, 262, 518)),
        ((3, 100, 100, 1), (4, 132, 260, 516)),
        ((128, 128, 128), (128, 256, 512)),
    ],
)
def test_a_region_that_grew_for_a_request_is_not_doubled_as_well(sizes, reserved):
    pool = Bfc()
    found = []
    for ident, size in enumerate(sizes):
        pool.take(ident, size * MIB)
        found.append(pool.reserved // MIB)
    assert tuple(found) == reserved


@pytest.mark.parametrize(
    ("region", "size", "used"),
    [
        (128 * MIB, 64 * MIB, 64 * MIB),
        (128 * MIB, 64 * MIB + 1, 128 * MIB),
        (2048 * MIB, 1920 * MIB, 1920 * MIB),
        (2048 * MIB, 1920 * MIB + 1, 2048 * MIB),
        (2 * MIB, 1, 256),
    ],
)
def test_bfc_splits_halves_and_rests_of_128_mebibytes(region, size, used):
    pool = Bfc()
    pool.take(0, region)
    pool.give(0)
    pool.take(1, size)
    assert pool.used == used


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


def test_a_replay_goes_on_until_nothing_new_is_reserved():
    results = Trace((Request(4 * MIB, 0, None), Request(9 * MIB, 2, 6), Request(8 * MIB, 4, None)), length=7)
    assert replay(results, caching(), steps=3).reserved == 40 * MIB
    assert replay(results, caching()).reserved == 60 * MIB


def test_a_replay_of_what_is_never_used_again_ends():
    never_again = Trace((Request(64 * MIB - 512, 0, 1),), length=2)
    found = replay(never_again, caching(max_split_size_mb=64))
    assert found.reserved == MOST_STEPS * 64 * MIB


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
