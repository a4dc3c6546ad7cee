"""The rule book: generated rules, laws by hand and TASO's rules, as text files in one format."""

from functools import cache
from importlib.resources import files

from peakfold.graph.rule import Rule, parse_rules

LAWS, GENERATED, TASO = "laws.rules", "generated.rules", "taso.rules"


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
        'conv_then_relu'
    """
    return _read(LAWS)


def generated() -> tuple[Rule, ...]:
    """Return the generated basis."""
    return _read(GENERATED)


def taso() -> tuple[Rule, ...]:
    """Return TASO's published rules, the wrong ones too: they are to be checked, not used."""
    return _read(TASO)


def book() -> tuple[Rule, ...]:
    """Return all rules that may be used."""
    return laws() + generated()
