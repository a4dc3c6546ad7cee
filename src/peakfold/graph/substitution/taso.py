"""A reader of TASO's substitutions, in the JSON that they were decoded to."""

import json
import re
from typing import Final

from peakfold.errors import UsageError
from peakfold.graph.rule import Apply, Rule, Term, Var, parse_rule, subterms
from peakfold.graph.substitution.sampling import UNSTRETCHED

_NAMES: Final = {"ewadd": "add", "ewmul": "mul", "conv3x3": "conv", "conv3x3_relu": "conv_relu"}


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
        entries = json.loads(text)["rules"]
        found = [(f"taso_{entry['id']}", str(entry["rule"]), "unsound" in entry) for entry in entries]
    except (json.JSONDecodeError, KeyError, TypeError) as reason:
        raise UsageError(
            stage="rules",
            what="this is no file of TASO's rules",
            expected='JSON such as {"rules": [{"id": 0, "rule": "..."}]}',
            got=f"{type(reason).__name__}: {reason}",
        ) from reason
    rules = tuple(_rule(name, rule) for name, rule, _ in found)
    return rules, frozenset(name for name, _, wrong in found if wrong)


def _rule(name: str, text: str) -> Rule:
    text = text.replace("conv3x3+relu", "conv3x3_relu").replace("ax=", "axis=")
    text = re.sub(r"\)\.(\d)", r"):\1", text)
    outputs = [part.split("=>") for part in text.split(" ; ")]
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
    raise UsageError(stage="rules", what="a split of what was not joined", where=str(term))
