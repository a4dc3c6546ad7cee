"""Words of the user's own for the axes of a program."""

from collections.abc import Callable, Container, Iterable, Iterator

from peakfold.ir.graph import Graph, Input, Node, Value
from peakfold.ir.types import TensorType
from peakfold.ops.links import Factor

Place = tuple[Value, int]
IMAGE = {4: ("image channels", "image rows", "image columns"), 5: ("image channels", "image slices")}
ORDER = (
    "batch",
    "sequence",
    "vocabulary",
    "heads",
    "image rows",
    "image columns",
    "classes",
    "hidden",
    "image channels",
)
"""Words that win over all others, the strongest first."""


def words(graph: Graph) -> Callable[[Iterable[tuple[Value, Factor]]], str]:
    """Return a function that says in words what the members of an axis have in common.

    What the batch's inputs, tables of embeddings, scores of losses and attention say comes first; then what
    the dimensions of images are; then the names of parameters; else the name of the first member.
    """
    strong = dict(_strong(graph))
    weak = dict(_weak(graph))
    factored = dict(_heads(graph))

    def word(members: Iterable[tuple[Value, Factor]]) -> str:
        held = list(members)
        said = {strong[value, factor.dim] for value, factor in held if (value, factor.dim) in strong}
        said |= {factored[member] for member in held if member in factored}
        for name in ORDER:
            if name in said:
                return name
        for value, factor in held:
            if (value, factor.dim) in weak and factor.outer == factor.inner == 1:
                return weak[value, factor.dim]
        return _parameter_word(graph, held) or f"axis of {graph.name_of(held[0][0])}"

    return word


def is_single(graph: Graph, word: str) -> bool:
    """Whether a word means dimensions of a program, each of which is 1 long: they make no axis.

    Example:
        >>> is_single(Graph((), (), ()), "batch")
        False
    """
    meant = ((graph.type(value), dim) for (value, dim), said in _strong(graph) if said == word)
    held = ((kind.shape, dim) for kind, dim in meant if isinstance(kind, TensorType))
    return {shape[dim] for shape, dim in held if dim < len(shape)} == {1}


def _strong(graph: Graph) -> Iterator[tuple[Place, str]]:
    for given in graph.inputs:
        if given.kind == "batch" and isinstance(given.type, TensorType):
            yield from _batch_words(given, given.type)
        elif given.kind == "parameter" and isinstance(given.type, TensorType):
            yield from _parameter_words(Value(given.id), given.type)
    tables = {graph.tensor_type(node.inputs[0]).shape[0] for node in _embeddings(graph)}
    for node in _embeddings(graph):
        yield (node.inputs[0], 1), "hidden"
    for node in graph.nodes:
        packet = node.op.packet
        if packet.startswith("nll_loss") and packet.endswith("forward"):
            yield from _score_words(graph, node.inputs[0], tables)


def _batch_words(given: Input, kind: TensorType) -> Iterator[tuple[Place, str]]:
    value, dims = Value(given.id), len(kind.shape)
    if dims:
        yield (value, 0), "batch"
    if kind.dtype.startswith("int") and dims == 3:
        yield (value, 1), "image rows"
        yield (value, 2), "image columns"
    elif dims == 3 or (dims == 2 and kind.dtype.startswith("int")):
        yield (value, 1), "sequence"
    for dim, word in enumerate(IMAGE.get(dims, ()), 1):
        yield (value, dim), word


def _parameter_words(value: Value, kind: TensorType) -> Iterator[tuple[Place, str]]:
    """Tables of positions are ``[1, T, C]``."""
    if len(kind.shape) == 3 and kind.shape[0] == 1:
        yield (value, 1), "sequence"
        yield (value, 2), "hidden"


def _embeddings(graph: Graph) -> Iterator[Node]:
    return (node for node in graph.nodes if node.op.name == "aten.embedding.default")


def _score_words(graph: Graph, scores: Value, tables: Container[int]) -> Iterator[tuple[Place, str]]:
    """The dimension that a loss chooses from: rows of a table, or classes; before the softmax too."""
    shape = graph.tensor_type(scores).shape
    dim = min(len(shape) - 1, 1)
    word = "vocabulary" if shape[dim] in tables else "classes"
    maker = graph.node.get(scores.node)
    yield (scores, dim), word
    for value in () if maker is None else maker.inputs[:1]:
        yield (value, dim), word


def _weak(graph: Graph) -> Iterator[tuple[Place, str]]:
    """What the dimensions of images are, behind whatever cuts their axes off from the batch."""
    for node in graph.nodes:
        for value in (node.inputs[0], *node.outputs[:1]) if node.op.packet == "convolution" else ():
            yield (value, 0), "batch"
            for dim, word in enumerate(IMAGE.get(len(graph.tensor_type(value).shape), ())[1:], 2):
                yield (value, dim), word


def _heads(graph: Graph) -> Iterator[tuple[tuple[Value, Factor], str]]:
    """Factors that tell samples of a batched product apart, the innermost of several."""
    for node in graph.nodes:
        packet = node.op.packet
        if packet.startswith("_scaled_dot_product"):
            value = node.inputs[0]
            yield (value, Factor(1, 1, graph.tensor_type(value).shape[1], 1)), "heads"
        elif packet in ("view", "_unsafe_view", "reshape"):
            yield from _flattened_heads(graph, node)


def _flattened_heads(graph: Graph, node: Node) -> Iterator[tuple[tuple[Value, Factor], str]]:
    """``[B, H, T, h]`` that is viewed as ``[B * H, T, h]`` for a batched product."""
    source, target = graph.tensor_type(node.inputs[0]).shape, graph.tensor_type(node.outputs[0]).shape
    products = len(source) == 4 and len(target) == 3 and source[2:] == target[1:]
    readers = (graph.node[user].op.name for user in graph.users.get(node.outputs[0], ()))
    if products and any(name == "aten.bmm.default" for name in readers):
        yield (node.inputs[0], Factor(1, 1, source[1], 1)), "heads"


def _parameter_word(graph: Graph, members: list[tuple[Value, Factor]]) -> str:
    for value, factor in members:
        given = graph.input.get(value.node)
        if given is not None and isinstance(given.type, TensorType) and given.kind in ("parameter", "batch"):
            owner = given.name.rpartition(".")[0] or given.name
            dims = 0 if given.kind == "batch" else len(given.type.shape)
            return f"{_kind(dims, factor.dim)} of {owner}"
    return ""


def _kind(dims: int, dim: int) -> str:
    if dims >= 4:
        return ("channels", "input channels", "kernel rows", "kernel columns")[min(dim, 3)]
    return "inputs" if dims and dim else "features"
