"""Tensors whose numbers are known while a program is captured: those that no input has a part in.

Positions, causal masks and the like are made of shapes alone. Code that reads them to decide what it does
gets what it gets in eager; the same operators are recorded as of any other tensor.
"""

import sys
from collections.abc import Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import patch

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils.weak import WeakTensorKeyDictionary

from peakfold.bridge.capture.storage import Geometry

aten = torch.ops.aten
OpOverload = torch._ops.OpOverload

MOST_ELEMENTS = 1 << 20
"""Numbers of larger tensors are not followed."""

_FACTORIES: frozenset[OpOverload] = frozenset(
    (aten.arange.default, aten.arange.start, aten.arange.start_step, aten.zeros.default, aten.ones.default,
     aten.full.default, aten.eye.default, aten.eye.m, aten.linspace.default, aten.scalar_tensor.default,
     aten.tril_indices.default, aten.triu_indices.default)
)  # fmt: skip
_LIKE: frozenset[OpOverload] = frozenset(
    (aten.zeros_like.default, aten.ones_like.default, aten.full_like.default, aten.new_zeros.default,
     aten.new_ones.default, aten.new_full.default)
)  # fmt: skip
"""What these fill a tensor with does not depend on the tensor that they are given."""


@dataclass(eq=False)
class Values:
    """The numbers of fake tensors, where they are known.

    Attributes:
        real: a real tensor for each such fake one that lives.
    """

    real: MutableMapping[torch.Tensor, torch.Tensor] = field(default_factory=WeakTensorKeyDictionary)
    _lost: set[int] = field(default_factory=set)

    def of(self, tensor: object) -> torch.Tensor | None:
        """Return a real tensor of the same numbers, or None where they are not known."""
        found = self.real.get(tensor) if isinstance(tensor, FakeTensor) else None
        return None if found is None or _storage(found) in self._lost else found

    def compute(
        self, func: OpOverload, args: tuple[object, ...], kwargs: Mapping[str, object], fakes: object = None
    ) -> Any:
        """Return what an operator makes of known numbers, or None where one is not known.

        Args:
            func: the operator.
            args: fake tensors among them.
            kwargs: the same.
            fakes: what the operator made of the fake ones, where that is known.
        """
        leaves, tree = pytree.tree_flatten((args, dict(kwargs)))
        if not _follows(func, fakes, leaves):
            return None
        with _disable_current_modes(), torch.no_grad():
            given = [self._operand(leaf, func) if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]
            if any(leaf is None and old is not None for leaf, old in zip(given, leaves, strict=True)):
                return None
            real_args, real_kwargs = pytree.tree_unflatten(given, tree)
            return func(*real_args, **real_kwargs)

    def _operand(self, tensor: torch.Tensor, func: OpOverload) -> torch.Tensor | None:
        known = self.of(tensor)
        return Geometry.of(tensor).empty() if known is None and func in _LIKE else known

    def follow(
        self, func: OpOverload, args: tuple[object, ...], kwargs: Mapping[str, object], fakes: object
    ) -> None:
        """Note the numbers of what an operator made of known ones."""
        reals = self.compute(func, args, kwargs, fakes)
        if reals is None:
            return
        for fake, real in zip(pytree.tree_leaves(fakes), pytree.tree_leaves(reals), strict=True):
            if isinstance(fake, torch.Tensor) and isinstance(real, torch.Tensor):
                self.real[fake] = real

    def number(self, tensor: torch.Tensor) -> float | None:
        """Return the one number of a tensor, or None where it is not known."""
        if isinstance(tensor, FakeTensor) and tensor.constant is not None:
            return tensor.constant.item()
        known = self.of(tensor)
        if known is None:
            return None
        with _disable_current_modes():
            return known.item()

    def written(self, func: OpOverload, args: tuple[object, ...], kwargs: Mapping[str, object]) -> None:
        """Follow an operator that writes into its arguments; what cannot be followed is lost."""
        leaves = pytree.tree_leaves((args, dict(kwargs)))
        known = [self.of(leaf) for leaf in leaves if isinstance(leaf, torch.Tensor)]
        if all(real is None for real in known):
            return
        if self.compute(func, args, kwargs) is None:
            self._lost.update(_storage(real) for real in known if real is not None)


def _storage(tensor: torch.Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)


def _follows(func: OpOverload, fakes: object, leaves: list[object]) -> bool:
    """Whether an operator may be run on known numbers: on the CPU, small, the same each time."""
    tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
    if torch.Tag.nondeterministic_seeded in func.tags or (not tensors and func not in _FACTORIES):
        return False
    made = [leaf for leaf in pytree.tree_leaves(fakes) if isinstance(leaf, torch.Tensor)]
    return all(t.numel() <= MOST_ELEMENTS and t.device.type == "cpu" for t in (*tensors, *made))


@contextmanager
def asked_by_libraries(values: Values) -> Iterator[None]:
    """Have libraries that ask whether a tensor is fake be told so only where its numbers are unknown.

    Transformers takes another way for fake tensors, with other kernels than in eager.
    """

    def is_fake(tensor: object) -> bool:
        return isinstance(tensor, FakeTensor) and values.of(tensor) is None

    if "transformers.utils.import_utils" not in sys.modules:
        yield
        return
    with patch("transformers.utils.import_utils.is_fake_tensor", is_fake):
        yield
