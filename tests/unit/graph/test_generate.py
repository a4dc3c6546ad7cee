"""The generator: its kernel against the tester's arithmetic, repeatable, going on after an interruption."""

from pathlib import Path

import numpy as np
import pytest

from peakfold.errors import UsageError
from peakfold.graph.rule import Apply, parse_rule, parse_rules
from peakfold.graph.substitution.basis import Basis, derived
from peakfold.graph.substitution.book import laws
from peakfold.graph.substitution.catalogue import INSTANCES, chosen
from peakfold.graph.substitution.enumeration import BASES, Enumeration
from peakfold.graph.substitution.field import PAIRS, Arithmetic, Number
from peakfold.graph.substitution.generate import Request, generate
from peakfold.graph.substitution.growing import ORDERS
from peakfold.graph.substitution.values import Evaluator

SMALL = ("add", "relu", "transpose")


def _tensor(terms: Enumeration, c: int, world: int) -> Number:
    arrays = terms.arrays
    start, shape = int(arrays.offsets[c, world]), tuple(int(n) for n in arrays.shapes[c, world])
    rank = len(BASES[world // ORDERS][0])
    shape, n = shape[3 - rank :], int(np.prod(shape))
    part = slice(start, start + n)
    v, u = (arrays.pool[part, k].astype(np.uint64).reshape(shape) for k in (0, 1))
    return Number(v, u, arrays.reals[part].astype(np.float64).reshape(shape))


@pytest.mark.parametrize("seed", [1])
def test_the_kernel_agrees_with_exact_arithmetic_on_every_operator(seed: int) -> None:
    terms = Enumeration(INSTANCES, seed)
    terms.grow(False)
    terms.grow(False)
    math = Arithmetic(PAIRS[0])
    seen: set[str] = set()
    for c in range(1, terms.first[3], 13):
        term = terms.term(c)
        assert isinstance(term, Apply)
        for world in np.flatnonzero(terms.arrays.offsets[c] >= 0)[:: ORDERS + 1]:
            base, place = divmod(int(world), ORDERS)
            inputs = {
                name: _tensor(terms, 0, base * ORDERS + int(terms.composed[place, order]))
                for name, order in (("a", 0), ("b", 2), ("c", 4))
            }
            inputs["i"] = math.rational(np.array([1, 0, 1]), 1)
            constant = {"s": Number(*(np.array(x) for x in _constant(terms, base)))}
            expected = Evaluator(math, inputs, constant).value(term)
            found = _tensor(terms, c, int(world))
            assert found.shape == expected.shape, term
            if not _is_random(str(term)):
                assert (found.v == expected.v).all(), term
                seen.add(term.op)
    assert len(seen) >= 20


def _is_random(text: str) -> bool:
    """Return whether a term holds what each arithmetic takes at random: log, exp of exp or of a quotient."""
    exponentials = text.count("exp(") + text.count("softmax")
    return (
        "log" in text or exponentials > 1 or (exponentials == 1 and ("div" in text or "reciprocal" in text))
    )


def _constant(terms: Enumeration, base: int) -> tuple[np.uint64, np.uint64, float]:
    constant, real = terms.setting[2], terms.setting[3]
    return constant[base, 0], constant[base, 1], float(real[base])


def test_the_same_request_gives_the_same_file() -> None:
    request = Request(SMALL, 3, 0)
    first, second = generate(request), generate(request)
    assert first.text(request) == second.text(request)
    assert parse_rules(first.text(request)) == first.rules


def test_well_known_laws_are_found() -> None:
    found = generate(Request((*SMALL, "matmul", "concat"), 3)).rules
    for text in (
        "r: transpose(transpose(a)) => a",
        "r: matmul(matmul(a, b), c) => matmul(a, matmul(b, c))",
        "r: transpose(matmul(a, b)) => matmul(transpose(b), transpose(a))",
        "r: add(matmul(a, b), matmul(a, c)) => matmul(a, add(b, c))",
        "r: relu(concat[axis=1](a, b)) => concat[axis=1](relu(a), relu(b))",
    ):
        assert derived(parse_rule(text), (*laws(), *found), (4, 500)), text
    assert not derived(parse_rule("r: relu(add(a, b)) => add(relu(a), relu(b))"), (*laws(), *found))


def test_an_interrupted_run_goes_on(tmp_path: Path) -> None:
    request, checkpoint = Request(SMALL, 3), tmp_path / "rules.part"

    def stop(line: str) -> None:
        if line.startswith("size 3"):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        generate(request, checkpoint, stop)
    assert checkpoint.exists()
    assert generate(request, checkpoint).text(request) == generate(request).text(request)
    assert not checkpoint.exists()


def test_an_unknown_operator_is_named() -> None:
    with pytest.raises(UsageError, match="the generator has no operator frob"):
        chosen(("add", "frob"))


def test_a_longer_search_derives_by_what_operators_are_made_of() -> None:
    known = parse_rules("""peakfold rules 1
        apart: sub(a, b) => add(a, neg(b)) proof index
        over: neg(add(a, b)) => add(neg(a), neg(b)) proof index
        twice: neg(neg(a)) => a proof index
        associates: add(add(a, b), c) => add(a, add(b, c)) proof index""")
    pair = parse_rule("r: sub(a, sub(b, c)) => add(c, sub(a, b))")
    short, thorough = Basis(), Basis(thorough=True)
    for basis in (short, thorough):
        basis.know(known)
        basis.consider(pair.lhs[0], pair.rhs[0])
    assert [rule.lhs for rule in short.rules] == [pair.lhs]
    assert thorough.rules == []
    assert (short.counts.late, thorough.counts.late) == (0, 1)
