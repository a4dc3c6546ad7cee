"""Graphs with several outputs, against all of them by brute force."""

from collections import Counter
from itertools import combinations, permutations

import pytest

from peakfold.graph.rule import Apply, Rule, Term, Var, subterms
from peakfold.graph.substitution.basis import shares
from peakfold.graph.substitution.catalogue import chosen
from peakfold.graph.substitution.enumeration import Enumeration
from peakfold.graph.substitution.generate import Request, generate
from peakfold.graph.substitution.graphs import Combiner, Graphs
from peakfold.graph.substitution.rewriting import instance, order
from peakfold.graph.substitution.testing import examine

INPUTS = [Var(name) for name in "abc"]


def _found(operators: tuple[str, ...], size: int, keep: int = 200) -> Graphs:
    terms = Enumeration(chosen(operators), 0)
    for _ in range(1, size):
        terms.grow(False)
    return Combiner(terms, size).graphs(keep)


def _sums(terms: list[Term]) -> list[Term]:
    pairs = [(x, y) for x in terms for y in terms if order(x) <= order(y)]
    return [Apply("add", pair) for pair in pairs] + [Apply("neg", (x,)) for x in terms]


def _named(graph: frozenset[Term]) -> str:
    """Return the text of a graph that is the same for its renamings."""

    def sorted_sums(term: Term) -> Term:
        if isinstance(term, Var):
            return term
        args = tuple(map(sorted_sums, term.args))
        return Apply(term.op, tuple(sorted(args, key=order)) if term.op == "add" else args)

    names = ({a: Var(b.name) for a, b in zip("abc", p, strict=True)} for p in permutations(INPUTS))
    return min(str(sorted(str(sorted_sums(instance(term, name))) for term in graph)) for name in names)


@pytest.mark.parametrize("size", [2, 3])
def test_there_are_as_many_graphs_as_by_brute_force(size: int) -> None:
    ones = _sums(list(INPUTS))
    twos = {t for one in ones for t in _sums([*INPUTS, one]) if one in subterms((t,)) and t not in ones}
    graphs = set()
    for count in range(2, size + 1):
        for nodes in map(frozenset, combinations([*ones, *twos], count)):
            inner = {arg for t in nodes for arg in t.args if isinstance(arg, Apply)}  # type: ignore[union-attr]
            if inner <= nodes and len(nodes - inner) > 1:
                graphs.add(_named(nodes))
    assert _found(("add", "neg"), size).graphs == len(graphs)


def test_most_sides_compute_the_same_on_other_shapes_too() -> None:
    """A fingerprint takes few shapes; what it lets through is refuted by the exact test later."""
    found = _found(("add", "matmul", "concat", "split"), 3, 40)
    assert found.pairs >= found.apart >= len(found.sides) == 40
    assert any(shares(left) or shares(right) for left, right in found.sides)
    kinds = Counter(examine(Rule("r", left, right), 0, 4).kind for left, right in found.sides)
    assert kinds["holds"] + kinds["partial"] > kinds["wrong"] + kinds["vacuous"]


def test_both_outputs_of_a_split_are_one_operator() -> None:
    sides = _found(("matmul", "concat", "split"), 3, 10**6).sides
    texts = {f"{left} {right}" for left, right in (map(str, side) for side in sides)}
    assert any("'split'" in text and "output=1" in text for text in texts)


def test_the_generator_counts_graphs_and_repeats_itself() -> None:
    request = Request(("add", "neg", "relu"), 3, 0, 3)
    first, second = generate(request), generate(request)
    assert first.text(request) == second.text(request)
    assert first.graphs is not None
    assert first.counts.graphs == len(first.graphs.sides) > 0
    assert first.counts.joint <= first.counts.graphs
    assert "several outputs: size 3" in first.text(request)
