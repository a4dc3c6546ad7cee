"""Names that differ."""


def unique(name: str, taken: set[str]) -> str:
    """Return ``name``, numbered if it is taken, and take it.

    Example:
        >>> taken = {"x"}
        >>> unique("x", taken), unique("x", taken)
        ('x_1', 'x_2')
    """
    found, count = name, 0
    while found in taken:
        count += 1
        found = f"{name}_{count}"
    taken.add(found)
    return found
