"""Hypothesis strategies: any graphs, small training-like graphs that torch can run, and their plans.

Nothing here imports torch: the types that each operator gives are worked out by hand.
"""

from dataclasses import dataclass, field
from itertools import pairwise

from hypothesis import strategies as st

from peakfold.ir.graph import Graph, Input, Node, Op, Origin, Output, State, Symbol, Value
from peakfold.ir.plan import CompressGap, OffloadGap, Plan, Recompute
from peakfold.ir.recompute import why_not_again
from peakfold.ir.types import DTYPE_BYTES, ScalarType, TensorType, tensor
from peakfold.ops.packing import packing
from peakfold.plan.schedule.transfers import Movable

# --- any graph, for printing and parsing ---------------------------------------------------------

NAMES = st.one_of(
    st.from_regex(r"[a-z_][a-z0-9_.]{0,8}", fullmatch=True),
    st.sampled_from(["12", "-", "a b", "blocks[0:4]", "x:1", "é.ß", "inf", "nan", "inf.x", "None"]),
    st.sampled_from(["before", "backward", "a*", "#", '"', "\\"]),
    st.text(max_size=5),
)
SMALL = st.integers(0, 5)
SYMBOLS = st.builds(Symbol, st.sampled_from(["dtype", "device", "layout", "memory_format"]), NAMES)
SCALAR_TYPES = st.builds(ScalarType, st.sampled_from(["float", "int", "bool"]))
ORIGINS = st.builds(Origin, NAMES, NAMES, st.sampled_from(["forward", "backward", "update"]))


@st.composite
def any_types(draw):
    if draw(st.booleans()) and draw(st.booleans()):
        return draw(SCALAR_TYPES)
    shape = tuple(draw(st.lists(SMALL, max_size=4)))
    dtype = draw(st.sampled_from(sorted(DTYPE_BYTES)))
    device = draw(st.sampled_from(["cpu", "cuda:0", "cuda:1", "meta", "odd device"]))
    kind = tensor(*shape, dtype=dtype, device=device)
    if draw(st.booleans()):
        return kind
    return TensorType(shape, dtype, device, tuple(draw(SMALL) for _ in shape))


def any_args(values):
    # nan is left out: it differs from itself, so no graph with one is equal to another
    leaf = st.one_of(
        st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), NAMES, SYMBOLS,
        *([st.sampled_from(values)] if values else []),
    )  # fmt: skip
    return st.recursive(leaf, lambda items: st.lists(items, max_size=3).map(tuple), max_leaves=4)


@st.composite
def any_graphs(draw):
    """Graphs of every shape that the types allow; few mean anything."""
    names = iter(draw(st.lists(NAMES, min_size=12, max_size=12)))
    ids = iter(draw(st.lists(st.integers(0, 99), min_size=12, max_size=12, unique=True)))
    kinds = st.sampled_from(["parameter", "buffer", "gradient", "optimizer", "batch", "constant", "scalar"])
    inputs = [
        Input(next(ids), next(names), draw(kinds), draw(any_types())) for _ in range(draw(st.integers(0, 4)))
    ]
    values = [Value(given.id) for given in inputs]
    nodes = []
    for _ in range(draw(st.integers(0, 5))):
        node = draw(any_nodes(next(ids), next(names), list(values)))
        nodes.append(node)
        values += node.outputs
    outputs = [Output(draw(NAMES), draw(st.sampled_from(values))) for _ in range(2 if values else 0)]
    state = [State(given.id, draw(st.sampled_from(values))) for given in inputs if draw(st.booleans())]
    return Graph(tuple(inputs), tuple(nodes), tuple(outputs), tuple(state))


