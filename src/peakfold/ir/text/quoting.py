"""Names of nodes as a plan writes them."""

import json
import re

RESERVED = frozenset(
    (
        "backward",
        "for",
        "before",
        "and",
        "to",
        "after",
        "gone",
        "fetched",
        "back",
        "use",
        "start",
        "input",
        "output",
        "over",
        "again",
        "at",
        "dim",
    )
)
"""Words of a plan's own."""

_PLAIN = re.compile(r'[^\s#"*?]+')
_RANGE = re.compile(r"\[\d*:\d*\]")


def quoted_name(name: str) -> str:
    """Return the name of a node as a plan writes it: quoted where it could be read as something else."""
    plain = _PLAIN.fullmatch(name) and name not in RESERVED and not _RANGE.search(name)
    return name if plain else json.dumps(name)
