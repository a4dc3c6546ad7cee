"""The least cut against all cuts."""

from itertools import product

from hypothesis import given, settings
from hypothesis import strategies as st

from peakfold.graph.rewrite.mincut import Network

EDGES = st.lists(
    st.tuples(st.sampled_from("sabcd"), st.sampled_from("abcdt"), st.integers(0, 9)), max_size=12
)


def cost(edges, side):
    return sum(capacity for a, b, capacity in edges if a in side and b not in side)


@settings(max_examples=100, deadline=None)
@given(EDGES)
def test_no_cut_is_less(edges):
    network = Network()
    network.add("s", "t", 0.0)
    for a, b, capacity in edges:
        if a != b:
            network.add(a, b, float(capacity))
    found = network.side("s", "t")
    assert "s" in found
    assert "t" not in found
    sides = (
        {"s", *(n for n, inside in zip("abcd", pick, strict=True) if inside)}
        for pick in product((0, 1), repeat=4)
    )
    assert cost(edges, found) == min(cost(edges, side) for side in sides)