@st.composite
def any_nodes(draw, ident, name, values):
    types = tuple(draw(st.lists(any_types(), max_size=3)))
    alias = st.sampled_from([None, *values])
    return Node(
        id=ident,
        name=name,
        op=Op(draw(NAMES), draw(st.booleans()), draw(st.booleans())),
        args=tuple(draw(st.lists(any_args(values), max_size=3))),
        kwargs=tuple(draw(st.lists(st.tuples(NAMES, any_args(values)), max_size=2))),
        types=types,
        aliases=tuple(draw(alias) for _ in types),
        stream=draw(st.none() | st.integers(0, 20)),
        origin=draw(st.just(Origin()) | ORIGINS),
    )


# --- graphs that torch can run --------------------------------------------------------------------

UNARY = ("exp", "neg", "relu", "sigmoid", "tanh", "sqrt", "gelu", "silu", "clone")
BINARY = ("add.Tensor", "mul.Tensor", "sub.Tensor", "gelu_backward.default", "tanh_backward.default")
SHAPES = ((2, 3), (3, 2), (2, 2), (3, 3), (6,), (2, 1, 3))


@dataclass
class _Builder:
    """A graph under construction: values by type, so that operators find operands that fit."""

    inputs: list[Input] = field(default_factory=list)
    nodes: list[Node] = field(default_factory=list)
    types: dict[Value, TensorType] = field(default_factory=dict)
    numbers: list[Value] = field(default_factory=list)
    masks: list[tuple[Value, Value]] = field(default_factory=list)
    phase: str = "forward"
    draws: int = 0

    def given(self, name, kind, type_):
        ident = len(self.inputs)
        self.inputs.append(Input(ident, name, kind, type_))
        if isinstance(type_, ScalarType):
            self.numbers.append(Value(ident))
        else:
            self.types[Value(ident)] = type_
        return Value(ident)

    def call(self, op, args, *types, kwargs=(), alias=None, random=False):
        ident = 100 + len(self.nodes)
        name = f"{self.phase}.{op.split('.')[1]}_{ident}"
        node = Node(
            id=ident, name=name, op=Op(op, not random, random), args=tuple(args), kwargs=tuple(kwargs),
            types=types, aliases=(alias,) * len(types), stream=self.draws if random else None,
            origin=Origin("model", "model.py:1", self.phase),
        )  # fmt: skip
        self.draws += random
        self.nodes.append(node)
        self.types |= {
            value: kind
            for value, kind in zip(node.outputs, types, strict=True)
            if isinstance(kind, TensorType)
        }
        return Value(ident)

    def number(self, op, *args):
        ident = 100 + len(self.nodes)
        kind = ScalarType("float")
        self.nodes.append(
            Node(ident, f"{op}_{ident}", Op(op), args, (), (kind,), (None,), None, Origin("", "", self.phase))
        )
        self.numbers.append(Value(ident))
        return Value(ident)

    def floats(self):
        return [value for value, kind in self.types.items() if kind.dtype == "float32"]


@st.composite
def runnable_graphs(draw, max_nodes=10, state=True):
    """Graphs of real operators on float32: forward, backward-phase readers of it, updates of state.

    Products and sums of values near 1 stay finite; where they do not, nan is equal to nan bit by bit.
    """
    build = _Builder()
    for i in range(draw(st.integers(1, 3))):
        build.given(f"x{i}", "batch", tensor(*draw(st.sampled_from(SHAPES))))
    pairs = [
        build.given(f"w{i}", "parameter", tensor(*draw(st.sampled_from(SHAPES)))) for i in range(2 * state)
    ]
    rate = build.given("lr", "scalar", ScalarType("float"))
    for _ in range(draw(st.integers(1, max_nodes))):
        _operator(draw, build)
    build.phase = "backward"
    for _ in range(draw(st.integers(0, max_nodes))):
        _operator(draw, build)
    loss = build.call("aten.sum.default", [draw(st.sampled_from(build.floats()))], tensor())
    build.phase = "update"
    changed = [State(old.node, new) for old in pairs if (new := _update(draw, build, old, rate)) is not None]
    outputs = [Output("loss", loss)]
    if draw(st.booleans()):
        outputs.append(Output("extra", draw(st.sampled_from(build.floats()))))
    return Graph(tuple(build.inputs), tuple(build.nodes), tuple(outputs), tuple(changed))


