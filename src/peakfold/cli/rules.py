"""``peakfold rules``: generate substitutions, check a rule file, show a rule."""

import json as text
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from peakfold.cli.output import Output
from peakfold.errors import NotEqualError, UsageError
from peakfold.files import is_stdout

if TYPE_CHECKING:
    from peakfold.graph.rule import Rule
    from peakfold.graph.substitution.checking import Checked, Finding

app = typer.Typer(
    help="Substitutions that are generated, tested and proved.", no_args_is_help=True, rich_markup_mode=None
)

OutputOf = Annotated[
    Path, typer.Option("-o", "--output", metavar="FILE|-", help="Where the rules go; - is stdout.")
]
OperatorsOf = Annotated[str, typer.Option("--operators", metavar="A,B", help="Names; all when left out.")]
GraphsOf = Annotated[
    int,
    typer.Option(
        "--graphs", help="Operators of a graph with several outputs at most; 0: none.", min=0, max=4
    ),
]
SeedOf = Annotated[int, typer.Option("--seed", help="Of all random values.", min=0)]
JsonOf = Annotated[
    str | None, typer.Option("--json", metavar="FILE|-", help="Write the figures as JSON; - is stdout.")
]


@app.command("generate")
def generate_command(
    output: OutputOf,
    operators: OperatorsOf = "",
    size: Annotated[int, typer.Option("--size", help="Operators of a term at most.", min=1, max=5)] = 4,
    graphs: GraphsOf = 0,
    seed: SeedOf = 0,
    json: JsonOf = None,
) -> None:
    """Enumerate terms, pair those that are equal, and keep a basis of proved rules."""
    from peakfold.graph.substitution.generate import Request, generate

    started = perf_counter()
    request = Request(_names(operators), size, seed, graphs)
    streams = Output(json, file=output)
    streams.check()
    with _kept(_part(output), streams):
        found = generate(request, _part(output), lambda line: _say(streams.progress.print, line))
    streams.write_file(found.text(request))
    seconds = perf_counter() - started
    streams.write_json(text.dumps({**found.figures, "seconds": round(seconds, 3)}) + "\n")
    _say(streams.tables.print, f"{len(found.rules)} rules written to {output}")


@app.command("derive")
def derive_command(
    output: OutputOf,
    operators: OperatorsOf = "",
    size: Annotated[int, typer.Option("--size", help="Operators of a term at most.", min=1, max=4)] = 3,
    most: Annotated[
        int, typer.Option("--most", metavar="N", help="Rules of one output to stop at.", min=0)
    ] = 1100,
    graphs: GraphsOf = 0,
    seed: SeedOf = 0,
    json: JsonOf = None,
) -> None:
    """Enumerate terms, and keep the equal pairs that the book derives, each with the rules that do it."""
    from peakfold.graph.substitution.book import book, redundant
    from peakfold.graph.substitution.deriving import DerivedRequest, derive

    started = perf_counter()
    request = DerivedRequest(_names(operators), size, seed, most, graphs)
    streams = Output(json, file=output)
    streams.check()
    with _kept(_part(output), streams):
        found = derive(
            request, book(), _part(output), lambda line: _say(streams.progress.print, line), redundant()
        )
    streams.write_file(found.text(request))
    seconds = perf_counter() - started
    streams.write_json(text.dumps({**found.figures, "seconds": round(seconds, 3)}) + "\n")
    _say(streams.tables.print, f"{len(found.rules)} rules written to {output}")


@app.command("reduce")
def reduce_command(output: OutputOf) -> None:
    """Find the laws and generated rules of the book that the others derive, each with those that do."""
    from peakfold.graph.substitution.book import found
    from peakfold.graph.substitution.making import reduced
    from peakfold.graph.substitution.reducing import redundant

    streams = Output(file=output)
    streams.check()
    rules = found()
    dropped = redundant(rules)
    streams.write_file(reduced(rules, dropped))
    _say(streams.tables.print, f"{len(dropped)} rules written to {output}")


@app.command("make")
def make_command(
    output: Annotated[
        Path, typer.Option("-o", "--output", metavar="FOLDER", help="Where the files of the book go.")
    ],
) -> None:
    """Make the whole book anew from the laws, byte for byte as it is stored; an interrupted run goes on."""
    from peakfold.graph.substitution.making import make_book

    streams = Output()
    try:
        make_book(output, progress=lambda line: _say(streams.progress.print, line))
    except OSError as reason:
        raise UsageError(
            stage="rules",
            what="the book cannot be written",
            where=str(output),
            expected="a folder that can be written, and room for it",
            got=_why(reason),
            hint="name a folder that is there, or can be made, or make room; what was made is gone on from",
        ) from reason
    _say(streams.tables.print, f"the files of the book were written to {output}")


def _names(operators: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in operators.split(",") if name.strip())


def _part(output: Path) -> Path | None:
    """Where a run is kept, so that an interrupted one goes on; nowhere where the rules go to stdout."""
    if is_stdout(output):
        return None
    return output.with_suffix(output.suffix + ".part")


