"""A captured program with another graph: what that takes as given constants is computed here, once."""

from collections.abc import Iterator
from dataclasses import replace

import torch

from peakfold.bridge.capture.binding import Constant, Source
from peakfold.bridge.capture.captured import Captured
from peakfold.bridge.runtime.interpret import interpret
from peakfold.ir.graph import Graph, Node, Value


def with_graph(captured: Captured, graph: Graph) -> Captured:
    """Return a captured program with a rewritten graph.

    Inputs that the program did not have are nodes of it that read no input, under the same ids; they are
    computed, and bound as constants. None of them draws random numbers.

    Args:
        captured: the program.
        graph: what its graph was rewritten to.
    """
    binding, program = captured.binding, captured.graph
    known = dict(zip(program.input, binding.sources, strict=True))
    new = [given.id for given in graph.inputs if given.id not in known]
    if not new:
        return replace(captured, graph=graph)
    needed = tuple(_ancestors(program, new))
    values = interpret(Graph((), needed, ()), {}, {})
    made: tuple[torch.Tensor, ...] = tuple(values[Value(ident)] for ident in new)
    first = len(binding.constants)
    sources: dict[int, Source] = known | {ident: Constant(first + i) for i, ident in enumerate(new)}
    binding = replace(
        binding,
        sources=tuple(sources[given.id] for given in graph.inputs),
        constants=(*binding.constants, *made),
    )
    return replace(captured, graph=graph, binding=binding)


def _ancestors(graph: Graph, idents: list[int]) -> Iterator[Node]:
    """Yield the nodes that some are computed from, and these, in the order of the program."""
    needed, waiting = set(idents), list(idents)
    for ident in waiting:
        read = {value.node for value in graph.node[ident].inputs} - needed
        needed |= read
        waiting += read
    return (node for node in graph.nodes if node.id in needed)
