"""What rules may say: their operators, attributes and predicates; rule files that say it, read."""

from collections.abc import Iterator, Mapping
from typing import Final

from peakfold.errors import UsageError
from peakfold.graph.rule import Apply, Rule, constants, parse_rules, subterms, variables
from peakfold.graph.substitution.operators import OPERATORS

PREDICATES: Final[Mapping[str, tuple[type, ...]]] = {
    "same_shape": (str, str),
    "same_dim": (str, int, str, int),
    "one": (str, int),
    "ungrouped": (str, str),
    "positive": (str,),
    "nonzero": (str,),
    "rank": (str, int),
    "unstretched": (),
}
"""Predicates and what they are said of: names and numbers."""

_MOST = 64
RANGES: Final[Mapping[str, tuple[int, int]]] = {
    "axis": (0, 7),
    "of": (-1, 7),
    "low": (0, _MOST),
    "high": (0, _MOST),
    "kernel": (1, _MOST),
    "stride": (1, _MOST),
    "dilation": (1, _MOST),
}
"""Attributes that are numbers: the least and the largest."""


def read_rules(text: str) -> tuple[Rule, ...]:
    r"""Read a rule file whose operators and predicates are those that are known here.

    Raises:
        UsageError: it cannot be read, or says what is not known; says line and column.

    Example:
        >>> read_rules("peakfold rules 1\ntwice: neg(neg(a)) => a")[0].name
        'twice'
    """
    rules = parse_rules(text)
    lines = [(number, line) for number, line in enumerate(text.split("\n"), 1) if line.split("#")[0].strip()]
    for rule, (number, line) in zip(rules, lines[1:], strict=True):
        for word, what, expected in faults(rule):
            column = line.index(word, line.index(":") + 1) + 1
            raise _unknown(f"line {number}, column {column}: {line.strip()}", what, expected)
    return rules


def check_terms(rule: Rule) -> None:
    """Require that operators, their operands, attributes and the conditions are known.

    Raises:
        UsageError: one is not.
    """
    for _, what, expected in faults(rule):
        raise _unknown(str(rule), what, expected)


def _unknown(where: str, what: str, expected: str) -> UsageError:
    return UsageError(stage="rules", what=what, where=where, expected=expected, hint="docs/rules.md")


def faults(rule: Rule) -> Iterator[tuple[str, str, str]]:
    """Yield what of a rule is not known: the word where it is written, what it is, and what is."""
    for term in subterms(rule.lhs + rule.rhs):
        if isinstance(term, Apply):
            yield from ((term.op, *fault) for fault in _faults_of(term))
    names = set(variables(rule.lhs + rule.rhs)) | set(constants(rule.lhs + rule.rhs))
    for condition in rule.conditions:
        if PREDICATES.get(condition.name) != tuple(map(type, condition.args)):
            known = ", ".join(f"{name}({', '.join(map(_word, of))})" for name, of in PREDICATES.items())
            yield condition.name, f"there is no predicate {condition}", known
        unknown = [arg for arg in condition.args if isinstance(arg, str) and arg not in names]
        if unknown:
            yield condition.name, f"{condition} names {unknown[0]}", "a variable of the rule"


def _word(kind: type) -> str:
    return "name" if kind is str else "number"


def _faults_of(term: Apply) -> Iterator[tuple[str, str]]:
    operator = OPERATORS.get(term.op)
    if operator is None:
        yield f"there is no operator {term.op}", ", ".join(OPERATORS)
        return
    if len(term.args) != operator.arity:
        yield f"{term.op} has {len(term.args)} operands", str(operator.arity)
    given = {name for name, _ in term.attrs}
    missing = {name for name, default in operator.attrs.items() if default is None} - given
    if missing or given - set(operator.attrs):
        got = f"{term.op} with attributes {', '.join(sorted(given)) or 'none'}"
        yield got, ", ".join(operator.attrs) or "none"
    for name, value in term.attrs:
        if name in RANGES and not (isinstance(value, int) and RANGES[name][0] <= value <= RANGES[name][1]):
            least, most = RANGES[name]
            yield f"{term.op} with {name}={value}", f"a number from {least} to {most}"
    if not 0 <= term.output < operator.outputs:
        yield f"{term.op} has no output {term.output}", f"below {operator.outputs}"
