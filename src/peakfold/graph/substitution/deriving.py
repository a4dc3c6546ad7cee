"""Rules that the book derives, each with the names of those that derive it."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from math import gcd
from pathlib import Path
from typing import Final

from peakfold.graph.rule import AXIOMS, Condition, Rule, Term, parse_rules, print_rules, variables
from peakfold.graph.substitution.basis import convolves_itself, named, oriented, same_root, shares
from peakfold.graph.substitution.catalogue import chosen
from peakfold.graph.substitution.checkpoint import Checkpoint
from peakfold.graph.substitution.derivation import derivation
from peakfold.graph.substitution.enumeration import Enumeration
from peakfold.graph.substitution.graphs import Combiner
from peakfold.graph.substitution.rewriting import generalized
from peakfold.graph.substitution.sampling import with_conditions
from peakfold.graph.substitution.testing import examine

_ROUNDS, _NODES, _SHAPES = 2, 120, 8
_LEAST_SOURCES: Final = 2
_OF_GRAPHS: Final = (3, 250)
_EACH: Final = 20
MOST_GRAPHS: Final = 2_000
"""Pairs of graphs with several outputs that are looked at; of more, as many at even distances."""


@dataclass(frozen=True)
class DerivedRequest:
    """What to derive.

    Attributes:
        operators: names; all where none are given.
        size: operators of a term at most.
        seed: of all random values.
        most: rules of one output to stop at.
        graphs: operators of a graph with several outputs at most, no more than ``size``; 0 for none.
    """

    operators: tuple[str, ...] = ()
    size: int = 3
    seed: int = 0
    most: int = 1100
    graphs: int = 0


@dataclass(frozen=True)
class Derived:
    """Rules with the axioms that derive them.

    Attributes:
        rules: each names at least two others, none of which can be left out.
        pairs: of equal terms that there were.
        looked: pairs that were looked at.
        instances: pairs that one rule derives on its own; they are not kept.
        open: pairs that were not derived for all shapes.
        joint: pairs of graphs whose outputs share operators that were looked at.
    """

    rules: tuple[Rule, ...]
    pairs: int
    looked: int
    instances: int
    open: int
    joint: int = 0

    @property
    def figures(self) -> dict[str, object]:
        """What was counted."""
        return {"derived": len(self.rules), "pairs": self.pairs, "looked_at": self.looked,
                "instances": self.instances, "open": self.open, "joint": self.joint}  # fmt: skip

    def text(self, request: DerivedRequest) -> str:
        """Return the rule file, with what was counted as comments."""
        lines = (
            "Substitutions by peakfold rules derive: each from the rules of the book that it names",
            f"operators {','.join(request.operators) or 'all'}, size {request.size}, seed {request.seed}",
            f"{self.pairs} pairs, {self.looked} looked at, {self.instances} instances of one rule, "
            f"{self.open} not derived for all shapes",
            *([f"graphs of {request.graphs}: {self.joint} pairs whose outputs share"] if self.joint else []),
        )
        return print_rules(self.rules, "\n".join(lines))


def derive(
    request: DerivedRequest,
    axioms: tuple[Rule, ...],
    checkpoint: Path | None = None,
    progress: Callable[[str], None] = lambda line: None,
    dropped: tuple[Rule, ...] = (),
) -> Derived:
    """Derive pairs of equal terms from rules, until there are enough; the same request gives the same rules.

    Args:
        request: which terms, and how many rules.
        axioms: rules that are proved.
        checkpoint: file that keeps the run, so that it can be interrupted.
        progress: is told what is done.
        dropped: rules that follow from them and are known already; neither they nor their names come again.

    Raises:
        UsageError: an operator is not known.
        CacheError: the checkpoint cannot be read.
    """
    terms = Enumeration(chosen(request.operators), request.seed)
    for size in range(1, request.size + 1):
        terms.grow(size == request.size)
    known = frozenset((rule.lhs, rule.rhs) for rule in dropped)
    run = _Run(terms, axioms, known, Checkpoint(checkpoint, request))
    run.take_up()
    for number, row in enumerate(_strides(terms.pairs)):
        if number < run.looked:
            continue
        if len(run.rules) >= request.most:
            break
        run.look(row)
        if run.looked % _EACH == 0:
            run.keep()
            progress(f"{run.looked} of {terms.pairs} pairs: {len(run.rules)} rules")
    joint = 0
    if request.graphs > 1:
        for sides in Combiner(terms, min(request.graphs, request.size)).graphs(MOST_GRAPHS).sides:
            joint += run.look_at_graphs(*sides)
        progress(f"{joint} pairs of graphs: {len(run.rules)} rules")
    run.checkpoint.drop()
    taken = [rule.name for rule in (*axioms, *dropped)]
    return Derived(named(run.rules, taken), terms.pairs, run.looked, run.instances, run.open, joint)


def _strides(count: int) -> Iterator[int]:
    """Yield the numbers below a count, far from one another at first."""
    step = max(1, int(count * 0.618))
    while gcd(step, count) > 1:
        step += 1
    for number in range(count):
        yield number * step % count


@dataclass
class _Run:
    terms: Enumeration
    axioms: tuple[Rule, ...]
    known: frozenset[tuple[tuple[Term, ...], tuple[Term, ...]]]
    checkpoint: Checkpoint
    rules: list[Rule] = field(default_factory=list)
    looked: int = 0
    instances: int = 0
    open: int = 0

    def take_up(self) -> None:
        kept = self.checkpoint.load()
        if not kept:
            return
        try:
            self.rules = list(parse_rules(str(kept["rules"])))
            self.looked, self.instances, self.open = (
                int(str(kept[name])) for name in ("looked", "instances", "open")
            )
        except (KeyError, ValueError) as reason:
            raise self.checkpoint.broken(reason) from reason

    def keep(self) -> None:
        rules = print_rules(named(self.rules))
        self.checkpoint.save(rules=rules, looked=self.looked, instances=self.instances, open=self.open)

    def look(self, row: int) -> None:
        self.looked += 1
        pair = self.terms.pair(row)
        if pair is None or pair[0] == pair[1] or same_root(*pair) or convolves_itself(pair):
            return
        rule = oriented(*pair)
        if (rule.lhs, rule.rhs) in self.known:
            return
        sources = derivation(rule, self.axioms, _ROUNDS, _NODES)
        if sources is None:
            self.open += 1
        elif len(sources) < _LEAST_SOURCES:
            self.instances += 1
        elif examine(rule, self.terms.seed, _SHAPES).kind == "holds":
            self.rules.append(replace(rule, level=AXIOMS, sources=sources))
        else:
            self.open += 1

    def look_at_graphs(self, left: tuple[Term, ...], right: tuple[Term, ...]) -> bool:
        """Look at two equal graphs with several outputs; return whether outputs share operators on a side."""
        if not (shares(left) or shares(right)) or convolves_itself(left + right):
            return False
        rule = generalized(Rule("r", left, right))
        for found in (rule, with_conditions(rule, Condition("rank", (variables(rule.lhs)[0], 2)))):
            sources = derivation(found, self.axioms, *_OF_GRAPHS)
            if sources and examine(found, self.terms.seed, _SHAPES).kind == "holds":
                self.rules.append(replace(found, level=AXIOMS, sources=sources))
                break
        return True
