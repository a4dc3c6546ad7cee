"""Operators that slide a window over rows: parts that share rows at their borders make the whole."""

from itertools import product

import pytest
from tests.torch.parts import by_region, corners
from tests.torch.test_links import agree, cases, near_one, program, whole_numbers

from peakfold.ops.links import links_of
from peakfold.ops.links.windows import INDICES

W, N = whole_numbers, near_one
ONE, NO = (1, 1), (0, 0)


def square(number):
    return (number, number)


def convolutions():
    """Rows, kernel, stride, padding, dilation, groups; with a bias where the rows are odd."""
    for rows, k, s, p, d, groups in [
        (7, 3, 1, 1, 1, 1), (8, 3, 2, 1, 1, 2), (8, 5, 2, 2, 1, 1), (6, 3, 1, 2, 2, 1), (12, 7, 3, 3, 1, 1),
        (8, 1, 2, 0, 1, 1), (12, 5, 3, 1, 1, 1), (8, 4, 4, 0, 1, 1), (10, 3, 1, 3, 3, 2), (6, 2, 1, 1, 2, 1),
    ]:  # fmt: skip
        bias = W(6) if rows % 2 else None
        rest = (square(s), square(p), square(d), False, NO, groups)
        yield "convolution.default", (W(2, 4, rows, 6), W(6, 4 // groups, k, k), bias, *rest)


def transposed():
    """Kernel, stride, padding, dilation, output padding, groups."""
    for k, s, p, d, o, groups in [
        (2, 2, 0, 1, 0, 1), (4, 2, 1, 1, 0, 1), (3, 1, 1, 1, 0, 2), (3, 2, 1, 1, 1, 1), (6, 2, 2, 1, 0, 1),
        (5, 2, 2, 1, 1, 1), (3, 1, 2, 2, 0, 1), (3, 3, 0, 1, 0, 1), (3, 2, 2, 2, 1, 1), (5, 3, 1, 1, 0, 1),
    ]:  # fmt: skip
        bias = W(6) if k % 2 else None
        rest = (square(s), square(p), square(d), True, square(o), groups)
        yield "convolution.default", (W(2, 4, 5, 3), W(4, 6 // groups, k, k), bias, *rest)


def gradients():
    """Gradients of weights: rows, kernel, stride, padding; of a transposed one with a bias or without."""
    for rows, k, s, p in [(8, 3, 1, 1), (8, 3, 2, 1), (12, 5, 2, 2), (6, 2, 2, 0), (9, 7, 3, 3)]:
        given = (W(2, 6, rows // s, 6 // s), W(2, 4, rows, 6), W(6, 4, k, k), (6,))
        rest = (square(s), square(p), ONE, False, NO, 1, (False, True, True))
        yield "convolution_backward.default", (*given, *rest)
    for rows, k, s, p, bias in [(4, 2, 2, 0, True), (5, 4, 2, 1, False), (6, 3, 1, 1, False)]:
        given = (W(2, 6, rows * s, 3 * s), W(2, 4, rows, 3), W(4, 6, k, k), (6,))
        rest = (square(s), square(p), ONE, True, NO, 1, (False, True, bias))
        yield "convolution_backward.default", (*given, *rest)


def pools():
    for rows, k, s, p, d in [
        (8, 2, 2, 0, 1),
        (8, 3, 2, 1, 1),
        (6, 3, 1, 1, 1),
        (9, 3, 3, 0, 1),
        (8, 5, 1, 2, 1),
    ]:
        rest = (square(k), square(s), square(p), square(d))
        yield "max_pool2d_with_indices.default", (N(2, 3, rows, 6), *rest)
    wide, narrow, two = N(2, 3, 8, 6), N(2, 3, 4, 3), square(2)
    rest = (two, two, NO, ONE, False, corners(2, 3, 8, 6))
    yield "max_pool2d_with_indices_backward.default", (narrow, wide, *rest)
    yield "avg_pool2d.default", (W(2, 3, 8, 6), two)
    yield "avg_pool2d.default", (W(2, 3, 8, 6), (4, 4), two, ONE)
    yield "avg_pool2d.default", (W(2, 3, 6, 6), (3,), (1,), (1,), False, True)
    yield "avg_pool2d_backward.default", (narrow, wide, two, two, NO, False, True, None)


WINDOWS = [*convolutions(), *transposed(), *gradients(), *pools()]


@pytest.mark.parametrize(("name", "args"), [*WINDOWS, *(case.values for case in cases())])
def test_parts_that_share_rows_make_the_whole(name, args):
    graph, node, values = program(name, args)
    axes = [a for a in links_of(graph, node).axes if a.has_halo or a.counted or node.op.packet in INDICES]
    for axis, parts in product(axes, (2, 3, None)):
        slot = axis.operands[0]
        vertex = (node.inputs[slot.index], slot.factor)
        found = by_region(graph, node, vertex, slot.factor.length, values, parts or slot.factor.length)
        for value, got in (found or {}).items():
            agree(got, values[value], name)


@pytest.mark.parametrize(("name", "args"), WINDOWS)
def test_windows_are_split_along_rows(name, args):
    graph, node, _ = program(name, args)
    dims = {slot.factor.dim for axis in links_of(graph, node).axes for slot in axis.operands}
    assert len(graph.tensor_type(node.inputs[0]).shape) - 2 in dims


@pytest.mark.parametrize(
    ("name", "args"),
    [
        ("convolution.default", (W(2, 4, 8, 6), W(6, 4, 3, 3), None, ONE, NO, ONE, False, NO, 1)),
        ("convolution.default", (W(2, 4, 7, 6), W(6, 4, 3, 3), None, (2, 2), ONE, ONE, False, NO, 1)),
        ("avg_pool2d.default", (W(2, 3, 6, 6), (3, 3), ONE, ONE, False, False)),
        ("avg_pool2d.default", (W(2, 3, 7, 6), (2, 2), (2, 2))),
    ],
)
def test_rows_that_do_not_come_out_are_not_split(name, args):
    graph, node, _ = program(name, args)
    dims = {slot.factor.dim for axis in links_of(graph, node).axes for slot in axis.operands}
    assert dims <= {0, 1, 3}
