"""Numbers as people read them."""


def bytes_text(nbytes: int | None) -> str:
    """Return bytes in the unit that fits; MB is 1e6 bytes.

    Example:
        >>> bytes_text(423_000_000), bytes_text(12_300_000_000), bytes_text(12), bytes_text(None)
        ('423.0 MB', '12.30 GB', '12 B', '-')
    """
    if nbytes is None:
        return "-"
    if nbytes >= 1e9:
        return f"{nbytes / 1e9:.2f} GB"
    if nbytes >= 1e6:
        return f"{nbytes / 1e6:.1f} MB"
    return f"{nbytes / 1e3:.1f} kB" if nbytes >= 1e3 else f"{nbytes} B"


def seconds_text(seconds: float | None) -> str:
    """Return seconds with a fitting unit.

    Example:
        >>> seconds_text(1.234), seconds_text(0.0123), seconds_text(4.5e-6), seconds_text(None)
        ('1.23 s', '12.3 ms', '4.5 us', '-')
    """
    if seconds is None:
        return "-"
    if seconds >= 1:
        return f"{seconds:.2f} s"
    return f"{seconds * 1e3:.1f} ms" if seconds >= 1e-3 else f"{seconds * 1e6:.1f} us"


def ratio_text(ratio: float | None) -> str:
    """Return a ratio to two decimals.

    Example:
        >>> ratio_text(0.5), ratio_text(None)
        ('0.50x', '-')
    """
    return "-" if ratio is None else f"{ratio:.2f}x"


def error_text(error: float | None) -> str:
    """Return an error in scientific notation.

    Example:
        >>> error_text(0.0), error_text(3.21e-12), error_text(None)
        ('0', '3.2e-12', '-')
    """
    if error is None:
        return "-"
    return "0" if error == 0 else f"{error:.1e}"