def _operator(draw, build):
    makers = (_unary, _unary, _binary, _binary, _scaled, _view, _matmul, _softmax, _dropout, _pair, _mask)
    draw(st.sampled_from(makers))(draw, build, draw(st.sampled_from(build.floats())))


def pointwise(kind):
    """The type of a pointwise result: dense in the order of the strides, of which one place has none."""
    own = [stride for stride, size in zip(kind.strides, kind.shape, strict=True) if size > 1]
    rows = tensor(*kind.shape, dtype=kind.dtype)
    order = [stride for stride, size in zip(rows.strides, kind.shape, strict=True) if size > 1]
    return rows if own == order else kind


def _unary(draw, build, x):
    name = draw(st.sampled_from(UNARY))
    kind = build.types[x]
    build.call(f"aten.{name}.default", [x], kind if name == "clone" else pointwise(kind))


def _binary(draw, build, x):
    fitting = [value for value in build.floats() if build.types[value] == build.types[x]]
    name = draw(st.sampled_from(BINARY))
    build.call(f"aten.{name}", [x, draw(st.sampled_from(fitting))], pointwise(build.types[x]))


def _scaled(draw, build, x):
    factor = draw(st.sampled_from([0.5, 2.0, *build.numbers]))
    build.call("aten.mul.Tensor", [x, factor], build.types[x])


def _view(draw, build, x):
    kind = build.types[x]
    if len(kind.shape) == 2 and draw(st.booleans()):
        turned = tensor(*kind.shape[::-1], strides=kind.strides[::-1])
        build.call("aten.t.default", [x], turned, alias=x)
    elif kind.is_contiguous:
        build.call("aten.view.default", [x, (kind.numel,)], tensor(kind.numel), alias=x)


def _matmul(draw, build, x):
    kind = build.types[x]
    inner = kind.shape[-1:]
    fitting = [
        v for v in build.floats() if len(build.types[v].shape) == 2 and build.types[v].shape[:1] == inner
    ]
    if len(kind.shape) == 2 and fitting:
        y = draw(st.sampled_from(fitting))
        build.call("aten.mm.default", [x, y], tensor(kind.shape[0], build.types[y].shape[1]))


def _softmax(draw, build, x):
    kind = build.types[x]
    if kind.is_contiguous:
        name = draw(st.sampled_from(["_softmax", "_log_softmax"]))
        build.call(f"aten.{name}.default", [x, len(kind.shape) - 1, False], tensor(*kind.shape))


def _dropout(draw, build, x):
    kind = build.types[x]
    if kind.is_contiguous:
        mask = build.call("aten.bernoulli.p", [x, 0.5], kind, random=True)
        build.call("aten.mul.Tensor", [x, mask], kind)


def _mask(draw, build, x):
    """What is above a number, read at once and again later."""
    kind = build.types[x]
    if kind.is_contiguous:
        mask = build.call("aten.gt.Scalar", [x, 0.9], tensor(*kind.shape, dtype="bool"))
        build.masks.append((mask, x))
    for mask, like in build.masks[-3:]:
        if draw(st.booleans()):
            build.call("aten.masked_fill.Scalar", [like, mask, 0.5], build.types[like])


def _pair(draw, build, x):
    kind = build.types[x]
    if kind.is_contiguous:
        rows = tensor(*kind.shape[:-1])
        build.call("aten.max.dim", [x, len(kind.shape) - 1], rows, tensor(*kind.shape[:-1], dtype="int64"))


def _update(draw, build, old, rate):
    """SGD, momentum-like or a plain replacement; None leaves the input as it is."""
    kind = build.types[old]
    fitting = [v for v in build.floats() if build.types[v] == kind and v != old]
    how = draw(st.sampled_from(["sgd", "decay", "replace", "none"]))
    if how == "none" or not fitting:
        return None
    gradient = draw(st.sampled_from(fitting))
    if how == "replace":
        return build.call("aten.neg.default", [gradient], kind)
    step = build.number("host.neg", rate)
    shrunk = build.call("aten.mul.Tensor", [old, 0.9], kind) if how == "decay" else old
    return build.call("aten.add.Tensor", [shrunk, gradient], kind, kwargs=[("alpha", step)])


