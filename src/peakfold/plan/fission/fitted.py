"""Operands in a part as each operator reads them: rows that neighbours share, padded where there are none."""

from dataclasses import dataclass, field, replace
from functools import cached_property

from peakfold.ir.graph import Arg, Graph, Node, Op, Value
from peakfold.ir.types import TensorType, contiguous_strides
from peakfold.ops.links import Slot
from peakfold.ops.links.special import IGNORED
from peakfold.ops.links.windows import INDICES, given_halo, kernel_of
from peakfold.ops.strides import reads_strides
from peakfold.plan.fission.borders import Names, Place, resized, view_node
from peakfold.plan.fission.derived import Term
from peakfold.plan.fission.halos import NO_MARGIN, Halos
from peakfold.plan.fission.rows import Rows, off, padding, rows_of, rows_read
from peakfold.plan.fission.states import Assignment, Factor, Part

PAD = "aten.constant_pad_nd.default"
SLICE = "aten.slice.Tensor"
ADD = "aten.add.Scalar"
SUB = "aten.sub.Scalar"
NOT_COUNTED = -100
"""The label, in a part, of what belongs to another one."""

Made = tuple[Value, tuple[Node, ...]]
"""A Value, and the nodes that have to be added for it."""


@dataclass
class Fitted:
    """Fits values of one region to those that read them.

    Attributes:
        graph: what the region is of.
        states: how its values stand.
        halos: how far they reach beyond a part.
        place: which part.
        names: fresh ids and names.
    """

    graph: Graph
    states: Assignment
    halos: Halos
    place: Place
    names: Names
    _known: dict[object, Value] = field(default_factory=dict)

    # --- nodes ---

    def part(self, node: Node, part: Part) -> Part:
        """Return the sizes of a node's outputs, with what they have beyond the part."""
        use = self.halos.uses.get(node.id)
        if use is None or use.margin == NO_MARGIN:
            return part
        value = node.outputs[use.axis.outputs[0].index]
        factor = self._factor(value)
        assert factor is not None
        rows = rows_of(factor, self.halos.of(value))
        more = max(rows.counts(self.place)) - part.size * factor.inner
        return replace(part, rows=self.place.arg(rows.high, off(rows.low)), more=more)

    def called(self, node: Node, mine: Node) -> Node:
        """Return a node of a part with the arguments that it takes where its operand has its halo already."""
        use = self.halos.uses.get(node.id)
        if use is not None and use.axis.counted:
            at = IGNORED[node.op.packet]
            return replace(mine, args=(*mine.args[:at], NOT_COUNTED, *mine.args[at + 1 :]))
        if use is None or not use.axis.has_halo:
            return mine
        kernel = kernel_of(node, lambda value: self.graph.tensor_type(value).shape)
        slot = (*use.axis.outputs, *use.axis.operands)[0]
        dims = len(self.graph.tensor_type(node.inputs[0]).shape)
        return replace(mine, args=given_halo(mine, kernel, slot.factor.dim - (dims - len(kernel))))

    # --- operands ---

    def reads_as_it_is(self, node: Node, value: Value) -> bool:
        """Whether a node reads all rows of a value that a part has, and no more."""
        return all(
            self._wanted(node, index) is None for index, read in enumerate(node.inputs) if read == value
        )

    def operand(self, node: Node, index: int, mine: Value) -> Made:
        """Return an operand as a node reads it.

        Args:
            node: of the whole graph.
            index: which of its inputs.
            mine: the operand in the part, with all the rows that it has there.
        """
        fresh: tuple[Node, ...] = ()
        use = self.halos.uses.get(node.id)
        if use is not None and index in use.axis.counted:
            return self._labels(node, index, mine)
        if node.inputs[index] in self._counted or self._is_counted(node, index):
            mine, fresh = self._local(node, index, mine)
        wanted = self._wanted(node, index)
        if wanted is None:
            return mine, fresh
        made, more = self._fit(node, index, mine, wanted)
        return made, (*fresh, *more)

    def result(self, value: Value, mine: Value) -> Made:
        """Return a value as it is placed: without what it has beyond the part, counted from the first row."""
        fresh: tuple[Node, ...] = ()
        if value in self._counted:
            mine, fresh = self._shifted(value, mine, self._counted[value], ADD)
        factor, margin = self._factor(value), self.halos.of(value)
        if factor is None or margin == NO_MARGIN:
            return mine, fresh
        have, wanted = rows_of(factor, margin), rows_of(factor, NO_MARGIN)
        node = self._slice(value, mine, self._kind(value, have), have, wanted)
        return node.outputs[0], (*fresh, node)

    def _wanted(self, node: Node, index: int) -> Rows | None:
        """The rows of an operand that a node reads; None where they are those that it has."""
        slot, factor = self._slot(node, index), self._factor(node.inputs[index])
        if slot is None or factor is None or factor.outer > 1:
            return None
        wanted = rows_read(factor, self.halos.uses[node.id].margin.times(slot.factor.inner), slot.halo)
        have = rows_of(factor, self.halos.of(node.inputs[index]))
        return None if wanted.same(have, self.place) else wanted

    def _slot(self, node: Node, index: int) -> Slot | None:
        use = self.halos.uses.get(node.id)
        slots = () if use is None else use.axis.operands
        return next((slot for slot in slots if slot.index == index), None)

    def _factor(self, value: Value) -> Factor | None:
        state = self.states.get(value)
        return state if isinstance(state, Factor) else None

    def _kind(self, value: Value, rows: Rows) -> TensorType:
        """The type of some rows of a value."""
        factor = self._factor(value)
        assert factor is not None
        return resized(self.graph.tensor_type(value), factor.dim, max(rows.counts(self.place)))

    def _fit(self, node: Node, index: int, mine: Value, wanted: Rows) -> Made:
        value, slot, factor = node.inputs[index], self._slot(node, index), self._factor(node.inputs[index])
        assert slot is not None
        assert factor is not None
        have = rows_of(factor, self.halos.of(value))
        top, bottom = padding(have, wanted)
        fill = 0.0 if slot.halo is None or slot.halo.fill is None else slot.halo.fill
        cuts = max(self.place.each(*top) + self.place.each(*bottom)) <= 0
        views = cuts and reads_strides(node.op.name)
        key = (mine, wanted, views or cuts or fill, views)
        if key in self._known:
            return self._known[key], ()
        kind = self._kind(value, wanted)
        made = self._slice(value, mine, kind, have, wanted) if views else None
        if made is None:
            dims = len(kind.shape) - 1 - factor.dim
            pads = (*(0, 0) * dims, self.place.arg(*top), self.place.arg(*bottom))
            name = self.names.name(f"{self.graph.name_of(value)}.padded")
            made = Node(self.names.id(), name, Op(PAD), (mine, pads, fill), (), (_packed(kind),), (None,))
        self._known[key] = made.outputs[0]
        return made.outputs[0], (made,)

    def _slice(self, value: Value, mine: Value, kind: TensorType, have: Rows, wanted: Rows) -> Node:
        factor = self._factor(value)
        assert factor is not None
        ends = (
            self.place.arg(wanted.low, off(have.low)),
            self.place.arg(wanted.high, off(have.low)),
        )
        owned = resized(_packed(self._kind(value, have)), factor.dim, kind.shape[factor.dim])
        return view_node(
            self.names, f"{self.graph.name_of(value)}.own", SLICE, (mine, factor.dim, *ends), owned
        )

    # --- operands that count places ---

    def _labels(self, node: Node, index: int, mine: Value) -> Made:
        """Labels counted from the first class of a part; those of other parts do not count."""
        use = self.halos.uses[node.id]
        slot = use.axis.operands[0]
        factor = self._factor(node.inputs[slot.index])
        assert factor is not None
        ignored = node.args[IGNORED[node.op.packet]]
        key = (mine, factor.inner, ignored)
        if key in self._known:
            return self._known[key], ()
        kind = self.graph.tensor_type(node.inputs[index])
        flags = replace(kind, dtype="bool")
        first, count = (
            self.place.arg(Term("start", factor.inner)),
            self.place.arg(Term("extent", factor.inner)),
        )
        name = f"{self.graph.name_of(node.inputs[index])}.labels"
        fresh: list[Node] = []

        def made(op: str, kind: TensorType, *args: Arg) -> Value:
            fresh.append(
                Node(self.names.id(), self.names.name(name), Op(op), tuple(args), (), (kind,), (None,))
            )
            return fresh[-1].outputs[0]

        own = made(SUB, kind, mine, first)
        before, behind = made("aten.lt.Scalar", flags, own, 0), made("aten.ge.Scalar", flags, own, count)
        beside = made("aten.logical_or.default", flags, before, behind)
        out = made("aten.logical_or.default", flags, beside, made("aten.eq.Scalar", flags, mine, ignored))
        self._known[key] = made("aten.masked_fill.Scalar", kind, own, out, NOT_COUNTED)
        return self._known[key], tuple(fresh)

    @cached_property
    def _counted(self) -> dict[Value, tuple[Term, ...]]:
        """What a part counts from its own first row, by Value: places before that."""
        found = {}
        for ident in self.halos.uses:
            node = self.graph.node[ident]
            output = INDICES.get(node.op.packet)
            if output is not None and not node.op.packet.endswith("_backward"):
                found[Value(ident, output)] = self._before(node, 0)
        return {value: terms for value, terms in found.items() if terms}

    def _is_counted(self, node: Node, index: int) -> bool:
        return node.op.packet.endswith("_backward") and INDICES.get(node.op.packet) == index

    def _before(self, node: Node, index: int) -> tuple[Term, ...]:
        """Places of a plane before the rows of an operand that a part reads; none where it reads all rows."""
        slot, factor = self._slot(node, index), self._factor(node.inputs[index])
        shape = self.graph.tensor_type(node.inputs[index]).shape
        if slot is None or factor is None or factor.dim != len(shape) - 2:
            return ()
        margin = self.halos.uses[node.id].margin.times(slot.factor.inner)
        low = rows_read(factor, margin, slot.halo).low
        wide = shape[-1]
        least = None if low.least is None else low.least * wide
        return (replace(low, times=low.times * wide, plus=low.plus * wide, least=least),)

    def _local(self, node: Node, index: int, mine: Value) -> Made:
        """Indices as an operator reads them in a part: from its own first row, or from that of the whole."""
        value = node.inputs[index]
        made_with = self._counted.get(value, ())
        read_with = self._before(node, 1) if self._is_counted(node, index) else ()
        if made_with == read_with:
            return mine, ()
        whole, fresh = self._shifted(value, mine, made_with, ADD)
        local, more = self._shifted(value, whole, read_with, SUB)
        return local, (*fresh, *more)

    def _shifted(self, value: Value, mine: Value, terms: tuple[Term, ...], op: str) -> Made:
        key = (mine, terms, op)
        if not terms:
            return mine, ()
        if key in self._known:
            return self._known[key], ()
        factor = self._factor(value)
        assert factor is not None
        kind = _packed(self._kind(value, rows_of(factor, self.halos.of(value))))
        name = self.names.name(f"{self.graph.name_of(value)}.counted")
        node = Node(self.names.id(), name, Op(op), (mine, self.place.arg(*terms)), (), (kind,), (None,))
        self._known[key] = node.outputs[0]
        return node.outputs[0], (node,)


def _packed(kind: TensorType) -> TensorType:
    """The type of a tensor without gaps, channels last where the strides say so."""
    shape, strides = kind.shape, kind.strides
    if len(shape) == 4 and strides[1] == 1 and shape[1] > 1:
        _, c, h, w = shape
        return replace(kind, strides=(h * w * c, 1, w * c, c))
    return replace(kind, strides=contiguous_strides(shape))
