"""The arena in a report: figures, words, the drawing, and all faces."""

from dataclasses import replace

import pytest
from tests.unit.report.synthetic import make_report
from tests.unit.report.test_html import parsed

from peakfold.plan.memory.host import Move
from peakfold.plan.memory.layout import lay_out
from peakfold.plan.memory.trace import Request, Trace
from peakfold.report.arena import arena_of
from peakfold.report.arena_chart import MOST, drawing_of
from peakfold.report.html import render_html
from peakfold.report.json import from_json, to_json
from peakfold.report.model import Texts
from peakfold.report.words import arena_verdict

TRACE = Trace(
    (
        Request(100, 0, 4, 0, "x", "activations", 1),
        Request(64, 1, 3, 0, "<y>", "workspace", 0),
        Request(200, 4, 6, 1, "z", "gradients", 2),
        Request(4, 5, None, 1, "loss", "activations"),
    ),
    ("a", "b", "c"),
    7,
)


MOVES = (
    Move("layers.0.<gelu>", 600, 0, "b", "b", "c", "c"),
    Move("layers.1.gelu", 400, 600, "b", "c", "c", ""),
)


@pytest.fixture
def arena():
    return arena_of(lay_out(TRACE), budget=512, host_bytes=1000, moves=MOVES, device="cuda", runs=True)


def test_figures(arena):
    assert (arena.nbytes, arena.lower_bound_bytes, arena.kept_bytes, arena.requests) == (320, 320, 64, 4)
    assert (arena.gap, arena.pooled_bytes, arena.copies) == (0.0, 1320, 0)
    assert [(part.place, part.nbytes, part.transfers) for part in arena.parts] == [
        ("cuda", 320, 4),
        ("host, pinned", 1000, 4),
    ]
    assert [(b.name, b.offset % 64, b.start, b.end) for b in arena.blocks] == [
        ("x", 0, 0, 1.5),
        ("<y>", 0, 0, 1),
        ("z", 0, 1.5, 3),
        ("loss", 0, 1.5, 3),
    ]
    assert [pool.saved_bytes for pool in arena.pools] == [
        pool.reserved_bytes - arena.nbytes for pool in arena.pools
    ]


def test_words(arena):
    assert arena_verdict(replace(arena, served=4, ordinary=0)).text == (
        "320 B, 0.00 % above the bound; within 512 B; 4 allocations served, 0 by the ordinary allocator"
    )
    assert arena_verdict(replace(arena, served=3, ordinary=1)).mood == "bad"
    assert arena_verdict(replace(arena, budget_bytes=256)).mood == "bad"
    assert arena_verdict(replace(arena, runs=False)).text.endswith("planned, not run")


def test_a_rectangle_a_buffer(arena):
    drawing = drawing_of(arena)
    assert {area.kind: area.path.count("Z") for area in drawing.areas} == {
        "activations": 2,
        "gradients": 1,
        "workspace": 1,
    }
    assert drawing.bound == 100.0
    assert drawing.areas[0].path.startswith("M")
    assert [area.narrow for area in drawing.areas] == [""] * 3


def test_narrow_rectangles_keep_their_colour():
    steps = tuple(f"s{i}" for i in range(1_000))
    long = Request(640, 0, 4_000, 0, "long", "activations", 999)
    brief = tuple(Request(64, i, i + 1, i, f"b{i}", "activations", i) for i in (5, 70))
    shown = replace(make_report(layers=1), arena=arena_of(lay_out(Trace((long, *brief), steps, 4_001))))
    [area] = drawing_of(shown.arena).areas
    assert (area.path.count("Z"), area.narrow.count("Z")) == (1, 2)
    page = render_html(shown)
    drawn = 'd="{}" fill="var(--activations)" stroke="var(--{})"'
    assert drawn.format(area.path, "card") in page
    assert drawn.format(area.narrow, "activations") in page


def test_many_buffers_are_drawn_up_to_a_limit():
    many = Trace(
        tuple(Request(64, i, i + 1, 0, "x", "workspace", 0) for i in range(MOST + 7)), ("a",), MOST + 8
    )
    drawing = drawing_of(arena_of(lay_out(many)))
    assert (drawing.hidden, drawing.areas[0].narrow.count("Z")) == (7, MOST)
    page = render_html(replace(make_report(layers=1), arena=arena_of(lay_out(many))))
    assert "7 of the smallest buffers are not drawn" in page
    assert len(page) < 1_000_000


def test_the_page_and_json_have_it(arena):
    report = replace(make_report(layers=2), arena=replace(arena, unplanned=("64 bytes before <y>",)))
    page = render_html(report)
    parsed(page)
    assert "64 bytes before &lt;y&gt;" in page
    assert "2 moved to the host and back, 1.0 kB together" in page
    assert page.count('data-label="Fetched before"') == 2
    assert from_json(to_json(report)) == replace(report, texts=Texts())


def test_a_program_without_allocations():
    found = arena_of(lay_out(Trace((), ("a",), 1)))
    assert (found.nbytes, found.gap, found.blocks) == (0, 0.0, ())
    parsed(render_html(replace(make_report(layers=1), arena=found)))
