import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from peakfold.report.chart import COLUMNS, groups_of, picture_of
from peakfold.report.model import Block, Limits, Report, Timeline, Timelines


@given(st.integers(0, 60), st.integers(1, 20))
def test_columns_are_all_steps_in_order(count, most):
    groups = groups_of(count, most)
    assert [step for group in groups for step in group] == list(range(count))
    assert len(groups) == min(most, count)
    assert all(len(group) > 0 for group in groups)


def test_a_column_is_as_wide_as_its_operator_is_long():
    line = Timeline(("a", "b", "c"), (1.0, 2.0, 1.0), (Block("x", "batch", 8, 0, 3),))
    ends = picture_of(Report("r", timelines=Timelines(None, line))).charts[0].data["ends"]
    assert ends == [pytest.approx(share, abs=1e-5) for share in (4 / 15, 11 / 15, 1.0)]


def test_steps_without_times_are_equally_wide():
    line = Timeline(("a", "b"), (0.0, 0.0), (Block("x", "batch", 8, 0, 2),))
    data = picture_of(Report("r", timelines=Timelines(None, line))).charts[0].data
    assert (data["ends"], data["times"]) == ([0.5, 1.0], ["", ""])


def test_all_bands_are_within_the_box_and_closed(report):
    for chart in picture_of(report).charts:
        for band in chart.bands:
            heights = [float(y) for y in re.findall(r"V([\d.]+)", band.path)]
            ends = [float(x) for x in re.findall(r"H([\d.]+)", band.path)]
            assert band.path.startswith("M0 ")
            assert band.path.endswith("Z")
            assert all(0 <= y <= 400 for y in heights)
            assert all(0 <= x <= 1000 for x in ends)


def test_both_plots_have_one_scale(report):
    picture = picture_of(report)
    before, after = (chart.peak.percent for chart in picture.charts)
    ratio = report.timelines.after.peak_bytes / report.timelines.before.peak_bytes
    assert abs(after / before - ratio) < 1e-3


def test_long_steps_are_thinned_but_keep_their_peak():
    count = 5000
    blocks = tuple(Block(f"b{i}", "activations", 1000 + i % 7, i, i + 1) for i in range(count))
    spike = Block("spike", "workspace", 10**6, 3333, 3334)
    line = Timeline(tuple(f"s{i}" for i in range(count)), (1e-3,) * count, (*blocks, spike))
    chart = picture_of(Report("long", timelines=Timelines(None, line))).charts[0]
    assert len(chart.data["steps"]) == COLUMNS
    assert "s3333" in chart.data["steps"]
    assert chart.peak.step == "s3333"


def test_a_budget_far_above_is_not_drawn(report):
    far = replace(report, limits=Limits(10 * report.timelines.before.peak_bytes))
    assert picture_of(far).budget is None
    assert picture_of(report).budget is not None


def test_nothing_planned_is_no_picture(bare):
    assert picture_of(bare).charts == ()
