import io

from rich.console import Console

from peakfold.bench.rows import Results, Row
from peakfold.bench.table import render

ROWS = (
    Row("bert", "eager", "", 387_000_000, 1.0, 1.0, 1.0, equal=True, max_error=0.0),
    Row("bert", "accumulate-8+checkpoint-1", "", 100_000_000, 1.0, 0.26, 1.3, equal=True, max_error=1.2e-7),
    Row("bert", "compile-0.5", error="Failed: [bold] stride"),
    Row("bert", "peakfold", "as checkpoint-1", 99_800_000, 1.1, 0.258, 1.085, 99_800_000, 1.09, 1.1, 91, 5.0),
    Row("unet", "", error="the process was ended by SIGKILL"),
)


def shown(results):
    stream = io.StringIO()
    render(results, Console(file=stream, width=80))
    return stream.getvalue()


def test_every_variant_fits_a_terminal():
    text = shown(Results(ROWS))
    for words in (
        ["eager", "387.0 MB", "1.00x", "1.00x", "-", "every bit"],
        ["accumulate-8+checkpoint-1", "100.0 MB", "0.26x", "1.30x", "-", "to 1.2e-07"],
        ["peakfold as checkpoint-1", "99.8 MB", "0.26x", "1.08x", "1.09x"],
    ):
        (line,) = (line for line in text.splitlines() if words[0] in line and words[1] in line)
        assert all(word in line for word in words), line


def test_failures_are_told_whole():
    text = shown(Results(ROWS))
    assert "compile-0.5: Failed: [bold] stride" in text
    assert "unet: the process was ended by SIGKILL" in text


def test_an_interrupt_is_told():
    assert "interrupted" in shown(Results(ROWS, complete=False))
    assert "interrupted" not in shown(Results(ROWS))


def test_programs_in_arenas_are_told():
    told = "bert: memory and time over eager, peakfold in arenas"
    assert told in shown(Results(ROWS, settings={"arena": True}))
    assert "arenas" not in shown(Results(ROWS, settings={"arena": False}))


def test_nothing():
    assert shown(Results(())) == ""
