"""The page of a front: where its dots and stairs are."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from peakfold.report.front import HEIGHT, WIDTH, Dot, plot_of, render_front

RATIOS = st.floats(0.01, 20.0)
DOTS = st.lists(
    st.builds(Dot, st.sampled_from(["predicted", "measured", "peer"]), st.just("a"), RATIOS, RATIOS)
)


@given(DOTS)
def test_every_dot_is_in_the_plot_and_in_order(dots):
    plot = plot_of(dots)
    assert all(0 <= placed.left <= 100 and 0 <= placed.bottom <= 100 for placed in plot.dots)
    for one in plot.dots:
        for other in plot.dots:
            if one.dot.latency < other.dot.latency:
                assert one.left <= other.left
            if one.dot.memory < other.dot.memory:
                assert one.bottom <= other.bottom
    assert all(0 <= percent <= 100 for percent, _ in (*plot.times, *plot.memories))


@given(DOTS)
def test_stairs_go_to_the_right_and_down(dots):
    for path in (plot_of(dots).front, plot_of(dots).peers):
        across = [float(x) for x in re.findall(r"[MH]([\d.]+)", path)]
        down = [float(y) for y in re.findall(r"(?:V|M[\d.]+ )([\d.]+)", path)]
        assert across == sorted(across)
        assert down == sorted(down)
        assert not path or (across[-1] == WIDTH and down[-1] <= HEIGHT)


def test_the_front_is_what_was_measured_where_something_was():
    dots = [Dot("predicted", "p", 0.5, 1.0), Dot("measured", "m", 0.25, 2.0)]
    assert plot_of(dots).front == "M950.0 300.0H1000"
    assert plot_of(dots[:1]).front.startswith("M")
    assert plot_of([]).front == ""


@pytest.mark.parametrize("name", ["<b>", "accumulate-2"])
def test_a_page_has_every_name_and_nothing_that_is_loaded(name):
    page = render_front("a & b", [Dot("peer", name, 0.5, 1.0)], ["a line"], [("0.5", "1", "", "", "", "x")])
    assert name.replace("<b>", "&lt;b&gt;") in page
    assert "a &amp; b" in page
    assert "a line" in page
    assert not re.search(r"(src|href)=", page)
