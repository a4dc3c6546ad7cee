"""The generator: enumerate, fingerprint, pair, prune, test, prove."""

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Final

import numpy as np

from peakfold.errors import CacheError
from peakfold.graph.rule import Rule, parse_rules, print_rules
from peakfold.graph.substitution.basis import Basis, Counts, named
from peakfold.graph.substitution.book import laws
from peakfold.graph.substitution.catalogue import chosen
from peakfold.graph.substitution.enumeration import Enumeration, Level

MOST_PAIRS: Final = 40_000
"""Pairs of a size that are looked at; of more, as many at even distances."""

_HEADER = "Substitutions by peakfold rules generate"


@dataclass(frozen=True)
class Request:
    """What to generate.

    Attributes:
        operators: names; all where none are given.
        size: operators of a term at most.
        seed: of all random values.
    """

    operators: tuple[str, ...] = ()
    size: int = 4
    seed: int = 0


@dataclass(frozen=True)
class Generated:
    """Rules, and how they came about.

    Attributes:
        rules: the basis.
        levels: terms and classes of each size.
        counts: pairs after each prune.
    """

    rules: tuple[Rule, ...]
    levels: tuple[Level, ...]
    counts: Counts

    @property
    def figures(self) -> dict[str, object]:
        """What was counted."""
        return {
            "rules": self.counts.kept,
            "basis": len(self.rules),
            "levels": [asdict(level) for level in self.levels],
            "prunes": asdict(self.counts),
        }

    def text(self, request: Request) -> str:
        """Return the rule file, with what was counted as comments."""
        lines = [
            _HEADER,
            f"operators {','.join(request.operators) or 'all'}, size {request.size}, seed {request.seed}",
        ]
        lines += [
            f"size {level.size}: {level.terms} terms, {level.legal} legal, "
            f"{level.classes} classes, {level.pairs} pairs"
            for level in self.levels
        ]
        lines.append(", ".join(f"{name} {count}" for name, count in asdict(self.counts).items()))
        return print_rules(self.rules, "\n".join(lines))


Progress = Callable[[str], None]


@dataclass
class _Checkpoint:
    """What is kept beside the output while a run is on, so that an interrupted one goes on.

    Attributes:
        path: of the file; None to keep nothing.
        request: to whose run it belongs.
        size: up to which all pairs were looked at.
        basis: the rules so far.
    """

    path: Path | None
    request: Request
    size: int = 0
    levels: list[Level] = field(default_factory=list)

    def load(self, basis: Basis) -> None:
        """Take up a run of the same request, if one was interrupted."""
        if self.path is None or not self.path.exists():
            return
        try:
            kept = json.loads(self.path.read_text())
            if kept["request"] != json.loads(json.dumps(asdict(self.request))):
                return
            rules = parse_rules(kept["rules"])
            basis.counts = Counts(**kept["counts"])
            self.size = int(kept["size"])
        except (OSError, ValueError, KeyError, TypeError) as reason:
            raise CacheError(
                stage="rules",
                what="the interrupted run cannot be taken up",
                where=str(self.path),
                got=f"{type(reason).__name__}: {reason}",
                hint="delete the file to start anew",
            ) from reason
        basis.take_up(rules)

    def save(self, basis: Basis, size: int) -> None:
        """Keep what was found up to a size."""
        if self.path is None:
            return
        kept = {
            "request": asdict(self.request),
            "size": size,
            "counts": asdict(basis.counts),
            "rules": print_rules(named(basis.rules)),
        }
        aside = self.path.with_suffix(self.path.suffix + ".new")
        aside.write_text(json.dumps(kept))
        aside.replace(self.path)

    def drop(self) -> None:
        """Forget the run, which has ended."""
        if self.path is not None:
            self.path.unlink(missing_ok=True)


def generate(
    request: Request, checkpoint: Path | None = None, progress: Progress = lambda line: None
) -> Generated:
    """Generate, test and prove substitutions; the same request gives the same rules, bit by bit.

    Args:
        request: what to generate.
        checkpoint: file that keeps the run, so that it can be interrupted.
        progress: is told what is done.

    Raises:
        UsageError: an operator is not known.
        CacheError: the checkpoint cannot be read.
    """
    terms = Enumeration(chosen(request.operators), request.seed)
    basis = Basis(seed=request.seed)
    basis.know(laws())
    kept = _Checkpoint(checkpoint, request)
    kept.load(basis)
    looked_at = 0
    for size in range(1, request.size + 1):
        level = terms.grow(size == request.size)
        progress(f"size {size}: {level.terms} terms, {level.classes} classes, {level.pairs} pairs")
        stop = looked_at + level.pairs
        if size > kept.size:
            _look(terms, basis, looked_at, stop, progress)
            kept.save(basis, size)
        looked_at = stop
    progress(f"{len(basis.rules)} rules, of which the others derive some")
    basis.minimize(laws())
    kept.drop()
    rules = named(basis.rules, (law.name for law in laws()))
    return Generated(rules, tuple(terms.levels), basis.counts)


def _look(terms: Enumeration, basis: Basis, start: int, stop: int, progress: Progress) -> None:
    count = min(stop - start, MOST_PAIRS)
    for number, row in enumerate(np.linspace(start, stop - 1, count).astype(np.int64)):
        kind, left, right, inner, c, under = map(int, terms.arrays.pairs[row])
        if under < 0:
            continue
        basis.consider(terms.applied(kind, left, right, inner, under), terms.term(c))
        if number % 200 == 199:
            progress(f"{number + 1} of {count} pairs: {len(basis.rules)} rules")
