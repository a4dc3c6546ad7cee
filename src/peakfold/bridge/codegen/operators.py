"""Operators of the graph as torch's own functions."""

from collections.abc import Mapping

import torch

from peakfold.errors import PlanError

KEEPING = (
    "",
    "",
    "def keeping(operator):",
    '    """Have an operator keep what its backward pass needs; autograd sees none of it."""',
    "    def run(*args):",
    "        with torch.enable_grad(), torch._C._AutoDispatchBelowAutograd():",
    "            return operator(*args)",
    "",
    "    return run",
    "",
    "",
)
"""Lines of the function that an emitted file defines where a recurrent layer is trained."""

METHODS: Mapping[str, str] = {
    "aten.as_strided.default": "as_strided",
    "aten.detach.default": "detach",
    "aten.expand.default": "expand",
    "aten.permute.default": "permute",
    "aten.reshape.default": "reshape",
    "aten.select.int": "select",
    "aten.squeeze.dim": "squeeze",
    "aten.t.default": "t",
    "aten.transpose.int": "transpose",
    "aten.unflatten.int": "unflatten",
    "aten.unsqueeze.default": "unsqueeze",
    "aten.view.default": "view",
}
"""Views that a method of tensors makes: a call of an overload takes twice as long."""


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


def takes_generator(name: str) -> bool:
    """Return whether the operator can be told which generator to draw from.

    Example:
        >>> takes_generator("aten.bernoulli.p"), takes_generator("aten.native_dropout.default")
        (True, False)
    """
    return any(argument.name == "generator" for argument in overload(name)._schema.arguments)


def targets(name: str, names: list[str]) -> str:
    """Return the left side of an assignment that gives each output a name; a list is unpacked.

    Example:
        >>> targets("aten.topk.default", ["x", "i"]), targets("aten.split.Tensor", ["x"])
        ('x, i', 'x,')
        >>> targets("aten._amp_foreach_non_finite_check_and_unscale.default", ["g", "h", "found"])
        '(g, h), found'
    """
    lists = [isinstance(one.type, torch.ListType) for one in overload(name)._schema.returns]
    if not any(lists):
        return ", ".join(names)
    at, after = lists.index(True), len(lists) - lists.index(True) - 1
    end = len(names) - after
    inner = ", ".join(names[at:end]) + ("," if end - at == 1 else "")
    if len(lists) == 1:
        return inner
    return ", ".join((*names[:at], f"({inner})", *names[end:]))


def reference(name: str, keeping: bool = False) -> str:
    """Return the Python text that names an overload.

    Example:
        >>> reference("aten.add.Tensor")
        'torch.ops.aten.add.Tensor'
        >>> reference("aten.mkldnn_rnn_layer.default", keeping=True)
        'keeping(torch.ops.aten.mkldnn_rnn_layer.default)'
        >>> reference("aten.view.default")
        'torch.Tensor.view'
    """
    overload(name)
    if name in METHODS:
        return f"torch.Tensor.{METHODS[name]}"
    return f"keeping(torch.ops.{name})" if keeping else f"torch.ops.{name}"
