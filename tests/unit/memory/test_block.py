"""One block for several layouts."""

from peakfold.plan.memory.block import block_beside, block_of, together
from peakfold.plan.memory.layout import Held, holding, lay_out
from peakfold.plan.memory.trace import Request, Trace


def layout(passing, kept, *held):
    bare = lay_out(Trace((Request(passing, 0, 1), Request(kept, 0, None)), length=2))
    return holding(bare, held)


def test_a_block_is_as_large_as_the_largest_layout_and_results_lie_above_what_passes():
    one, two, three = layout(640, 128), layout(64, 64), layout(64, 640)
    block = block_of([one, two, three])
    assert (block.own, block.results) == (768, 640)
    assert [of.offsets[1] + block.lift(of) for of in (one, two, three)] == [640, 640, 128]


def test_results_of_a_layout_that_came_later_lie_within_the_block():
    block = block_of([layout(64, 128)])
    assert block.lift(layout(128, 64)) == 0


def test_a_block_of_one_layout_has_every_place_where_the_layout_has_it():
    one = layout(64, 64, Held("w", 100, "parameters"), Held("x", 64, "inputs"))
    block = block_of([one])
    assert (block.size, block.held, block.lift(one)) == (one.arena, one.held, 0)


def test_results_lie_beside_what_passes_in_any_layout():
    block = block_beside([layout(640, 64), layout(64, 128)])
    assert block.size == 640 + 128


def test_layouts_that_take_more_together_than_each_give_way_to_the_first():
    large_batch = layout(64, 64, Held("x", 640, "inputs"))
    much_passing = layout(512, 64, Held("x", 64, "inputs"))
    small = layout(64, 64, Held("x", 64, "inputs"))
    assert together([large_batch, much_passing, small]) == [large_batch, small]
    assert together([much_passing, large_batch]) == [much_passing]
    assert together([]) == []
