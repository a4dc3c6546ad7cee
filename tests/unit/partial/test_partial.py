"""Theorems 1 and 2, boxes, mutants and corrections, against brute force."""

from itertools import product

import numpy as np
import pytest
from hypothesis import given as drawing
from hypothesis import settings
from hypothesis import strategies as st

from peakfold.graph.partial.boxes import boxes, failing, positions, splits
from peakfold.graph.partial.correct import corrected, joined, restricted
from peakfold.graph.partial.mutants import mutants, random_pair
from peakfold.graph.partial.program import PRIME, IllegalProgram, apply, degree, drawn, evaluate, given

HOW = {"pad": (1, 1, 1, 1), "stride": (1, 1), "dilation": (1, 1)}


def brute(original, mutant, seed=500, tests=3):
    """Return where two programs differ on some inputs: every position is looked at."""
    differ = np.zeros(original.shape, bool)
    for test in range(tests):
        values = drawn((original, mutant), seed + test)
        differ |= evaluate(original, values) != evaluate(mutant, values)
    return differ


def cells(box):
    return product(*(range(low, high) for low, high in box))


@settings(max_examples=60, deadline=None)
@drawing(st.integers(0, 10**6))
def test_theorem_1_a_box_agrees_everywhere_or_differs_at_a_test_position(seed):
    original, mutant = random_pair(np.random.default_rng(seed))
    differ = brute(original, mutant)
    for box in boxes(original, mutant):
        if not any(differ[place] for place in positions(box)):
            assert not any(differ[place] for place in cells(box)), box


@settings(max_examples=60, deadline=None)
@drawing(st.integers(0, 10**6))
def test_a_corrected_mutant_is_exact(seed):
    original, mutant = random_pair(np.random.default_rng(seed))
    fused, plain = corrected(original, mutant), corrected(original, mutant, fuse=False)
    values = drawn((original,), seed + 1)
    expected = evaluate(original, values)
    assert np.array_equal(evaluate(fused, values), expected)
    assert np.array_equal(evaluate(plain, values), expected)
    assert fused.steps <= plain.steps


@settings(max_examples=40, deadline=None)
@drawing(st.integers(0, 10**6), st.data())
def test_a_restricted_program_is_that_part_of_the_whole(seed, data):
    original, _ = random_pair(np.random.default_rng(seed))
    box = []
    for n in original.shape:
        low = data.draw(st.integers(0, n - 1))
        box.append((low, data.draw(st.integers(low + 1, n))))
    values = drawn((original,), seed)
    whole = evaluate(original, values)
    cut = whole[tuple(slice(*each) for each in box)]
    assert np.array_equal(evaluate(restricted(original, tuple(box)), values), cut)


def test_theorem_2_the_chance_of_a_false_agreement_is_degree_over_the_field():
    a, b = given("a", 1, 2), given("b", 2, 1)
    product_ = apply("matmul", a, b)
    assert degree(product_) == 2
    assert degree(apply("add", product_, product_)) == 2
    small, draws = 5, 4000
    generator = np.random.default_rng(0)
    x = generator.integers(0, small, (draws, 2))
    agree = np.mean(x[:, 0] * x[:, 1] % small == 0)
    assert agree <= 2 / small
    assert (2 / PRIME) ** 4 < 2.0**-119


def test_a_padded_convolution_has_nine_boxes():
    conv = apply("conv", given("x", 1, 1, 8, 8), given("w", 1, 1, 3, 3), **HOW)
    assert len(list(boxes(conv, conv))) == 9
    assert [sorted(each) for each in splits(conv)] == [[0, 1], [0, 1], [0, 1, 7, 8], [0, 1, 7, 8]]


def test_batch_into_width_is_wrong_at_the_seams_alone():
    x, w = given("x", 3, 2, 6, 5), given("w", 2, 2, 3, 3)
    conv = apply("conv", x, w, **HOW)
    wide = apply("unfold", apply("conv", apply("fold", x, axis=3), w, **HOW), axis=3, parts=3)
    wrong = failing(conv, wide)
    assert {box[3] for box in wrong} == {(0, 1), (4, 5)}
    assert {(box[0], box[3]) for box in wrong} == {
        ((0, 1), (4, 5)), ((1, 2), (0, 1)), ((1, 2), (4, 5)), ((2, 3), (0, 1))
    }  # fmt: skip
    fused = corrected(conv, wide)
    assert fused.steps < corrected(conv, wide, fuse=False).steps
    assert "place" in str(fused)


def test_dilation_as_a_batch_is_equal_everywhere():
    x, w = given("x", 1, 1, 8, 8), given("w", 1, 1, 3, 3)
    wide = {"pad": (2, 2, 2, 2), "stride": (1, 1), "dilation": (2, 2)}
    dilated = apply("conv", x, w, **wide)
    batched = apply("to_space", apply("conv", apply("to_batch", x, by=2), w, **HOW), by=2)
    assert failing(dilated, batched) == []
    assert corrected(dilated, batched) is batched


def test_mutants_have_the_shape_of_the_original_and_differ_from_one_another():
    conv = apply("conv", given("x", 2, 2, 4, 4), given("w", 2, 2, 3, 3), **HOW)
    found = list(mutants(conv, depth=3, limit=30))
    assert found
    values = drawn((conv,), 0)
    assert {one.shape for one in found} == {conv.shape}
    assert len({evaluate(one, values).tobytes() for one in found}) == len(found)
    assert [str(one) for one in mutants(conv, depth=3, limit=30)] == [str(one) for one in found]
    turned = apply("transpose", conv, order=(0, 1, 3, 2))
    marks = {evaluate(one, values).tobytes() for one in found}
    assert evaluate(turned, values).tobytes() in marks


@settings(max_examples=40, deadline=None)
@drawing(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), min_size=1, max_size=9, unique=True))
def test_joined_boxes_cover_the_same(corners):
    unit = [((a, a + 1), (b, b + 1)) for a, b in corners]
    covered = [cell for box in joined(unit) for cell in cells(box)]
    assert sorted(covered) == sorted(corners)


def test_operators_refuse_what_does_not_fit():
    with pytest.raises(IllegalProgram, match="a product of"):
        apply("matmul", given("a", 2, 3), given("b", 2, 3))
    with pytest.raises(IllegalProgram, match="a window larger"):
        apply(
            "conv",
            given("x", 1, 1, 2, 2),
            given("w", 1, 1, 3, 3),
            pad=(0,) * 4,
            stride=(1, 1),
            dilation=(1, 1),
        )
