"""Rules made wrong on purpose, each shown to be wrong by real numbers: the exact test judges no own work."""

import random
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from peakfold.graph.rule import Apply, Rule, Term, Var, subterms, variables
from peakfold.graph.substitution.field import MERSENNE_31, Arithmetic
from peakfold.graph.substitution.operators import OPERATORS
from peakfold.graph.substitution.sampling import Sampler, ranks
from peakfold.graph.substitution.values import Evaluator

_PARTIAL = {"div", "reciprocal", "log", "tanh", "exp", "softmax"}
"""Operators that are not defined, or not told apart by real numbers, everywhere."""


def wrong_rules(sound: Sequence[Rule], seed: int) -> Iterator[Rule]:
    """Yield, without end, sound rules of which one right term is changed so that real numbers tell."""
    draw = random.Random(seed)
    while True:
        rule = _changed(draw.choice(sound), draw)
        used = {term.op for term in subterms(rule.lhs + rule.rhs) if isinstance(term, Apply)}
        if not used & _PARTIAL and _differs(rule):
            yield rule


def _changed(rule: Rule, draw: random.Random) -> Rule:
    """Return a rule one of whose right terms has another operator, other operands or another variable."""
    chosen = draw.choice([term for term in subterms(rule.rhs) if isinstance(term, Apply)])
    alike = [
        one.name
        for one in OPERATORS.values()
        if one.elementwise and one.arity == len(chosen.args) and not one.attrs
    ]
    if chosen.op in alike and draw.random() < 0.6:
        changed = replace(chosen, op=draw.choice([name for name in alike if name != chosen.op]))
    else:
        args = list(chosen.args)
        args[draw.randrange(len(args))] = Apply("neg", (Var(draw.choice(variables(rule.lhs))),))
        changed = replace(chosen, args=tuple(args))
    rhs = tuple(_replaced(term, chosen, changed) for term in rule.rhs)
    return replace(rule, rhs=rhs, conditions=(), sources=())


def _replaced(term: Term, old: Term, new: Term) -> Term:
    if term == old or not isinstance(term, Apply):
        return new if term == old else term
    return replace(term, args=tuple(_replaced(arg, old, new) for arg in term.args))


def _differs(rule: Rule) -> bool:
    """Return whether both sides are legal somewhere and differ there, in double precision."""
    sampler = Sampler(rule, 99, rule.lhs + rule.rhs)
    math = Arithmetic(MERSENNE_31)
    for rank in ranks(rule):
        for _ in range(20):
            sample = sampler.shapes(rank)
            if sample is None:
                break
            evaluator = Evaluator(math, *sampler.values(sample, math))
            for left, right in zip(rule.lhs, rule.rhs, strict=True):
                a, b = evaluator.value(left), evaluator.value(right)
                if a.shape == b.shape and not np.allclose(a.f, b.f, rtol=1e-6, atol=1e-9):
                    return True
    return False
