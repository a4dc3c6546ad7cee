"""Figures of the rule book and of its generator.

``python -m benchmarks.rules [--terms core:4] [--graphs all:3] [--wrong N]`` prints JSON.
"""

import argparse
import json
import resource
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from itertools import islice

import numpy as np

from benchmarks.wrong import wrong_rules
from peakfold.graph.rule import LEVELS, Rule
from peakfold.graph.substitution.basis import Basis, modulo_axis
from peakfold.graph.substitution.book import CORE as CORE_FILE
from peakfold.graph.substitution.book import (
    DERIVED,
    GENERATED,
    GRAPHS,
    LAWS,
    REDUNDANT,
    book,
    derived,
    taso,
    text_of,
)
from peakfold.graph.substitution.catalogue import CORE, Instance, chosen
from peakfold.graph.substitution.derivation import PROVED, derivation, is_derived
from peakfold.graph.substitution.enumeration import Enumeration
from peakfold.graph.substitution.graphs import Combiner
from peakfold.graph.substitution.proving import prove
from peakfold.graph.substitution.testing import examine
from peakfold.pipeline.machine import environment


def _operators(named: str) -> tuple[tuple[Instance, ...], int]:
    """Return the operators and the size of ``all:4``, ``core:5`` or ``add,mul:3``."""
    operators, _, size = named.rpartition(":")
    names = () if operators == "all" else CORE if operators == "core" else tuple(operators.split(","))
    return chosen(names), int(size)


def terms(named: str, seed: int) -> dict[str, object]:
    """Return how many terms there are of each size, and how fast they are made."""
    instances, size = _operators(named)
    Enumeration(instances, seed).grow(False)  # compiles
    start = time.process_time()
    made = Enumeration(instances, seed)
    for level in range(1, size + 1):
        made.grow(level == size)
    seconds = time.process_time() - start
    every = sum(level.terms for level in made.levels)
    return {
        "operators": named,
        "operator_types": len({instance.op for instance in instances}),
        "levels": [asdict(level) for level in made.levels],
        "terms": every,
        "cpu_seconds": round(seconds, 2),
        "terms_per_second": round(every / seconds),
        "most_memory_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
    }


def graphs(named: str, seed: int) -> dict[str, object]:
    """Return how many graphs with several outputs there are, and how fast they are made."""
    instances, size = _operators(named)
    start = time.process_time()
    made = Enumeration(instances, seed)
    for _ in range(1, size):
        made.grow(False)
    found = Combiner(made, size).graphs(0)
    seconds = time.process_time() - start
    return {
        "operators": named,
        **found.figures,
        "cpu_seconds": round(seconds, 2),
        "graphs_per_second": round(found.made / seconds),
    }


def closed(named: str, count: int, seed: int) -> dict[str, object]:
    """Return how many of so many pairs of the largest terms, at even distances, the book derives."""
    instances, size = _operators(named)
    made, basis = Enumeration(instances, seed), Basis(seed=seed, thorough=True)
    for level in range(1, size + 1):
        made.grow(level == size)
    pairs = made.levels[-1].pairs
    basis.know(book())
    start = time.process_time()
    for row in np.linspace(made.pairs - pairs, made.pairs - 1, min(count, pairs)).astype(int):
        pair = made.pair(int(row))
        if pair is not None:
            basis.consider(*pair)
    seconds = time.process_time() - start
    return {
        "operators": named,
        "pairs": pairs,
        "looked_at": basis.counts.pairs,
        "derived": basis.counts.pairs - basis.counts.underived,
        "derived_by_a_longer_search": basis.counts.late,
        "refuted": basis.counts.wrong,
        "new": basis.counts.kept,
        "cpu_seconds": round(seconds, 2),
    }


def of_book() -> dict[str, object]:
    """Return what is in the book, by certificate; of derived rules each is derived anew."""
    basis, further = book(), derived()
    names = {level: name for name, level in LEVELS.items()}
    levels = Counter(names.get(rule.level, "none") for rule in (*basis, *further))
    proved = sum(rule.level in PROVED for rule in basis)
    axioms = {rule.name: rule for rule in basis}
    return {
        "basis": len(basis),
        "basis_modulo_axis": modulo_axis(basis),
        "basis_proved_share": round(proved / len(basis), 4),
        "derived": len(further),
        "derived_anew": sum(is_derived(rule, axioms) for rule in further),
        "by_certificate": dict(levels),
        "proved_share": round((proved + len(further)) / (len(basis) + len(further)), 4),
        "bytes": sum(len(text_of(name)) for name in (LAWS, GENERATED, CORE_FILE, REDUNDANT, DERIVED, GRAPHS)),
    }


def of_taso() -> dict[str, object]:
    """Return which of TASO's rules are rejected, and whether the book derives the others."""
    axioms = book()
    wrong = [rule.name for rule in taso() if examine(rule).kind == "wrong"]
    sound = [rule for rule in taso() if rule.name not in wrong]
    sources = {rule.name: derivation(rule, axioms) for rule in sound}
    used = {name for names in sources.values() for name in names or ()}
    return {
        "rules": len(taso()),
        "rejected_with_counterexample": wrong,
        "sound": len(sound),
        "derived_from_book": sum(names is not None for names in sources.values()),
        "proved_by_normal_form": sum(prove(rule).holds for rule in sound),
        "rules_of_the_book_that_this_takes": len(used),
    }


def of_wrong(count: int, seed: int) -> dict[str, object]:
    """Return how many of so many rules made wrong are refuted by the test, and by the prover not proved."""
    sound: list[Rule] = [rule for rule in taso() if "conv" not in str(rule) and "split" not in str(rule)]
    made = list(islice(wrong_rules(sound, seed), count))
    return {
        "made": len(made),
        "refuted": sum(examine(rule).kind == "wrong" for rule in made),
        "proved": sum(prove(rule).holds for rule in made),
    }


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the figures as JSON."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--terms", nargs="*", default=["all:3", "core:4"], metavar="OPERATORS:SIZE")
    parser.add_argument("--graphs", nargs="*", default=["all:3"], metavar="OPERATORS:SIZE")
    parser.add_argument(
        "--closed", nargs="*", default=[], metavar="OPERATORS:SIZE", help="pairs that the book derives"
    )
    parser.add_argument("--pairs", type=int, default=200, help="pairs that are looked at for --closed")
    parser.add_argument("--wrong", type=int, default=100, help="rules made wrong")
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args(arguments)
    result = {
        "environment": environment(asked.seed),
        "terms": [terms(named, asked.seed) for named in asked.terms],
        "graphs": [graphs(named, asked.seed) for named in asked.graphs],
        "closed": [closed(named, asked.pairs, asked.seed) for named in asked.closed],
        "book": of_book(),
        "taso": of_taso(),
        "wrong": of_wrong(asked.wrong, asked.seed),
    }
    json.dump(result, sys.stdout, indent=1)
    print()


if __name__ == "__main__":
    main()
