"""The fission tree: nesting, and what each move does to a state."""

import random

from peakfold.ir.graph import Value
from peakfold.ir.plan import Anchor, Run
from peakfold.plan.fission.candidates import Candidate
from peakfold.plan.fission.tree import Tree, choices, first_parts, next_parts


def candidate(nodes, axis="batch", length=12, again=(), source="hot"):
    runs = tuple(sorted([Run(node) for node in nodes] + [Run(node, 1) for node in again]))
    return Candidate(axis, length, runs, Anchor(Value(min(nodes)), 0), 100, 0, source)


BIG = candidate(range(10))
LEFT, RIGHT = candidate(range(4), "heads", 7), candidate(range(5, 9), "vocabulary", 8)
INNER = candidate(range(2), "hidden", 5)
CROSS = candidate(range(3, 6), "batch")
TREE = Tree((BIG, LEFT, RIGHT, INNER, CROSS))


def moved(parts, kind, tree=TREE):
    return {(move.index, move.parts) for move in tree.moves(parts) if move.kind == kind}


def test_the_parent_is_the_smallest_that_has_all_runs():
    assert TREE.parent == (None, 0, 0, 1, 0)


def test_from_nothing_everything_can_be_enabled():
    assert {index for index, _ in moved(TREE.disabled, "enable")} == {0, 1, 2, 3, 4}
    assert moved(TREE.disabled, "lift") == moved(TREE.disabled, "disable") == set()


def test_regions_that_cross_exclude_one_another():
    assert not TREE.fits(4, (1, 7, 1, 1, 1))
    assert TREE.fits(2, (1, 7, 1, 1, 1))
    assert TREE.fits(3, (1, 7, 1, 1, 1))
    assert not TREE.fits(3, (1, 3, 1, 1, 1))  # parts of 3 and of 1


def test_what_is_nested_runs_along_another_axis():
    assert not TREE.fits(4, (2, 1, 1, 1, 1))
    assert (1, (2, 2, 1, 1, 1)) in moved((2, 1, 1, 1, 1), "nest")


def test_a_second_run_is_not_nested():
    tree = Tree((BIG, candidate([5, 6], "heads", 4, again=[1])))
    assert tree.parent == (None, None)


def test_lift_goes_to_the_parent():
    assert moved((1, 1, 1, 5, 1), "lift") == {(1, (1, 2, 1, 1, 1))}


def test_an_outer_region_is_disabled_last():
    assert moved((2, 3, 1, 1, 1), "disable") == {(1, (2, 1, 1, 1, 1))}


def test_mutate_takes_the_next_divisor():
    assert moved((2, 1, 1, 1, 1), "mutate") == {(0, (3, 1, 1, 1, 1))}
    assert next_parts(BIG, 12) is None
    assert [next_parts(LEFT, 2), first_parts(LEFT), first_parts(BIG), first_parts(RIGHT)] == [7, 2, 2, 2]


def test_choices_come_out_with_a_smaller_last_part():
    for length in range(2, 70):
        for parts in choices(length):
            size = -(-length // parts)
            assert len(range(0, length, size)) == parts


def test_random_walks_keep_regions_nested_or_disjoint():
    draw = random.Random(0)
    parts = TREE.disabled
    for _ in range(300):
        parts = draw.choice(list(TREE.moves(parts))).parts
        on = [k for k, count in enumerate(parts) if count > 1]
        for one in on:
            for other in on:
                apart = not TREE.masks[one] & TREE.masks[other]
                nested = TREE.is_within(one, other) or TREE.is_within(other, one)
                assert one == other or apart or nested
        assert set(TREE.outermost(parts)) <= set(on)


def test_the_inside_of_a_region_is_what_is_nested_in_it():
    parts = (1, 3, 2, 5, 1)
    assert TREE.outermost(parts) == (1, 2)
    assert TREE.inside(parts, 1) == (1, 1, 1, 5, 1)


TURNED = Tree((BIG, candidate(range(3, 7), source="turn"), candidate(range(4, 6), source="turn"), LEFT))


def test_around_the_turn_parts_are_finer_along_the_same_axis():
    assert TURNED.fits(1, (6, 2, 1, 1))
    assert TURNED.fits(1, (3, 4, 1, 1))
    assert not TURNED.fits(1, (6, 3, 1, 1))  # a part has two places
    assert not TURNED.fits(1, (12, 1, 1, 1))  # a part has one
    ten = Tree((candidate(range(10), length=10), candidate(range(3, 7), length=10, source="turn")))
    assert ten.fits(1, (5, 2))
    assert not ten.fits(1, (4, 2))  # parts of 3 and of 1
    assert not TURNED.fits(2, (6, 2, 1, 1))  # of a part that is around the turn itself


def test_counts_are_along_the_whole_axis():
    assert TURNED.counts((6, 2, 1, 1)) == (6, 12, 1, 1)
    assert TURNED.counts((1, 2, 1, 1)) == (1, 2, 1, 1)
    assert TURNED.counts((4, 1, 1, 7)) == (4, 1, 1, 7)
    assert TURNED.counts((4, 2, 1, 1)) == (4, 6, 1, 1)  # places by two and one: nearly as by two


def test_all_moves_around_the_turn_come_out():
    waiting, seen = [TURNED.disabled], {TURNED.disabled}
    while waiting:
        for move in TURNED.moves(waiting.pop()):
            outer, inner, within, _ = move.parts
            for finer in (inner, within):
                if outer > 1 and finer > 1:
                    assert finer <= 12 // outer
                    assert not 12 % -(-12 // outer)
            assert 1 in (inner, within)
            if move.parts not in seen:
                seen.add(move.parts)
                waiting.append(move.parts)
    assert {(6, 2, 1, 1), (3, 1, 4, 1), (1, 4, 1, 1)} <= seen
