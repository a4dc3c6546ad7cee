"""Lines of source with sizes at the right margin."""

from peakfold.bridge.codegen.literals import bytes_text

WIDTH = 92
"""Columns of code; the margin stands right of them."""

INDENT = "    "


def call(function: str, arguments: list[str], prefix: str, indent: str = INDENT) -> list[str]:
    """Return the lines of a call, broken over several where one is too wide.

    Example:
        >>> call("add", ["x", "y"], "z = ")
        ['    z = add(x, y)']
    """
    line = f"{indent}{prefix}{function}({', '.join(arguments)})"
    if len(line) <= WIDTH:
        return [line]
    inner = indent + INDENT
    rows, row = [], inner
    for argument in arguments:
        if len(row) + len(argument) > WIDTH and row.strip():
            rows.append(row.rstrip())
            row = inner
        row += f"{argument}, "
    return [f"{indent}{prefix}{function}(", *rows, row.rstrip(), f"{indent})"]


def margin(line: str, change: int, live: int) -> str:
    """Return a line with the bytes that it takes or gives back, and the bytes that then live.

    Example:
        >>> margin("    x = f()", 4000, 12_000).split()
        ['x', '=', 'f()', '#', '+4.00', 'kB', '|', '12.00', 'kB']
    """
    sign = "+" if change > 0 else ""
    text = f"{sign}{bytes_text(change)}" if change else ""
    return f"{line:<{WIDTH}}  # {text:>10} | {bytes_text(live):>12}"


def section(title: str) -> str:
    """Return a heading comment."""
    return f"{INDENT}# -- {title}"


def deletion(names: list[str]) -> list[str]:
    """Return the lines that delete names, in order.

    Example:
        >>> deletion(["x", "y"])
        ['    del x, y']
    """
    rows: list[str] = []
    for name in names:
        if rows and len(rows[-1]) + len(name) + 2 <= WIDTH:
            rows[-1] += f", {name}"
        else:
            rows.append(f"{INDENT}del {name}")
    return rows
