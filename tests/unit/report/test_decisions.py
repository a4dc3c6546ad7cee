from peakfold.ir.plan import Plan
from peakfold.report.decisions import decisions_of


def test_recomputation_is_told_by_module_largest_first(chain):
    found = decisions_of(chain.graph(), chain.plan(), chain.costs())
    assert [(item.action, item.what) for item in found] == [
        ("recompute", "layers.1: mm, relu"),
        ("recompute", "layers.3: mm, relu"),
        ("recompute", "layers.5: mm, relu"),
        ("update", "each parameter"),
        ("reuse", "dying operands"),
    ]
    assert found[0].nbytes == 2 * 2048 * 512 * 4
    assert round(found[0].seconds, 6) == 0.0022


def test_an_order_of_ones_own_and_late_updates_are_told(chain):
    graph = chain.graph()
    own = [node.id for node in graph.nodes]
    own[-1], own[-2] = own[-2], own[-1]
    found = decisions_of(
        graph, Plan(graph.digest, updates="last", reuse=False, order=tuple(own)), chain.costs()
    )
    assert [(item.action, item.what) for item in found] == [
        ("order", f"2 of {len(own)} operators"),
        ("update", "all parameters"),
    ]
