"""What the operators that compare two numbers compute."""

import operator
from collections.abc import Callable, Mapping

COMPARISONS: Mapping[str, Callable[[float, float], bool]] = {
    "eq": operator.eq,
    "ne": operator.ne,
    "lt": operator.lt,
    "le": operator.le,
    "gt": operator.gt,
    "ge": operator.ge,
}
