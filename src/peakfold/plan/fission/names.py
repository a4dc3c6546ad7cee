"""Words of the user's own for the axes of a program."""

from collections.abc import Callable, Iterable, Iterator, Mapping

from peakfold.ir.graph import Graph, Input, Node, Value
from peakfold.ir.types import TensorType
from peakfold.ops.links import Factor

Place = tuple[Value, int]
IMAGE = {4: ("image channels", "image rows", "image columns"), 5: ("image channels", "image slices")}
ORDER = ("batch", "sequence", "vocabulary", "heads", "image rows", "image columns", "classes")
"""Words that win over all others, the strongest first."""


def words(graph: Graph) -> Callable[[Iterable[tuple[Value, Factor]]], str]:
    """Return a function that says in words what the members of an axis have in common.

    What the batch's inputs, the tables of embeddings, the scores of losses and attention say comes first;
    then the names of parameters; else the name of the first member.
    """
    strong = dict(_strong(graph))
    factored = dict(_heads(graph))

    def word(members: Iterable[tuple[Value, Factor]]) -> str:
        held = list(members)
        said = {strong[value, factor.dim] for value, factor in held if (value, factor.dim) in strong}
        said |= {factored[member] for member in held if member in factored}
        for name in ORDER:
            if name in said:
                return name
        return (
            next(iter(sorted(said)), "") or _parameter_word(graph, held) or f"axis of {_first(graph, held)}"
        )

    return word


def _strong(graph: Graph) -> Iterator[tuple[Place, str]]:
    for given in graph.inputs:
        if given.kind == "batch" and isinstance(given.type, TensorType):
            yield from _batch_words(given, given.type)
    for node in graph.nodes:
        packet = node.op.name.split(".")[1]
        if packet.startswith("nll_loss") and packet.endswith("forward"):
            yield (node.inputs[0], 1), "vocabulary" if _has_table(graph, node.inputs[0]) else "classes"


def _batch_words(given: Input, kind: TensorType) -> Iterator[tuple[Place, str]]:
    value, dims = Value(given.id), len(kind.shape)
    if dims:
        yield (value, 0), "batch"
    if kind.dtype.startswith("int") and dims == 3:
        yield (value, 1), "image rows"
        yield (value, 2), "image columns"
    elif dims in (2, 3) and (dims == 3 or kind.dtype.startswith("int")):
        yield (value, 1), "sequence"
    for dim, word in enumerate(IMAGE.get(dims, ()), 1):
        yield (value, dim), word


def _has_table(graph: Graph, scores: Value) -> bool:
    """Whether some table of an embedding has as many rows as there are scores."""
    length = graph.tensor_type(scores).shape[1]
    tables = (node.inputs[0] for node in graph.nodes if node.op.name == "aten.embedding.default")
    return any(graph.tensor_type(table).shape[0] == length for table in tables)


def _heads(graph: Graph) -> Iterator[tuple[tuple[Value, Factor], str]]:
    """Factors that tell samples of a batched product apart, the innermost of several."""
    for node in graph.nodes:
        packet = node.op.name.split(".")[1]
        if packet.startswith("_scaled_dot_product"):
            value = node.inputs[0]
            yield (value, Factor(1, 1, graph.tensor_type(value).shape[1], 1)), "heads"
        elif packet == "view" or packet == "_unsafe_view":
            yield from _flattened_heads(graph, node)


def _flattened_heads(graph: Graph, node: Node) -> Iterator[tuple[tuple[Value, Factor], str]]:
    """``[B, H, T, h]`` that is viewed as ``[B * H, T, h]`` for a batched product."""
    source, target = graph.tensor_type(node.inputs[0]).shape, graph.tensor_type(node.outputs[0]).shape
    products = len(source) == 4 and len(target) == 3 and source[2:] == target[1:]
    readers = (graph.node[user].op.name for user in graph.users.get(node.outputs[0], ()))
    if products and any(name == "aten.bmm.default" for name in readers):
        yield (node.inputs[0], Factor(1, 1, source[1], 1)), "heads"


def _parameter_word(graph: Graph, members: list[tuple[Value, Factor]]) -> str:
    named: Mapping[int, Input] = graph.input
    for value, factor in members:
        given = named.get(value.node)
        if given is not None and isinstance(given.type, TensorType) and given.kind in ("parameter", "batch"):
            owner = given.name.rpartition(".")[0] or given.name
            kind = "channels" if len(given.type.shape) >= 4 and factor.dim < 2 else "features"
            kind = "kernel" if len(given.type.shape) >= 4 and factor.dim >= 2 else kind
            return f"{kind} of {owner}"
    return ""


def _first(graph: Graph, members: list[tuple[Value, Factor]]) -> str:
    return graph.name_of(members[0][0])
