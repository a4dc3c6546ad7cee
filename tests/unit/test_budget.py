from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from peakfold.budget import UNITS, even_ratios, parse_budget, parse_latency, parse_memory
from peakfold.errors import UsageError


@pytest.mark.parametrize(
    ("text", "nbytes"),
    [
        ("4GiB", 4 * 2**30),
        (" 900 MB ", 900_000_000),
        ("1.5kB", 1500),
        ("4000000000", 4_000_000_000),
        (4_000_000_000, 4_000_000_000),
        ("1e9", 10**9),
        ("12 b", 12),
        (2.5e9, 2_500_000_000),
    ],
)
def test_sizes(text, nbytes):
    assert parse_memory(text).nbytes == nbytes
    assert parse_memory(text).resolve(1, 1) == nbytes


@pytest.mark.parametrize(("text", "share"), [("40%", 0.4), ("100 %", 1.0), ("120%", 1.2), ("0.5%", 0.005)])
def test_shares_are_of_the_eager_peak(text, share):
    assert parse_memory(text).share == pytest.approx(share)
    assert parse_memory(text).resolve(1000, 7) == int(1000 * share)


@pytest.mark.parametrize("text", ["fit", "FIT", " Fit "])
def test_fit_is_what_is_free(text):
    assert parse_memory(text).resolve(1000, 77) == 77


@given(st.integers(1, 10**6), st.sampled_from([unit for unit in UNITS if unit]))
def test_every_unit_in_any_case(number, unit):
    for written in (unit, unit.upper()):
        assert parse_memory(f"{number}{written}").nbytes == number * UNITS[unit]


@pytest.mark.parametrize(
    "text", ["", "4gigs", "GiB", "4 G", "fits", "40%%", "1,5GB", "0x10", "nan", "inf", "4GiB!", True]
)
def test_what_cannot_be_read_is_refused(text):
    with pytest.raises(UsageError) as caught:
        parse_memory(text)
    assert "options: the memory budget cannot be read" in str(caught.value)
    assert f"got: {text!r}" in str(caught.value)
    assert "'4GiB'" in caught.value.expected


@pytest.mark.parametrize("text", ["0", "-1", "0%", "-40%", "-4GiB", "0.1B", 0, -5])
def test_nothing_and_less_is_refused(text):
    with pytest.raises(UsageError, match="the memory budget must be more than nothing"):
        parse_memory(text)


def test_an_unknown_unit_is_named():
    with pytest.raises(UsageError) as caught:
        parse_memory("4 gigs")
    assert "unit 'gigs' is not one of B, kB, MB" in str(caught.value)


@pytest.mark.parametrize("given", ["", "fast", "0", "-1", "nan", "inf", 0, -1.1, True])
def test_a_latency_that_cannot_be_read_is_refused(given):
    with pytest.raises(UsageError, match="the latency budget cannot be read"):
        parse_latency(given)


@pytest.mark.parametrize(
    ("text", "expected"),
    [("arena:64MiB", 64 << 20), ("ARENA:64MiB", 64 << 20), (" arena: 40% ", 400), ("arena:fit", 77)],
)
def test_a_budget_for_the_arena(text, expected):
    found = parse_budget(text)
    assert (found.arena, found.text, found.resolve(1000, 77)) == (True, text.strip(), expected)
    assert not parse_budget("64MiB").arena


@pytest.mark.parametrize("text", ["arena", "arena:", "arena:arena:1MiB", "arena:x", "arena:-1", "arena:0%"])
def test_an_arena_without_a_size_is_refused(text):
    with pytest.raises(UsageError) as caught:
        parse_budget(text)
    assert "'arena:' before it for the arena alone" in str(caught.value)


@pytest.mark.parametrize(
    "text", ["", "4 gigs", "x", "nan", "0", "-1%", "0.1B", "arena:", "arena:x", "arena:0"]
)
@pytest.mark.parametrize("read", [parse_budget, parse_memory, parse_latency])
def test_every_refusal_says_what_to_do_next(read, text):
    with pytest.raises(UsageError) as caught:
        read(text)
    assert "\n  next: " in str(caught.value)


def test_an_arena_is_no_budget_of_a_peak():
    with pytest.raises(UsageError):
        parse_memory("arena:1MiB")


@given(st.integers(1, 10**13), st.integers(1, 10**13), st.integers(1, 40))
def test_even_ratios_end_where_they_are_to(first, last, count):
    """Budgets down to a bound do not fall below it by a rounding."""
    found = even_ratios(first, last, count)
    assert len(found) == count
    assert found[-1] == last
    assert count == 1 or found[0] == first
    assert found == sorted(found, reverse=first > last)
    ratio = (last / first) ** (1 / max(count - 1, 1))
    assert all(abs(low * ratio - high) <= 1 + ratio + 1e-9 * high for low, high in pairwise(found))
