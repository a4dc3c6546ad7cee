import io

from rich.console import Console

from peakfold.cli import progress
from peakfold.cli.progress import Reporter


def test_a_pipe_gets_a_line_for_each_stage(monkeypatch):
    now = iter([10.0, 11.0, 16.0, 17.0, 18.0, 19.0])
    monkeypatch.setattr(progress.time, "monotonic", lambda: next(now))
    stream = io.StringIO()
    with Reporter(Console(file=stream), prefix="bert") as report:
        report("profile", 0.0)
        report("profile", 0.1, "10 of 100 operators")
        report("profile", 0.5, "50 of 100 operators")
        report("profile", 1.0)
        report("search", 0.0, "[b]state[/b]")
        report("search", 0.0, "once more")
    assert stream.getvalue().splitlines() == [
        "bert profile",
        "bert profile 50%: 50 of 100 operators",
        "bert search: [b]state[/b]",
        "bert search: once more",
    ]


def test_a_terminal_gets_bars_that_go_away():
    stream = io.StringIO()
    with Reporter(Console(file=stream, force_terminal=True, width=80)) as report:
        report("search", 0.25, "[b]state[/b]")
        report("search", 1.0, "done")
    assert "search" in stream.getvalue()
    assert stream.getvalue().endswith("\x1b[2K")
