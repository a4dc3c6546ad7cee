"""What a rule asks of its operands, asked of concrete ones."""

from collections.abc import Callable, Mapping

from peakfold.graph.rewrite.infer import CannotInfer
from peakfold.graph.rule import Condition
from peakfold.ir.graph import Arg, Value
from peakfold.ir.types import TensorType

UNSTRETCHED = "unstretched"
"""A condition on all nodes of both sides, which is asked once they are made."""

KindOf = Callable[[str | int], TensorType]
Check = Callable[[list[TensorType], list[float]], bool]


def _same_shape(kinds: list[TensorType], numbers: list[float]) -> bool:
    return len({kind.shape for kind in kinds}) == 1


def _same_dim(kinds: list[TensorType], numbers: list[float]) -> bool:
    """``same_dim(a, i, b, j)``: axis i of a is as long as axis j of b."""
    pairs = zip(kinds, numbers, strict=True)
    return len({kind.shape[int(axis)] for kind, axis in pairs}) == 1


def _one(kinds: list[TensorType], numbers: list[float]) -> bool:
    return kinds[0].shape[int(numbers[0])] == 1


def _unknown(kinds: list[TensorType], numbers: list[float]) -> bool:
    """What is asked of the numbers in a tensor is not known beforehand."""
    return False


def _ungrouped(kinds: list[TensorType], numbers: list[float]) -> bool:
    return kinds[0].shape[1] == kinds[1].shape[1]


def _dim_is(kinds: list[TensorType], numbers: list[float]) -> bool:
    axis, length = int(numbers[0]), int(numbers[1])
    return all(axis < len(kind.shape) and kind.shape[axis] == length for kind in kinds)


def _rank(kinds: list[TensorType], numbers: list[float]) -> bool:
    return all(len(kind.shape) == numbers[0] for kind in kinds)


def _square(kinds: list[TensorType], numbers: list[float]) -> bool:
    return all(kind.shape[-1] == kind.shape[-2] for kind in kinds)


def _positive(kinds: list[TensorType], numbers: list[float]) -> bool:
    return all(number > 0 for number in numbers)


def _pointwise_kernel(kinds: list[TensorType], numbers: list[float]) -> bool:
    return all(len(kind.shape) == 4 and kind.shape[2:] == (1, 1) for kind in kinds)


CHECKS: Mapping[str, Check] = {
    "same_shape": _same_shape,
    "same_dim": _same_dim,
    "dim_is": _dim_is,
    "rank": _rank,
    "square": _square,
    "positive": _positive,
    "one": _one,
    "ungrouped": _ungrouped,
    "nonzero": _unknown,
    "pointwise_kernel": _pointwise_kernel,
}
"""Predicates by name: (types of the variables, numbers) to whether they hold."""


def unmet(
    condition: Condition,
    variables: Mapping[str, Value],
    constants: Mapping[str, Arg],
    kind_of: Callable[[Value], TensorType],
) -> str | None:
    """Return the reason why a condition does not hold, None where it does.

    Args:
        condition: of a rule.
        variables: what the rule's variables are.
        constants: what its symbolic constants are.
        kind_of: types of values.
    """
    if condition.name == "plain_window":
        return _plain_window(condition, constants)
    if condition.name == UNSTRETCHED:
        return None
    check = CHECKS.get(condition.name)
    if check is None:
        return f"there is no predicate {condition.name}"
    try:
        kinds = [
            kind_of(variables[arg]) for arg in condition.args if isinstance(arg, str) and arg in variables
        ]
        numbers = [_number(arg, constants) for arg in condition.args if arg not in variables]
        return None if check(kinds, numbers) else f"not {condition}"
    except (IndexError, CannotInfer):
        return f"not {condition}"


def _plain_window(condition: Condition, constants: Mapping[str, Arg]) -> str | None:
    """Ask that a convolution's window has stride 1, no padding and no dilation."""
    window = constants[str(condition.args[0])]
    assert isinstance(window, tuple)
    stride, padding, dilation = window
    assert isinstance(stride, tuple)
    ones, zeros = (1,) * len(stride), (0,) * len(stride)
    return None if (stride, padding, dilation) == (ones, zeros, ones) else f"not {condition}"


def _number(arg: str | int, constants: Mapping[str, Arg]) -> float:
    found = constants.get(arg, arg) if isinstance(arg, str) else arg
    if not isinstance(found, int | float):
        raise CannotInfer(f"{arg} is no number")
    return found
