"""The rule book as a page: each rule, what its conditions exclude, and TASO's rules that are wrong."""

from collections.abc import Callable, Iterator, Sequence

from peakfold.graph.rule import Rule
from peakfold.graph.substitution.book import book, derived, laws, taso
from peakfold.graph.substitution.testing import Counterexample, examine, exclusions, repair

_HEAD = """# The rule book

Written by `peakfold rules page`; [rules](rules.md) says what the words mean. Below a condition stands what
goes wrong without it.
"""
_TASO = """## TASO's rules that are wrong

| rule | counterexample | holds when |
|---|---|---|"""


def page(progress: Callable[[str], None] = lambda name: None) -> str:
    """Return the page as Markdown; counterexamples are found anew.

    Args:
        progress: is told the name of each rule.
    """
    by_hand = {rule.name for rule in laws()}
    of_laws = [rule for rule in book() if rule.name in by_hand]
    of_others = [rule for rule in book() if rule.name not in by_hand]
    lines = [_HEAD, "## Laws by hand", "", *_listed(of_laws, progress)]
    lines += ["", "## Generated", "", *_listed(of_others, progress), ""]
    lines += [_TASO, *_wrong(progress), "", "## Derived", "", _of_derived()]
    return "\n".join(lines) + "\n"


def _listed(rules: Sequence[Rule], progress: Callable[[str], None]) -> Iterator[str]:
    for rule in rules:
        progress(rule.name)
        yield f"- `{rule}`"
        for condition, without in exclusions(rule):
            yield f"  - without `{condition}`: {without or 'no counterexample found'}"


def _wrong(progress: Callable[[str], None]) -> Iterator[str]:
    for rule in taso():
        progress(rule.name)
        found = examine(rule).counterexample
        if found is not None and found.legal:
            yield f"| `{rule}` | {_without_bar(found)} | {_offered(rule)} |"


def _without_bar(found: Counterexample) -> str:
    return str(found).replace("|", "\\|")


def _offered(rule: Rule) -> str:
    repaired = repair(rule)
    if repaired is None:
        return "no condition of these makes it hold"
    return ", ".join(f"`{condition}`" for condition in repaired.rule.conditions)


def _of_derived() -> str:
    rules = derived()
    example = max(rules, key=lambda rule: (len(rule.sources), rule.name), default=None)
    shown = f", such as\n\n- `{example}`" if example else "."
    several = sum(len(rule.lhs) > 1 for rule in rules)
    return (
        f"{len(rules)} rules of `redundant.rules`, `derived.rules` and `graphs.rules` follow from those "
        f"above and name them, {several} of them with several outputs{shown}"
    )
