"""The sides of branches that a batch does not lead to, proved as well.

One run takes one side of each branch. Here both programs run again with branches decided the other way, at
each depth of nesting in turn and together: the user's own functions by a Python ``if``, the emitted program
with its sides exchanged.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import combinations

from peakfold.bridge.capture.intercept import intercepted
from peakfold.ir.control import COND, WHILE, depth, exchanged, nested
from peakfold.ir.graph import Graph
from peakfold.pipeline.program import Program, emit_plan

Side = Callable[..., object]

DEEPEST = 3
"""Most depths of branches whose sides are all proved: each doubles the runs."""


def why_one_side(program: Program, captured: Graph) -> str:
    """Return why branches cannot be decided the other way for a proof, or nothing where they can.

    Args:
        program: what is proved.
        captured: the same before it was rewritten.
    """
    nodes = [node for graph in nested(program.captured.graph) for node in graph.nodes]
    if any(node.op.name == WHILE for node in nodes):
        return "a loop may not end where branches are decided the other way"
    if program.captured.decided or _branches(captured) != _branches(program.captured.graph):
        return "some branches were decided when the program was captured or rewritten"
    if any(node.op.random and node.bodies for node in nodes):
        return "a branch draws random numbers"
    if depth(captured) > DEEPEST:
        return f"branches are nested {depth(captured)} deep, and {DEEPEST} is the most that is tried"
    return ""


def _branches(graph: Graph) -> int:
    return sum(node.op.name == COND for one in nested(graph) for node in one.nodes)


def ways(graph: Graph) -> Iterator[frozenset[int]]:
    """Yield each choice of depths at which branches are decided the other way, but for none.

    Example:
        >>> list(ways(Graph((), (), ())))
        []
    """
    depths = range(depth(graph))
    for count in range(1, len(depths) + 1):
        yield from map(frozenset, combinations(depths, count))


def other_sides(program: Program, depths: frozenset[int]) -> Program:
    """Return the same plan of a program whose branches at some depths take the other side."""
    graph = exchanged(program.captured.graph, depths)
    plan = replace(program.plan, graph=graph.digest)
    return emit_plan(replace(program.captured, graph=graph), plan, program.costs)


@contextmanager
def decided_otherwise(depths: frozenset[int]) -> Iterator[None]:
    """Have each torch.cond at some depths that eager calls inside take the side that it would not take."""
    now = 0

    def cond(predicate: object, then: Side, other: Side, operands: Sequence[object]) -> object:
        nonlocal now
        chosen = bool(predicate) != (now in depths)
        now += 1
        try:
            return (then if chosen else other)(*operands)
        finally:
            now -= 1

    def loop(*args: object) -> object:
        raise AssertionError("a program with loops is not proved this way")

    with intercepted(cond, loop):
        yield