# --- plans ----------------------------------------------------------------------------------------


@st.composite
def plans(draw, graph):
    """Plans whose decisions are legal for a graph, any mixture of them."""
    refused = why_not_again(graph)
    steps = [node.id for node in graph.nodes if not node.is_view]
    pairs = [
        (node, use)
        for at, node in enumerate(steps)
        for use in steps[at + 1 :]
        if node not in refused and graph.node[use].origin.phase != "update"
    ]
    chosen = draw(st.lists(st.sampled_from(pairs), max_size=6, unique=True)) if pairs else []
    recompute = tuple(sorted(Recompute(node, use, draw(st.booleans())) for node, use in chosen))
    updates = draw(st.sampled_from(["early", "last"]))
    order = draw(orders(graph)) if draw(st.booleans()) else ()
    if order:
        place = {node: at for at, node in enumerate(order)}
        recompute = tuple(item for item in recompute if place[item.node] < place[item.use])
    offload = draw(offloads(graph)) if draw(st.booleans()) else ()
    compress = draw(packed(graph)) if draw(st.booleans()) else ()
    reuse = draw(st.booleans())
    return Plan(graph.digest, recompute, updates, reuse, order, offload, compress=compress)


@st.composite
def packed(draw, graph):
    """Any values that may be packed, between any of the nodes."""
    steps = [node.id for node in graph.nodes if not node.is_view]
    values = [v for node in graph.nodes for v in node.outputs if can_be_packed(graph, v)]
    return tuple(
        sorted(
            {
                CompressGap(v, draw(st.sampled_from([v.node, *steps])), draw(st.sampled_from(steps)))
                for v in values
                if draw(st.booleans())
            }
        )
    )


def can_be_packed(graph, value):
    return Movable(graph).why_not(value) is None and packing(graph, value) is not None


@st.composite
def offloads(draw, graph):
    """Any values that may be moved, between any of the nodes."""
    movable = Movable(graph)
    values = [value for value in graph.storages() if movable.why_not(value) is None]
    steps = [node.id for node in graph.nodes if not node.is_view]
    found = set()
    for value in draw(st.lists(st.sampled_from(values), max_size=6)) if values else []:
        after, gone, fetch, use = (draw(st.sampled_from(steps)) for _ in range(4))
        readers = [user for user in graph.users.get(value, ()) if user in steps]
        after = draw(st.sampled_from([after, value.node, *readers]))
        if value.node in graph.input or after != value.node or value.node in steps:
            found.add(OffloadGap(value, after, gone, fetch, use))
    return tuple(sorted(found))


@st.composite
def orders(draw, graph):
    """Topological orders of all steps that keep random operators, and old before new, in order."""
    steps = [node for node in graph.nodes if not node.is_view]
    place = {node.id: at for at, node in enumerate(steps)}
    needs = {node.id: {place[m] for m in _makers(graph, node)} for node in steps}
    random = [node.id for node in steps if node.op.random]
    for before, after in pairwise(random):
        needs[after].add(place[before])
    left, order, done = [node.id for node in steps], [], set()
    while left:
        ready = [ident for ident in left if needs[ident] <= done]
        order.append(draw(st.sampled_from(ready)))
        left.remove(order[-1])
        done.add(place[order[-1]])
    own = tuple(node.id for node in steps)
    return () if tuple(order) == own else tuple(order)


def _makers(graph, node):
    """Steps whose results a node reads, through views."""
    stack, found = list(node.inputs), []
    while stack:
        maker = graph.node.get(stack.pop().node)
        if maker is not None and maker.is_view:
            stack += maker.inputs
        elif maker is not None:
            found.append(maker.id)
    return found
