"""What a part adds to a result is added as soon as it is made: sums term by term, products by themselves.

The gradient of a weight that is read twice, of an embedding that is the last layer too, is a sum of two
that are made far apart. Were they added up before they go into the result, the first would live until then.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from peakfold.ir.graph import Node, Op, State, Value, substitute
from peakfold.plan.fission.borders import COMBINES, ORIGIN

ADD = COMBINES["sum"]
PRODUCTS: Mapping[str, str] = {
    "aten.mm.default": "aten.addmm.default",
    "aten.bmm.default": "aten.baddbmm.default",
}
"""Matrix products, and what adds them to an accumulator without a product of their own."""
TURNS = frozenset({"t", "transpose", "permute"})
"""Views of the same numbers in another order; one of the type of what it is a view of is the same tensor."""

Readers = Mapping[Value, Sequence[int]]


def accumulated(nodes: Sequence[Node], state: Sequence[State]) -> tuple[list[Node], list[State]]:
    """Return a body in which what only goes into a state goes into it term by term, products by themselves.

    Args:
        nodes: of the body, in program order.
        state: its pairs.
    """
    by_id, readers = {node.id: node for node in nodes}, _readers(nodes)
    place = {node.id: at for at, node in enumerate(nodes)}
    links: dict[int, Node] = {}
    behind: dict[int, Node] = {}
    for pair in state:
        total = by_id[pair.output.node]
        if not is_sum(total) or total.args[0] != Value(pair.input):
            continue
        links[total.id] = total
        both = _two_terms(total, by_id, readers)
        if both is None:
            continue
        middle, *made = both
        first, last = sorted(made, key=lambda term: (place[term.node], term.index))
        links[middle.id] = replace(middle, args=(Value(pair.input), first))
        links[total.id] = replace(total, args=(Value(middle.id), last))
        behind[first.node] = links[middle.id]
    early = {node.id for node in behind.values()}
    kept = (links.get(node.id, node) for node in nodes if node.id not in early)
    apart = [one for node in kept for one in (node, *([behind[node.id]] if node.id in behind else ()))]
    return _in_products(apart, state, [node.id for node in apart if node.id in links])


def is_sum(node: Node) -> bool:
    """Whether a node is the sum of two values, as they are."""
    return node.op.name == ADD and not node.kwargs and len(terms(node)) == 2 == len(node.args)


def terms(node: Node) -> list[Value]:
    """Return the values that a sum is of."""
    return [arg for arg in node.args if isinstance(arg, Value)]


def _two_terms(total: Node, by_id: Mapping[int, Node], readers: Readers) -> tuple[Node, Value, Value] | None:
    """Return the sum of two values that goes into a state alone, and the two; None where it is none."""
    made = terms(total)[1]
    middle = by_id.get(made.node)
    if middle is None or not is_sum(middle) or middle.types != total.types or len(readers[made]) > 1:
        return None
    first, last = terms(middle)
    if first == last or not {first.node, last.node} <= by_id.keys() or first.node == last.node:
        return None
    return middle, first, last


def _in_products(
    nodes: Sequence[Node], state: Sequence[State], links: Sequence[int]
) -> tuple[list[Node], list[State]]:
    """Make products that are only added to a state add to it themselves.

    Args:
        nodes: of the body, in program order.
        state: its pairs.
        links: ids of the sums that add to one.
    """
    by_id, readers = {node.id: node for node in nodes}, _readers(nodes)
    place = {node.id: at for at, node in enumerate(nodes)}
    states = {Value(pair.input) for pair in state}
    new: dict[Value, Value] = {}
    fused: dict[int, Node] = {}
    gone: set[int] = set()
    for ident in links:
        so_far, made = terms(by_id[ident])
        *views, maker = (by_id[ident], *turned(made, by_id, readers))
        if maker.op.name not in PRODUCTS or maker.types != by_id[ident].types:
            continue
        if place.get(so_far.node, -1) > place[maker.id]:
            continue
        origin = maker.origin if so_far in states else ORIGIN
        added = replace(maker, op=Op(PRODUCTS[maker.op.name]), args=(so_far, *maker.args))
        fused[maker.id] = replace(added, origin=origin)
        new[Value(ident)] = Value(maker.id)
        gone |= {node.id for node in views}
    kept = (fused.get(node.id, node) for node in nodes if node.id not in gone)
    return (
        [replace(node, args=tuple(substitute(arg, new) for arg in node.args)) for node in kept],
        [replace(pair, output=new.get(pair.output, pair.output)) for pair in state],
    )


def turned(made: Value, by_id: Mapping[int, Node], readers: Readers) -> Iterator[Node]:
    """Yield what makes a value that one node reads, views that turn it first; nothing where more do."""
    node = by_id.get(made.node)
    while node is not None and len(readers[made]) == 1:
        yield node
        of = node.args[0] if node.is_view and node.op.packet in TURNS else None
        if not isinstance(of, Value):
            return
        made, node = of, by_id.get(of.node)


def _readers(nodes: Sequence[Node]) -> Readers:
    found: dict[Value, list[int]] = {}
    for node in nodes:
        for value in node.inputs:
            found.setdefault(value, []).append(node.id)
    return found
