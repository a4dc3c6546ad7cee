"""How a batch is handed to ``loss_fn``."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import cast

import torch
from torch.utils import _pytree as pytree


@dataclass(frozen=True)
class FlatBatch:
    """A batch as ``(args, kwargs)``, flattened.

    Attributes:
        leaves: tensors and Python objects.
        tree: their tree.
        names: one a leaf, e.g. ``"batch.0"`` or ``"batch.input_ids"``.
    """

    leaves: tuple[object, ...]
    tree: pytree.TreeSpec
    names: tuple[str, ...]


def flatten(batch: object) -> FlatBatch:
    """Flatten a batch: a dict is keywords, a tuple or list positions, anything else one position.

    Example:
        >>> flatten({"x": 1, "y": [2, 3]}).names
        ('batch.x', 'batch.y.0', 'batch.y.1')
    """
    args, kwargs = arguments(batch)
    leaves = (*args, *kwargs.values())
    if all(map(is_tensor, leaves)) and all(type(key) is str for key in kwargs):
        return FlatBatch(leaves, *_form_of_tensors(len(args), tuple(kwargs)))
    paths, tree = pytree.tree_flatten_with_path((args, kwargs))
    return FlatBatch(tuple(leaf for _, leaf in paths), tree, _names(paths))


@lru_cache(maxsize=256)
def _form_of_tensors(count: int, keys: tuple[str, ...]) -> tuple[pytree.TreeSpec, tuple[str, ...]]:
    """Return tree and names of a batch of so many tensors by position, and one by each key."""
    paths, tree = pytree.tree_flatten_with_path(((0,) * count, dict.fromkeys(keys, 0)))
    return tree, _names(paths)


def _names(paths: Sequence[tuple[Sequence[object], object]]) -> tuple[str, ...]:
    return tuple(".".join(("batch", *map(_key, path[1:]))) for path, _ in paths)


def arguments(batch: object) -> tuple[tuple[object, ...], dict[str, object]]:
    """Return the positional and the keyword arguments that a batch stands for."""
    if isinstance(batch, Mapping):
        return (), dict(batch)
    if isinstance(batch, tuple | list) and not hasattr(batch, "_fields"):
        return tuple(batch), {}
    return (batch,), {}


def unflatten(leaves: list[object], tree: pytree.TreeSpec) -> tuple[tuple[object, ...], dict[str, object]]:
    """Return ``(args, kwargs)`` of leaves."""
    return cast(tuple[tuple[object, ...], dict[str, object]], pytree.tree_unflatten(leaves, tree))


def paths(tree: object, root: str) -> tuple[tuple[str, object], ...]:
    """Return (dotted name, leaf) of each leaf of a tree, names starting with ``root``."""
    found, _ = pytree.tree_flatten_with_path(tree)
    return tuple((".".join((root, *map(_key, path))), leaf) for path, leaf in found)


def is_tensor(leaf: object) -> bool:
    """Whether a leaf is a tensor."""
    return isinstance(leaf, torch.Tensor)


def _key(entry: object) -> str:
    for attribute in ("key", "idx", "name"):
        if hasattr(entry, attribute):
            return str(getattr(entry, attribute))
    return str(entry)
