import io
import os
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console
from tests.unit.report.synthetic import make_report

from peakfold.report.model import Eager, Equality, Estimate
from peakfold.report.terminal import render_estimate, render_live, render_many, render_terminal
from peakfold.report.words import equality

GOLDEN = Path(__file__).parents[2] / "golden" / "report"


class Ascii(io.StringIO):
    encoding = "ascii"


def printed(render, *given, stream=None, **options):
    stream = stream or io.StringIO()
    render(*given, Console(file=stream, width=80, **options))
    return stream.getvalue()


def test_the_text_is_the_golden_one():
    text, file = printed(render_terminal, make_report(layers=2)), GOLDEN / "terminal.txt"
    if os.environ.get("PEAKFOLD_ACCEPT"):
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    assert text == file.read_text()


@pytest.mark.parametrize("name", ["report", "bare", "bad"])
def test_a_pipe_gets_no_escapes_and_no_line_over_its_width(name, request):
    text = printed(render_terminal, request.getfixturevalue(name))
    assert "\x1b" not in text
    assert max(map(len, text.splitlines())) <= 80


def test_no_color_keeps_every_word(report):
    def words(**options):
        text = printed(render_terminal, report, **options)
        return "".join(part.partition("m")[2] if i else part for i, part in enumerate(text.split("\x1b[")))

    assert "\x1b[3" not in printed(render_terminal, report, force_terminal=True, no_color=True)
    assert words(force_terminal=True, no_color=True) == words()


def test_an_ascii_stream_gets_no_curve(report):
    text = printed(render_terminal, report, stream=Ascii())
    assert not set("▁▂▃▄▅▆▇█") & set(text)


def test_what_fails_says_so_in_words(bad):
    text = printed(render_terminal, bad)
    assert "NO Memory" in text
    assert "OVER 1.0 kB" in text
    assert "NO Time" in text
    assert "NO Equality NOT equal over 3 steps" in text


def test_predicted_figures_are_marked(report):
    text = printed(render_terminal, replace(report, eager=replace(report.eager, measured=False)))
    assert "51.4 MB *" in text
    assert "* predicted: eager was not run" in text


def test_names_are_no_markup(report):
    assert "with <no> effort & nothing else" in printed(render_terminal, report)
    odd = replace(report.live_at_peak[0], name="[red]not markup[/red]", why="[b]why[/b]")
    text = printed(render_live, [odd])
    assert "[red]not" in text
    assert "[b]why[/b]" in text


def test_an_estimate_says_its_own_error(report):
    kinds = {"parameters": 4_000_000, "activations": 6_000_000}
    estimate = Estimate("bert", "cpu", Eager(10_000_000, 1.5), kinds, 0.01, 0.1, "costs of this machine")
    text = printed(render_estimate, estimate)
    assert "10.0 MB +- 1.0%" in text
    assert "1.50 s +- 10%" in text
    assert "60%" in text


def test_several_reports_are_one_table(report, bad, bare):
    text = printed(render_many, [report, bad, bare])
    assert [word in text for word in ("every bit", "NO", "not checked")] == [True] * 3


def test_equality_without_float64_is_said():
    verdict = equality(Equality(True, 0.0, 0.0, "full", 3, True))
    expected = "every bit over 3 steps; error 0, not compared in float64: its program differs, batch full"
    assert verdict.text == expected
