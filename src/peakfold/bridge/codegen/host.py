"""Operators on host numbers, as the Python expressions that eager code evaluates."""

from collections.abc import Mapping
from types import MappingProxyType

HOST_EXPRESSIONS: Mapping[str, str] = MappingProxyType(
    {
        "host.add": "{0} + {1}",
        "host.sub": "{0} - {1}",
        "host.mul": "{0} * {1}",
        "host.truediv": "{0} / {1}",
        "host.pow": "{0} ** {1}",
        "host.neg": "-{0}",
        "host.abs": "abs({0})",
        "host.max": "max({0}, {1})",
        "host.min": "min({0}, {1})",
        "host.float": "float({0})",
        "aten._local_scalar_dense.default": "{0}.item()",
    }
)
"""Python text by operator; ``{0}`` is the first operand."""


def host_expression(operator: str, arguments: list[str]) -> str:
    """Return the Python text of an operator on host numbers.

    Example:
        >>> host_expression("host.pow", ["-0.5", "step"])
        '(-0.5) ** step'
    """
    operands = [f"({text})" if text.startswith("-") else text for text in arguments]
    return HOST_EXPRESSIONS[operator].format(*operands)