@contextmanager
def _kept(part: Path | None, streams: Output) -> Iterator[None]:
    """Say, where a run is interrupted, what it goes on from."""
    try:
        yield
    except KeyboardInterrupt:
        if part is not None and part.exists():
            line = f"{part} keeps what was looked at: the same command goes on from there"
            _say(streams.progress.print, line)
        raise


@app.command("check")
def check_command(
    file: Annotated[
        Path | None, typer.Argument(metavar="FILE", help="Rules, or TASO's JSON; the book when left out.")
    ] = None,
    json: JsonOf = None,
    seed: Annotated[int, typer.Option("--seed", help="Of shapes and values.", min=0)] = 0,
) -> None:
    """Test and prove every rule anew; wrong ones are shown with the inputs on which they fail."""
    from peakfold.graph.substitution.book import book
    from peakfold.graph.substitution.checking import check

    started = perf_counter()
    rules = _read(file)
    streams = Output(json)
    streams.check()
    found = check(rules, seed, () if file is None else book())
    seconds = perf_counter() - started
    streams.write_json(text.dumps({**found.figures, "seconds": round(seconds, 3)}) + "\n")
    for finding in found.findings:
        for line in finding.lines:
            _say(streams.tables.print, line)
    figures = found.figures
    _say(streams.tables.print, ", ".join(f"{name} {figures[name]}" for name in _SHOWN))
    _require_sound(found)


_SHOWN = ("rules", "basis", "sound", "unsound", "undecided", "unlabelled")


@app.command("show")
def show_command(name: Annotated[str, typer.Argument(metavar="NAME", help="A rule of the book.")]) -> None:
    """Print a rule, what its proof is, and what each of its conditions excludes."""
    from peakfold.graph.substitution.checking import shown

    rules = {rule.name: rule for rule in _all()}
    if name not in rules:
        raise UsageError(
            stage="rules",
            what="the book has no such rule",
            expected=_near(name, tuple(rules)),
            got=name,
            hint="peakfold rules check lists what it finds; docs/rules.md has the book",
        )
    streams = Output()
    for line in shown(rules[name], known=tuple(rules.values())):
        _say(streams.tables.print, line)


@app.command("page")
def page_command(
    output: Annotated[
        Path, typer.Option("-o", "--output", metavar="FILE|-", help="Where the page goes; - is stdout.")
    ],
) -> None:
    """Write the rule book as Markdown, with counterexamples for what its conditions exclude."""
    from peakfold.graph.substitution.page import page

    streams = Output(file=output)
    streams.check()
    streams.write_file(page(lambda name: _say(streams.progress.print, name)))
    _say(streams.tables.print, f"the rule book was written to {output}")


def _all() -> tuple["Rule", ...]:
    from peakfold.graph.substitution.book import book, derived, taso

    return (*book(), *derived(), *taso())


def _near(name: str, names: tuple[str, ...]) -> str:
    from difflib import get_close_matches

    return ", ".join(get_close_matches(name, names, 5, 0.4)) or ", ".join(names[:5]) + " ..."


def _read(file: Path | None) -> tuple["Rule", ...]:
    from peakfold.graph.substitution.book import book, derived
    from peakfold.graph.substitution.reading import read_rules
    from peakfold.graph.substitution.taso import read_taso

    if file is None:
        return (*book(), *derived())
    try:
        content = file.read_text()
    except (OSError, UnicodeDecodeError) as reason:
        raise UsageError(
            stage="rules",
            what="the file cannot be read",
            where=str(file),
            expected="rules as text, or TASO's rules as JSON",
            got=_why(reason),
            hint="docs/rules.md has the format; the book is checked where no file is named",
        ) from reason
    try:
        return read_taso(content)[0] if file.suffix == ".json" else read_rules(content)
    except UsageError as reason:
        where = ", ".join(filter(None, (str(file), reason.where)))
        raise UsageError(
            reason.stage, reason.what, where, reason.expected, reason.got, reason.hint
        ) from reason


def _why(reason: OSError | UnicodeDecodeError) -> str:
    if isinstance(reason, UnicodeDecodeError):
        return f"bytes that are no UTF-8 from byte {reason.start} on"
    return reason.strerror or type(reason).__name__


_NAMED = 12


def _require_sound(found: "Checked") -> None:
    wrong: list[Finding] = [finding for finding in found.findings if finding.verdict.kind == "wrong"]
    if wrong:
        raise NotEqualError(
            stage="rules",
            what=f"{len(wrong)} of {len(found.findings)} rules are wrong",
            where=", ".join(finding.rule.name for finding in wrong[:_NAMED])
            + (f" and {len(wrong) - _NAMED} more" if len(wrong) > _NAMED else ""),
            expected="sides that are equal wherever both are legal",
            got=str(wrong[0].verdict.counterexample),
            hint="use them under the conditions that are offered, or not at all",
        )


def _say(show: object, line: str) -> None:
    assert callable(show)
    show(Text(line), soft_wrap=True)
