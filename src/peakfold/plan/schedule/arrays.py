"""A Graph as integer arrays, made once, for the search and the simulator.

*Steps* are the nodes that are not views, in program order; a step's index is its position. Nodes
that compute host numbers are steps of no bytes and no seconds: they must run, and order counts.
*Storages* are the Values that own memory: graph inputs first, then what the steps make, in program
order. Host numbers are storages of no bytes (``host_number``), so that one set of arrays holds every
dependency; no schedule frees them.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from peakfold.cost.costs import Costs
from peakfold.ir.graph import Graph, Node, Value
from peakfold.ir.types import TensorType
from peakfold.ops.inplace import reusable_operands

Ints = npt.NDArray[np.int32]
Bytes = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Tables:
    """A Graph and its Costs as arrays. ``x[x_begin[i]:x_begin[i + 1]]`` belongs to row ``i``.

    Attributes:
        graph: where the rows come from.
        nodes: node id of each step.
        storages: owner of each storage.
        operand_begin, operands: storages that each step reads, without repeats, views resolved.
        output_begin, outputs: storages that each step makes; an output that shares the storage of an
            operand makes none.
        user_begin, users: steps that read each storage, in order.
        nbytes: bytes of each storage.
        producer: step that makes each storage, -1 for a graph input.
        host_number: storages that are host numbers.
        is_output: storages that the program returns (state excepted).
        state_input, state_output: for each pair of ``graph.state``, the storages of the input and of
            its new value; the two are equal where nothing changes.
        replaces: for each storage, the storage of the state input whose new value it is, or -1.
        seconds, workspace: cost of one run of each step; hidden bytes beyond its outputs.
        random, update, host, pure: flags of each step: draws random numbers, is of the update phase,
            computes host numbers only, has no effect but its outputs.
        reuse_begin, reuse_output, reuse_operand: for each step, the pairs of storages (output,
            operand) where the operator can write the output into the operand's bytes.
    """

    graph: Graph
    nodes: Ints
    storages: tuple[Value, ...]
    operand_begin: Ints
    operands: Ints
    output_begin: Ints
    outputs: Ints
    user_begin: Ints
    users: Ints
    nbytes: Bytes
    producer: Ints
    host_number: Flags
    is_output: Flags
    state_input: Ints
    state_output: Ints
    replaces: Ints
    seconds: Floats
    workspace: Bytes
    random: Flags
    update: Flags
    host: Flags
    pure: Flags
    reuse_begin: Ints
    reuse_output: Ints
    reuse_operand: Ints

    @cached_property
    def step_of(self) -> Mapping[int, int]:
        """Step of each node id; views have none."""
        return {int(node): step for step, node in enumerate(self.nodes)}

    @cached_property
    def storage_of(self) -> Mapping[Value, int]:
        """Index of each Value that owns a storage."""
        return {owner: index for index, owner in enumerate(self.storages)}

    @cached_property
    def resident(self) -> int:
        """Bytes of all graph inputs: the user holds them during the whole step."""
        return int(self.nbytes[self.producer < 0].sum())

    @property
    def steps(self) -> int:
        """Number of steps."""
        return len(self.nodes)

    def index(self, value: Value) -> int:
        """Return the index of the storage that a Value, a view included, lies in."""
        return self.storage_of[self.graph.storage(value)]


def tabulate(graph: Graph, costs: Costs) -> Tables:
    """Return the arrays of a graph.

    Args:
        graph: the program.
        costs: seconds and hidden bytes by node id.

    Example:
        >>> from peakfold.ir.graph import Input, Op, Output, Node
        >>> from peakfold.ir.types import tensor
        >>> x = Input(0, "x", "batch", tensor(4))
        >>> relu = Node(1, "relu", Op("aten.relu.default"), (Value(0),), (), (tensor(4),), (None,))
        >>> tables = tabulate(Graph((x,), (relu,), (Output("y", Value(1)),)), Costs({1: 1e-6}, {}))
        >>> tables.nbytes.tolist(), tables.operands.tolist(), tables.outputs.tolist()
        ([16, 16], [0], [1])
    """
    steps = [node for node in graph.nodes if not node.is_view]
    storages = tuple(_owners(graph))
    index = {owner: i for i, owner in enumerate(storages)}

    def storage(value: Value) -> int:
        return index[graph.storage(value)]

    operands = [_unique(storage(value) for value in node.inputs) for node in steps]
    outputs = [[index[value] for value in node.outputs if value in index] for node in steps]
    users: list[list[int]] = [[] for _ in storages]
    producer = np.full(len(storages), -1, np.int32)
    for step, (reads, makes) in enumerate(zip(operands, outputs, strict=True)):
        for item in reads:
            users[item].append(step)
        producer[makes] = step
    state_input = [storage(Value(pair.input)) for pair in graph.state]
    state_output = [storage(pair.output) for pair in graph.state]
    replaces = np.full(len(storages), -1, np.int32)
    for old, new in zip(state_input, state_output, strict=True):
        if old != new:
            replaces[new] = old
    returned = {storage(output.value) for output in graph.outputs}
    pairs = [_in_place(graph, node) for node in steps]
    return Tables(
        graph=graph,
        nodes=np.array([node.id for node in steps], np.int32),
        storages=storages,
        operand_begin=begins(operands),
        operands=flat(operands),
        output_begin=begins(outputs),
        outputs=flat(outputs),
        user_begin=begins(users),
        users=flat(users),
        nbytes=np.array([graph.nbytes(owner) for owner in storages], np.int64),
        producer=producer,
        host_number=np.array([not isinstance(graph.type(owner), TensorType) for owner in storages], np.bool_),
        is_output=np.array([i in returned for i in range(len(storages))], np.bool_),
        state_input=np.array(state_input, np.int32),
        state_output=np.array(state_output, np.int32),
        replaces=replaces,
        seconds=np.array([costs.seconds.get(node.id, 0.0) for node in steps], np.float64),
        workspace=np.array([costs.workspace.get(node.id, 0) for node in steps], np.int64),
        random=np.array([node.op.random for node in steps], np.bool_),
        update=np.array([node.origin.phase == "update" for node in steps], np.bool_),
        host=np.array([node.is_host for node in steps], np.bool_),
        pure=np.array([node.op.pure for node in steps], np.bool_),
        reuse_begin=begins(pairs),
        reuse_output=flat([[index[output] for output, _ in row] for row in pairs]),
        reuse_operand=flat([[storage(operand) for _, operand in row] for row in pairs]),
    )


def _owners(graph: Graph) -> Iterator[Value]:
    for given in graph.inputs:
        yield Value(given.id)
    for node in graph.nodes:
        for value, alias in zip(node.outputs, node.aliases, strict=True):
            if alias is None:
                yield value


def _in_place(graph: Graph, node: Node) -> list[tuple[Value, Value]]:
    ways = reusable_operands(graph, node)
    return list(dict.fromkeys((Value(node.id, way.output), way.operand) for way in ways))


def _unique(items: Iterable[int]) -> list[int]:
    return list(dict.fromkeys(items))


def begins(rows: Sequence[Sequence[object]]) -> Ints:
    """Return where each row begins when all are put end to end, and where the last ends."""
    return np.cumsum([0, *(len(row) for row in rows)], dtype=np.int32)


def flat(rows: Sequence[Sequence[int]]) -> Ints:
    """Return the rows put end to end."""
    return np.array([item for row in rows for item in row], np.int32)
