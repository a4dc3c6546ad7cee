"""Rules that fire and pay, and both searches by the same rules, on programs where that is known."""

import torch

from benchmarks.firing import memory_on, rules_on, templates_on
from benchmarks.fragments import Piece
from benchmarks.searches import compared, price
from peakfold.graph.rewrite.driver import Limits
from peakfold.graph.rewrite.simplify import simplify
from peakfold.pipeline.task import Task


def captured(function, *shapes):
    batch = tuple(torch.rand(shape) for shape in shapes)
    return simplify(Task(Piece(function), None, None, batch).capture().graph).graph


def test_a_rule_that_pays_is_told_from_one_that_only_fires_and_one_that_cannot():
    graph = captured(lambda a, b, c: (a @ b) @ c, (64, 512), (512, 512), (512, 2))
    found = {one.name: one for one in rules_on(graph, "rtx3090")}
    pays = found["associate"]
    assert (pays.matched, pays.fired, pays.faster, pays.pays) == (1, 1, 1, 1)
    assert pays.seconds_saved > 0
    assert pays.most_bytes_saved > 0
    only_fires = captured(lambda a, b: a + b, (4, 4), (4, 4))
    assert all(one.fired and not one.pays for one in rules_on(only_fires, "rtx3090"))
    never = found["pairwise_row_once"]
    assert (never.matched, never.fired) == (2, 0)
    assert sum(never.refused.values()) == 2


def test_templates_are_made_everywhere_and_where_they_pay():
    graph = captured(lambda x, a, b: (x @ a).relu() + (x @ b).relu(), (64, 64), (64, 64), (64, 64))
    rows = {row["name"]: row for row in templates_on(graph, "rtx3090")}
    assert rows["merged_products"]["everywhere"]["fired"] == 1
    assert "fused_losses" not in rows
    assert not list(memory_on(graph, "rtx3090"))


def test_both_searches_find_the_same_by_the_same_rules():
    graph = captured(lambda a, b, c: a @ c + b @ c, (64, 64), (64, 64), (64, 64))
    found = compared(graph, Limits(states=5))
    for row in found.values():
        assert row["same_or_lower"]
        assert row["saturation"]["seconds"] < sum(price(graph).values())
        assert row["times_as_quick"] > 0
