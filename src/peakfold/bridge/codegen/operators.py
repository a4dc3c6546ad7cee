"""Operators of the graph as torch's own functions."""

import torch

from peakfold.errors import PlanError


def overload(name: str) -> torch._ops.OpOverload:
    """Return the overload of a name such as ``"aten.addmm.default"``.

    Raises:
        PlanError: torch has no such operator.
    """
    found: object = torch.ops
    for part in name.split(".", 2):
        found = getattr(found, part, None)
    if isinstance(found, torch._ops.OpOverload):
        return found
    raise PlanError(
        stage="codegen",
        what="an operator is not known to torch",
        expected="the name of an overload, e.g. aten.addmm.default",
        got=repr(name),
        hint=f"import the library that registers it; this is torch {torch.__version__}",
    )


def returns_sequence(name: str) -> bool:
    """Return whether what the operator returns is indexed to get an output: a tuple or a list."""
    returns = overload(name)._schema.returns
    return len(returns) > 1 or (len(returns) == 1 and isinstance(returns[0].type, torch.ListType))


def reference(name: str) -> str:
    """Return the Python text that names an overload.

    Example:
        >>> reference("aten.add.Tensor")
        'torch.ops.aten.add.Tensor'
    """
    overload(name)
    return f"torch.ops.{name}"
