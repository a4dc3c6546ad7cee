"""Arguments as Python text."""

import math
from collections.abc import Callable

from peakfold.ir.graph import Arg, Symbol, Value


def literal(arg: Arg, read: Callable[[Value], str]) -> str:
    """Return the Python text of an argument; ``read`` gives the text of a Value.

    Example:
        >>> literal((1, Value(3), Symbol("dtype", "float32"), float("inf")), lambda value: "x")
        '[1, x, torch.float32, math.inf]'
    """
    if isinstance(arg, Value):
        return read(arg)
    if isinstance(arg, tuple):
        return f"[{', '.join(literal(item, read) for item in arg)}]"
    if isinstance(arg, Symbol):
        return _symbol(arg)
    if isinstance(arg, float) and not math.isfinite(arg):
        return _special_float(arg)
    return repr(arg)


def _special_float(number: float) -> str:
    if math.isnan(number):
        return "math.nan"
    return "math.inf" if number > 0 else "-math.inf"


def _symbol(symbol: Symbol) -> str:
    if symbol.kind == "device":
        return f"torch.device({symbol.name!r})"
    return f"torch.{symbol.name}"


def bytes_text(count: int) -> str:
    """Return bytes in the unit that reads best; MB = 1e6 bytes.

    Example:
        >>> bytes_text(8_388_608), bytes_text(512), bytes_text(-4096)
        ('8.39 MB', '512 B', '-4.10 kB')
    """
    size = abs(count)
    if size < 1000:
        return f"{count} B"
    if size < 1_000_000:
        return f"{count / 1e3:.2f} kB"
    return f"{count / 1e6:.2f} MB"
