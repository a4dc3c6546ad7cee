"""Making the rule book anew: all of its files but the laws, in the order in which one needs another."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from peakfold.files import write_whole
from peakfold.graph.rule import Rule, parse_rules, print_rules
from peakfold.graph.substitution.book import CORE, DERIVED, GENERATED, GRAPHS, REDUNDANT, basis, joined, laws
from peakfold.graph.substitution.deriving import DerivedRequest, derive
from peakfold.graph.substitution.generate import Request, generate
from peakfold.graph.substitution.reducing import redundant

Progress = Callable[[str], None]

TEN = ("matmul", "add", "mul", "concat", "relu", "transpose", "conv", "sum", "scale", "neg")
"""Operators of which terms of three are looked at."""


@dataclass(frozen=True)
class Parts:
    """What each file of the book is made of; those of the stored book where nothing else is said.

    Attributes:
        generated: terms of all operators.
        core: larger terms of few.
        derived: terms that the basis derives.
        graphs: graphs of several outputs that it derives.
    """

    generated: Request = field(default=Request((), 2))
    core: Request = field(default=Request(TEN, 3))
    derived: DerivedRequest = field(default=DerivedRequest())
    graphs: DerivedRequest = field(
        default=DerivedRequest(("matmul", "add", "concat", "split", "relu"), most=0, graphs=3)
    )


def make_book(folder: Path, parts: Parts = Parts(), progress: Progress = lambda line: None) -> None:
    """Write the files of the book into a folder; the same parts give the same files, byte for byte.

    Args:
        folder: where they go. Files that are there are kept: an interrupted run goes on.
        parts: what each is made of.
        progress: is told what is done.
    """
    folder.mkdir(parents=True, exist_ok=True)

    def made(name: str, text: Callable[[Path], str]) -> tuple[Rule, ...]:
        file = folder / name
        if not file.exists():
            write_whole({file: text(folder / f"{name}.part").encode()})
        progress(f"{file} is made")
        return parse_rules(file.read_text())

    first = made(GENERATED, lambda part: _generated(parts.generated, part, progress))
    second = made(CORE, lambda part: _generated(parts.core, part, progress))
    found = laws() + joined(laws(), first, second)
    dropped = made(REDUNDANT, lambda part: reduced(found, redundant(found)))
    kept = basis(found, dropped)
    made(DERIVED, lambda part: derive(parts.derived, kept, part, progress, dropped).text(parts.derived))
    made(GRAPHS, lambda part: derive(parts.graphs, kept, part, progress, dropped).text(parts.graphs))


def _generated(request: Request, part: Path, progress: Progress) -> str:
    return generate(request, part, progress).text(request)


def reduced(found: tuple[Rule, ...], dropped: tuple[Rule, ...]) -> str:
    """Return the rule file of those that the others derive."""
    return print_rules(dropped, f"Of {len(found)} laws and generated rules those that the others derive")
