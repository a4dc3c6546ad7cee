"""A reader of TASO's substitutions, in the JSON that they were decoded to."""

import json
import re
from typing import Final

from peakfold.errors import UsageError
from peakfold.graph.rule import Apply, Rule, Term, Var, parse_rule, subterms
from peakfold.graph.substitution.reading import faults
from peakfold.graph.substitution.sampling import UNSTRETCHED

_NAMES: Final = {"ewadd": "add", "ewmul": "mul", "conv3x3": "conv", "conv3x3_relu": "conv_relu"}
_SIDES: Final = 2
_SUCH: Final = '{"id": 0, "rule": "ewadd(x1, x2) => ewadd(x2, x1)"}'
_HINT: Final = "docs/rules.md has both formats"


def read_taso(text: str) -> tuple[tuple[Rule, ...], frozenset[str]]:
    """Read TASO's rules, and the names of those that the file marks as wrong.

    A split there goes by the sizes of what was joined; here it names the two tensors. Elementwise
    operators there stretch nothing, which is a condition here.

    Raises:
        UsageError: the text is not such a file.

    Example:
        >>> rules, wrong = read_taso('{"rules": [{"id": 3, "rule": "ewadd(x1, x2)  =>  ewadd(x2, x1)"}]}')
        >>> print(rules[0], len(wrong))
        taso_3: add(x1, x2) => add(x2, x1) when unstretched() 0
    """
    try:
        entries = [_entry(entry) for entry in json.loads(text)["rules"]]
    except (json.JSONDecodeError, KeyError, TypeError) as reason:
        raise UsageError(
            stage="rules",
            what="this is no file of TASO's rules",
            expected=f'JSON such as {{"rules": [{_SUCH}]}}',
            got=f"{type(reason).__name__}: {reason}",
            hint=_HINT,
        ) from reason
    rules: dict[str, Rule] = {}
    for name, line, _ in entries:
        try:
            rule = _rule(name, line)
            for _, what, expected in faults(rule):
                raise UsageError(stage="rules", what=what, expected=expected)
            if name in rules:
                raise UsageError(stage="rules", what="two rules have one number", expected="one of its own")
        except UsageError as reason:
            where = f"{_place(text, line)}{name}: {line}"
            raise UsageError("rules", reason.what, where, reason.expected, reason.got, hint=_HINT) from reason
        rules[name] = rule
    return tuple(rules.values()), frozenset(name for name, _, wrong in entries if wrong)


def _entry(entry: object) -> tuple[str, str, bool]:
    """Return the name of an entry, its rule, and whether it is marked as wrong."""
    if not isinstance(entry, dict) or not isinstance(entry["rule"], str):
        raise TypeError(f"{entry!r:.60} is no entry such as {_SUCH}")
    return f"taso_{entry['id']}", entry["rule"], "unsound" in entry


def _place(text: str, rule: str) -> str:
    """Return the line and column of a rule where it is written as JSON writes it, else nothing."""
    at = text.find(json.dumps(rule, ensure_ascii=False))
    if at < 0:
        return ""
    return f"line {text.count(chr(10), 0, at) + 1}, column {at - text.rfind(chr(10), 0, at)}: "


def _rule(name: str, text: str) -> Rule:
    text = text.replace("conv3x3+relu", "conv3x3_relu").replace("ax=", "axis=")
    text = re.sub(r"\)\.(\d)", r"):\1", text)
    outputs = [part.split("=>") for part in text.split(" ; ")]
    if any(len(sides) != _SIDES for sides in outputs):
        raise UsageError(
            stage="rules",
            what="a rule has two sides for each output",
            expected="LEFT => RIGHT ; LEFT => RIGHT",
        )
    lhs, rhs = (" ; ".join(output[side] for output in outputs) for side in (0, 1))
    read = parse_rule(f"{name}: {lhs} => {rhs}")
    return Rule(name, tuple(map(_renamed, read.lhs)), tuple(map(_renamed, read.rhs)), (UNSTRETCHED,))


def _renamed(term: Term) -> Term:
    if isinstance(term, Var):
        return term
    args, attrs = tuple(map(_renamed, term.args)), term.attrs
    if term.op == "split":
        joined = _join(args[0])
        args, of = (*args, *joined.args), joined.attr("axis")
        attrs = attrs if of == term.attr("axis") else (*attrs, ("of", of))
    return Apply(_NAMES.get(term.op, term.op), args, attrs, term.output)


def _join(term: Term) -> Apply:
    """Return the join that gave a term its size."""
    for found in subterms((term,)):
        if isinstance(found, Apply) and found.op == "concat":
            return found
    raise UsageError(stage="rules", what="a split of what was not joined", expected="a concat", got=str(term))
