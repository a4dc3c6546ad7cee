"""The rule book: laws by hand, generated rules, rules derived from both, and TASO's, in one text format."""

from dataclasses import replace
from functools import cache
from importlib.resources import files

from peakfold.graph.rule import Rule, parse_rules

LAWS, GENERATED, CORE, REDUNDANT, DERIVED, GRAPHS, TASO = (
    f"{name}.rules" for name in ("laws", "generated", "core", "redundant", "derived", "graphs", "taso")
)


@cache
def _read(name: str) -> tuple[Rule, ...]:
    return parse_rules(text_of(name))


def text_of(name: str) -> str:
    """Return the text of a file of the book."""
    return files(__name__).joinpath(name).read_text()


def laws() -> tuple[Rule, ...]:
    """Return the laws over more inputs than the generator enumerates.

    Example:
        >>> laws()[-1].name
        'conv_of_sums'
    """
    return _read(LAWS)


def generated() -> tuple[Rule, ...]:
    """Return the generated rules: of all operators at size 2, then of ten operators at size 3.

    A rule that both files have is returned once; a name that both have gets ``_core`` in the second.
    """
    return joined(laws(), _read(GENERATED), _read(CORE))


def joined(by_hand: tuple[Rule, ...], first: tuple[Rule, ...], second: tuple[Rule, ...]) -> tuple[Rule, ...]:
    """Return the rules of two generated files as those of one, beside the laws."""
    sides = {(rule.lhs, rule.rhs) for rule in first}
    names = {rule.name for rule in (*by_hand, *first)}
    further = (rule for rule in second if (rule.lhs, rule.rhs) not in sides)
    return first + tuple(replace(r, name=f"{r.name}_core") if r.name in names else r for r in further)


def taso() -> tuple[Rule, ...]:
    """Return TASO's published rules, the wrong ones too: they are to be checked, not used."""
    return _read(TASO)


def found() -> tuple[Rule, ...]:
    """Return the laws and all generated rules, those too that the others derive."""
    return laws() + generated()


def redundant() -> tuple[Rule, ...]:
    """Return the laws and generated rules that the others derive, each with the names of those that do."""
    return _read(REDUNDANT)


def derived() -> tuple[Rule, ...]:
    """Return rules that follow from the book, each with the names of those that derive it.

    Those of several outputs have names that end in ``_graph``.
    """
    several = (replace(rule, name=f"{rule.name}_graph") for rule in _read(GRAPHS))
    return (*redundant(), *_read(DERIVED), *several)


def book() -> tuple[Rule, ...]:
    """Return the basis: all rules that may be used, and that do not follow from one another."""
    return basis(found(), redundant())


def basis(rules: tuple[Rule, ...], dropped: tuple[Rule, ...]) -> tuple[Rule, ...]:
    """Return some rules without those that the others derive."""
    names = {rule.name for rule in dropped}
    return tuple(rule for rule in rules if rule.name not in names)
