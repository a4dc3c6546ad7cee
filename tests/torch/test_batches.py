"""A batch of tensors alone is flattened as any other is, without walking it."""

from collections import OrderedDict, namedtuple

import pytest
import torch
from torch.utils import _pytree as pytree

from peakfold.bridge.capture.batches import arguments, flatten
from peakfold.bridge.runtime.lent import as_tensors

T = torch.zeros(2)
Pair = namedtuple("Pair", "left right")
BATCHES = [
    T,
    (),
    (T,),
    [T, T],
    (T, 1),
    (T, (T, T)),
    {},
    {"x": T, "a": T},
    {"a": T, "x": T},
    {"x": T, "y": 2.0},
    {"x": [T, T]},
    {1: T},
    OrderedDict(x=T, y=T),
    Pair(T, T),
    (torch.nn.Parameter(T), None),
]


@pytest.mark.parametrize("batch", BATCHES, ids=str)
def test_leaves_tree_and_names_are_those_of_the_tree(batch):
    found = flatten(batch)
    leaves, tree = pytree.tree_flatten(arguments(batch))
    assert len(found.leaves) == len(leaves) == len(found.names)
    assert all(a is b for a, b in zip(found.leaves, leaves, strict=True))
    assert found.tree == tree
    args, kwargs = pytree.tree_unflatten(list(found.names), found.tree)
    assert [name.split(".")[1] for name in pytree.tree_leaves(args)] == [
        str(i) for i, arg in enumerate(args) for _ in pytree.tree_leaves(arg)
    ]
    assert [name.split(".")[1] for name in pytree.tree_leaves(kwargs)] == [
        str(key) for key, part in kwargs.items() for _ in pytree.tree_leaves(part)
    ]
    assert as_tensors(batch)[0] is batch
