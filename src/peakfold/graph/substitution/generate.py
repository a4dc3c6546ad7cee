"""The generator: enumerate, fingerprint, pair, prune, test, prove."""

from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

import numpy as np

from peakfold.graph.rule import Rule, parse_rules, print_rules
from peakfold.graph.substitution.basis import Basis, Counts, named
from peakfold.graph.substitution.book import laws
from peakfold.graph.substitution.catalogue import chosen
from peakfold.graph.substitution.checkpoint import Checkpoint
from peakfold.graph.substitution.enumeration import Enumeration, Level
from peakfold.graph.substitution.graphs import Combiner, Graphs, Sides

MOST_PAIRS: Final = 40_000
"""Pairs of a size that are looked at; of more, as many at even distances."""
MOST_GRAPHS: Final = 2_000
"""Pairs of graphs with several outputs that are looked at, likewise."""

_HEADER = "Substitutions by peakfold rules generate"


@dataclass(frozen=True)
class Request:
    """What to generate.

    Attributes:
        operators: names; all where none are given.
        size: operators of a term at most.
        seed: of all random values.
        graphs: operators of a graph with several outputs at most, no more than ``size``; 0 for none.
    """

    operators: tuple[str, ...] = ()
    size: int = 4
    seed: int = 0
    graphs: int = 0


@dataclass(frozen=True)
class Generated:
    """Rules, and how they came about.

    Attributes:
        rules: the basis.
        levels: terms and classes of each size.
        counts: pairs after each prune.
        graphs: with several outputs, if they were asked for.
    """

    rules: tuple[Rule, ...]
    levels: tuple[Level, ...]
    counts: Counts
    graphs: Graphs | None = None

    @property
    def figures(self) -> dict[str, object]:
        """What was counted."""
        return {
            "rules": self.counts.kept,
            "basis": len(self.rules),
            "levels": [asdict(level) for level in self.levels],
            "prunes": asdict(self.counts),
            "graphs": self.graphs.figures if self.graphs else None,
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
        if self.graphs:
            counts = ", ".join(f"{name} {count}" for name, count in self.graphs.figures.items())
            lines.append(f"several outputs: {counts}")
        lines.append(", ".join(f"{name} {count}" for name, count in asdict(self.counts).items() if count))
        return print_rules(self.rules, "\n".join(lines))


Progress = Callable[[str], None]


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
    run = _Run(terms, basis, Checkpoint(checkpoint, request), progress)
    run.take_up()
    stop = 0
    for size in range(1, request.size + 1):
        level = terms.grow(size == request.size)
        progress(f"size {size}: {level.terms} terms, {level.classes} classes, {level.pairs} pairs")
        run.look(stop, stop + level.pairs)
        stop += level.pairs
    graphs = None
    if request.graphs > 1:
        graphs = Combiner(terms, min(request.graphs, request.size)).graphs(MOST_GRAPHS)
        progress(f"{graphs.graphs} graphs with several outputs, {graphs.apart} pairs")
        run.look_at_graphs(graphs.sides)
    progress(f"{len(basis.rules)} rules, of which the others derive some")
    basis.minimize(laws())
    run.checkpoint.drop()
    rules = named(basis.rules, (law.name for law in laws()))
    return Generated(rules, tuple(terms.levels), basis.counts, graphs)


_EACH: Final = 200
"""Pairs after which the run is kept."""


@dataclass
class _Run:
    """Looks at pairs in turn, and at none twice.

    Attributes:
        looked: number of pairs that were looked at, in this run and in the one that it takes up.
        passed: number of pairs that this run came by.
    """

    terms: Enumeration
    basis: Basis
    checkpoint: Checkpoint
    progress: Progress
    looked: int = 0
    passed: int = 0

    def take_up(self) -> None:
        """Go on where an interrupted run of the same request ended."""
        kept = self.checkpoint.load()
        if not kept:
            return
        try:
            rules, counts = parse_rules(str(kept["rules"])), kept["counts"]
            assert isinstance(counts, dict)
            self.basis.counts = Counts(**counts)
            self.looked = int(str(kept["looked"]))
        except (KeyError, TypeError, ValueError, AssertionError) as reason:
            raise self.checkpoint.broken(reason) from reason
        self.basis.take_up(rules)

    def look(self, start: int, stop: int) -> None:
        """Consider the pairs of one size, or as many as are looked at, at even distances."""
        count = min(stop - start, MOST_PAIRS)
        for number, row in enumerate(np.linspace(start, stop - 1, count).astype(np.int64), 1):
            self.passed += 1
            if self.passed <= self.looked:
                continue
            pair = self.terms.pair(int(row))
            if pair is not None:
                self.basis.consider(*pair)
            self.looked = self.passed
            if number % _EACH == 0:
                self._keep()
                self.progress(f"{number} of {count} pairs: {len(self.basis.rules)} rules")
        self._keep()

    def look_at_graphs(self, sides: tuple[Sides, ...]) -> None:
        """Consider pairs of graphs with several outputs."""
        for left, right in sides:
            self.passed += 1
            if self.passed > self.looked:
                self.basis.consider_graphs(left, right)
                self.looked = self.passed
                if self.looked % _EACH == 0:
                    self._keep()

    def _keep(self) -> None:
        self.checkpoint.save(
            looked=self.looked,
            counts=asdict(self.basis.counts),
            rules=print_rules(named(self.basis.rules)),
        )
