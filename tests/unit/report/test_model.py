import pytest
from hypothesis import given
from hypothesis import strategies as st

from peakfold.report.model import KINDS, Block, Timeline


@st.composite
def timelines(draw):
    count = draw(st.integers(1, 12))
    blocks = []
    for index in range(draw(st.integers(0, 10))):
        start = draw(st.integers(0, count))
        end = draw(st.integers(start, count))
        blocks.append(Block(f"b{index}", draw(st.sampled_from(KINDS)), draw(st.integers(0, 99)), start, end))
    return Timeline(tuple(f"s{i}" for i in range(count)), (0.1,) * count, tuple(blocks))


@given(timelines())
def test_series_count_each_block_at_each_step(line):
    for step in range(len(line.steps)):
        live = [block for block in line.blocks if block.start <= step < block.end]
        assert line.totals[step] == sum(block.nbytes for block in live)
        for kind, series in line.series.items():
            assert series[step] == sum(block.nbytes for block in live if block.kind == kind)


@given(timelines())
def test_the_peak_is_the_most_and_its_parts_add_up(line):
    assert line.peak_bytes == max(line.totals) == line.totals[line.peak_step]
    assert sum(line.at_peak.values()) == line.peak_bytes


def test_an_empty_timeline_has_no_peak():
    line = Timeline((), (), ())
    assert (line.totals, line.peak_bytes, line.peak_step, dict(line.at_peak)) == ((), 0, 0, {})


@pytest.mark.parametrize(
    ("seconds", "block", "message"),
    [
        ((0.1,), Block("w", "batch", 1, 0, 3), "w at 0..3 of 1 steps"),
        ((0.1,), Block("w", "batch", 1, 1, 0), "w at 1..0 of 1 steps"),
        ((0.1, 0.2), Block("w", "batch", 1, 0, 1), "2 durations for 1 steps"),
    ],
)
def test_what_no_step_can_be_is_refused(seconds, block, message):
    with pytest.raises(ValueError, match=message):
        Timeline(("a",), seconds, (block,))
