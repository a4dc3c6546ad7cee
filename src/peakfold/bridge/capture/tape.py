"""The tape: Values, the tensors that stand for them, and the nodes that have been recorded."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import cast

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import _disable_current_modes

from peakfold.bridge.capture.arguments import argument, ordered, recognised, tensor_type
from peakfold.bridge.capture.functional import NEW, draws, inverse, written_into
from peakfold.bridge.capture.host import HostBook, HostNumber
from peakfold.bridge.capture.places import Places, model_line
from peakfold.bridge.capture.replay import Replay
from peakfold.bridge.capture.storage import HOLE, Cell, Geometry, Storages, View, ViewCall, fill
from peakfold.bridge.capture.values import Values
from peakfold.errors import CaptureError
from peakfold.ir.graph import Arg, Graph, Input, Kind, Node, Op, State, Value
from peakfold.ir.types import ScalarType, TensorType
from peakfold.ops.known import known

aten = torch.ops.aten
OpOverload = torch._ops.OpOverload


@dataclass(eq=False)
class Tape:
    """What has been recorded so far.

    Attributes:
        fake: mode in which fake tensors are made.
        places: where in the user's program the trace is.
        inputs: graph inputs, in the order in which they were added.
        nodes: nodes in program order; names are given at the end.
        constants: tensors that the program holds, by input id.
        storages: what each tensor stands for.
        book: host numbers.
        host_values: what each host number stands for, by its tag.
        known: what real tensors of the model are called, by id.
        stand_ins: fake tensor of each constant, by id of the real one.
        held: cells of the constants that are there before the program runs.
        given: cells of the inputs, each with what it stood for before the program ran.
        input_writes: how often a graph input has been written.
        drawn: operators so far that took random numbers.
        key: that random numbers are made from; None where they are drawn from torch's stream.
        replay: what runs again stands for what ran first.
        values: numbers of tensors that no input has a part in.
        decided: a line of the model's code for each branch that is decided while it is recorded.
    """

    fake: FakeTensorMode
    places: Places
    inputs: list[Input] = field(default_factory=list)
    nodes: list[Node] = field(default_factory=list)
    constants: dict[int, torch.Tensor] = field(default_factory=dict)
    storages: Storages = field(default_factory=Storages)
    book: HostBook = field(default_factory=HostBook)
    host_values: dict[float, Value] = field(default_factory=dict)
    known: dict[int, str] = field(default_factory=dict)
    stand_ins: dict[int, torch.Tensor] = field(default_factory=dict)
    held: list[Cell] = field(default_factory=list)
    given: list[tuple[Cell, Value]] = field(default_factory=list)
    input_writes: int = 0
    drawn: int = 0
    key: torch.Tensor | None = None
    replay: Replay = field(default_factory=Replay)
    values: Values = field(default_factory=Values)
    decided: list[str] = field(default_factory=list)
    _ids: int = 0

    def _new_id(self) -> int:
        self._ids += 1
        return self._ids - 1

    def add_input(self, tensor: torch.Tensor, name: str, kind: Kind) -> Value:
        """Make a fake tensor an input of the graph."""
        value = Value(self._new_id())
        self.inputs.append(Input(value.node, name, kind, tensor_type(tensor)))
        self._stands_for(tensor, value)
        return value

    def _stands_for(self, tensor: torch.Tensor, value: Value) -> None:
        self.storages.whole(tensor, value, given=True)
        self.given.append((self.view(tensor).cell, value))

    def add_scalar(self, name: str, real: float | None, origin: object) -> HostNumber:
        """Make a host number an input of the graph."""
        number = self.book.given(origin, real)
        value = Value(self._new_id())
        self.inputs.append(Input(value.node, name, "scalar", ScalarType("float")))
        self.host_values[float(number)] = value
        return number

    def constant(self, tensor: torch.Tensor, *, fresh: bool = False) -> torch.Tensor:
        """Return the fake tensor of a real one that the program holds, or makes anew (`fresh`)."""
        if id(tensor) in self.known:
            raise CaptureError(
                stage="capture",
                what=f"{self.known[id(tensor)]} is used through an object that is not the module's attribute",
                where=model_line(),
                expected="the module's own attribute, read when it is used",
                hint="read the parameter from the module inside forward",
            )
        if id(tensor) in self.stand_ins:
            return self.stand_ins[id(tensor)]
        if self.book.holds_tag(tensor):
            raise CaptureError(
                stage="capture",
                what="the optimizer puts a number of param_groups into a tensor",
                expected="numbers that are passed to operators as they are",
                hint="pass optimizer=None: the step leaves gradients, and the optimizer runs by itself",
            )
        with self.fake:
            fake = Geometry.of(tensor).empty()
        known = self.same_constant(tensor) if self.replay.is_strict else None
        if known is not None:
            self._stands_for(fake, Value(known))
            return fake
        value = self.add_input(fake, f"constant.{len(self.constants)}", "constant")
        self.constants[value.node] = tensor
        self.stand_ins[id(tensor)] = fake
        if not fresh:
            self.held.append(self.view(fake).cell)
        return fake

    def same_constant(self, tensor: torch.Tensor) -> int | None:
        """Return the first constant that holds the same as a tensor, bit by bit; None for none."""
        return next((at for at, held in self.constants.items() if _are_same_bits(held, tensor)), None)

    def check_may_write(self, targets: Sequence[torch.Tensor]) -> None:
        """Refuse writes to tensors that are neither the model's nor the program's: later steps would not."""
        cells = [self.view(target).cell for target in targets] if self.held else []
        if self.places.phase != "forward" or not any(one is cell for one in self.held for cell in cells):
            return
        raise CaptureError(
            stage="capture",
            what="the forward pass writes into a tensor that is no buffer of the model",
            where=model_line(),
            expected="writes to buffers, and to tensors that the forward pass makes itself",
            got=f"a tensor of shape {tuple(targets[0].shape)}, which later steps would not write again",
            hint="make it a buffer (register_buffer), or write into a clone of it",
        )

    def value(self, tensor: torch.Tensor) -> Value:
        """Return what a tensor stands for now."""
        return self.read(self.view(tensor))

    def host_value(self, number: HostNumber) -> Value:
        """Return what a host number stands for, recording the nodes that compute it."""
        recorded = self.host_values.get(float(number))
        if recorded is not None:
            return recorded
        args = tuple(
            self.host_value(part) if isinstance(part, HostNumber) else cast(float, part)
            for part in number.operands
        )
        value = self.append(Op(f"host.{number.op}"), args, (), (ScalarType("float"),), (None,))
        self.host_values[float(number)] = value
        return value

    def item(self, tensor: torch.Tensor, origin: object = None, real: float | None = None) -> HostNumber:
        """Return the host number that a tensor of one element holds, recorded.

        Args:
            tensor: a fake one.
            origin: what it is read from before the step, where that is known.
            real: its value now, None where nobody knows it during capture.
        """
        value = self.value(tensor)
        number = self.book.given(value if origin is None else origin, real)
        kind = "float" if tensor.dtype.is_floating_point else "int"
        op = Op("aten._local_scalar_dense.default")
        self.host_values[float(number)] = self.append(
            op, (value,), (), (ScalarType(kind),), (None,)  # type: ignore[arg-type]
        )  # fmt: skip
        return number

    def number(self, number: float) -> HostNumber | None:
        """Return the recorded host number with these bits."""
        return recognised(number, self.book, strict=self.places.phase == "update")

    def write(self, tensor: torch.Tensor, value: Value, made: torch.Tensor) -> None:
        """Make a tensor stand for a new Value, which ``made`` is the fake tensor of."""
        self._write(self.view(tensor), value, made)

    def choose(self, condition: torch.Tensor, pair: State) -> State:
        """Return a state pair that keeps the old value where a condition does not hold."""
        old = Value(pair.input)
        given = next(i for i in self.inputs if i.id == pair.input)
        args = (self.value(condition), pair.output, old)
        return State(pair.input, self.append(Op("aten.where.self"), args, (), (given.type,), (None,)))

    def view(self, tensor: torch.Tensor) -> View:
        """Return the view that a tensor is."""
        view = self.storages.view(tensor)
        if view is not None:
            return view
        cell = self.storages.cell(tensor)
        if cell is None:
            raise CaptureError(
                stage="capture",
                what=f"a tensor of shape {tuple(tensor.shape)} comes from outside of the program",
                where=model_line(),
                hint="pass it in the batch, or register it as a buffer",
            )
        whole = View(cell, cell.geometry)
        geometry = Geometry.of(tensor)
        args = (HOLE, list(geometry.shape), list(geometry.strides), geometry.offset - cell.geometry.offset)
        view = View(cell, geometry, whole, ViewCall(aten.as_strided.default, args, {}, (geometry,)))
        self.storages.keep(tensor, view)
        return view

    def read(self, view: View) -> Value:
        """Return what a view stands for now, recording the view operators where they must run anew."""
        if view.parent is None:
            return view.cell.value
        if view.call is None:
            return self.read(view.parent)
        call = view.call
        if call.version != view.cell.version:
            above = self.read(view.parent)
            types = tuple(type_of(geometry) for geometry in call.outputs)
            args = tuple(argument(fill(arg, above), self) for arg in call.args)
            kwargs = ordered(call.op, call.kwargs, self)
            aliases = (above,) * len(types)
            call.node = self.append(operator(call.op), args, kwargs, types, aliases).node
            call.version = view.cell.version
        return Value(call.node, view.index)

    def _write(self, view: View, value: Value, made: torch.Tensor) -> None:
        while view.parent is not None:
            above = view.parent
            if view.call is not None:
                above = written_into(view, view.call)
                value, made = self._scatter(view, view.call, above, value, made)
            view = above
        whole = view.cell.geometry
        if tuple(made.stride()) != whole.strides or made.dtype != whole.dtype:
            value, made = self.compute(aten.copy.default, (view.cell.value, value), (self._fake(whole), made))
        self.input_writes += view.cell.given
        view.cell.value = value
        view.cell.version += 1

    def _scatter(
        self, view: View, call: ViewCall, above: View, value: Value, made: torch.Tensor
    ) -> tuple[Value, torch.Tensor]:
        op, args = inverse(call, view.index, above.geometry)
        rest = {"memory_format": torch.contiguous_format}
        if not any(arg is HOLE for arg in args):
            if made.dtype != above.geometry.dtype and not made.is_contiguous():
                value, made = self.compute(aten.clone.default, (value,), (made,), rest)
            return self.compute(op, _filled(args, None, value), _filled(args, None, made))
        if op is aten.as_strided_scatter.default:
            return self._scatter_strided(call.outputs[view.index], above, value, made)
        old, fake = self.read(above), self._fake(above.geometry)
        if above.is_part:  # a scatter copies all of the storage that its operand is a part of
            old, fake = self.compute(aten.clone.default, (old,), (fake,), rest)
        return self.compute(op, _filled(args, old, value), _filled(args, fake, made))

    def _scatter_strided(
        self, part: Geometry, above: View, value: Value, made: torch.Tensor
    ) -> tuple[Value, torch.Tensor]:
        """Scatter a part by its strides, counted from where the whole starts, wherever that lies."""
        whole, sides = above.geometry, (list(part.shape), list(part.strides))
        start, count = part.offset - whole.offset, math.prod(whole.shape)
        old = self.read(above), self._fake(whole)
        strided = aten.as_strided_scatter.default
        if not whole.is_dense:
            sizes = (list(whole.shape), list(whole.strides))
            room = self._then(aten.new_empty_strided.default, old, *sizes)
            room = self.compute(aten.copy.default, (room[0], old[0]), (room[1], old[1]))
            return self.compute(strided, (room[0], value, *sides, start), (room[1], made, *sides, start))
        order = sorted(range(len(whole.shape)), key=lambda dim: -whole.strides[dim])
        line = self._then(aten.reshape.default, self._then(aten.permute.default, old, order), [count])
        rest = self._then(aten.clone.default, self._then(aten.slice.Tensor, line, 0, start, count))
        put = self.compute(strided, (rest[0], value, *sides), (rest[1], made, *sides))
        if start:
            where = (0, start, count)
            put = self.compute(
                aten.slice_scatter.default, (line[0], put[0], *where), (line[1], put[1], *where)
            )
        back = self._then(aten.reshape.default, put, [whole.shape[dim] for dim in order])
        return self._then(aten.permute.default, back, [order.index(dim) for dim in range(len(order))])

    def _then(
        self, op: OpOverload, operand: tuple[Value, torch.Tensor], *rest: object
    ) -> tuple[Value, torch.Tensor]:
        value, fake = operand
        return self.compute(op, (value, *rest), (fake, *rest))

    def _fake(self, geometry: Geometry) -> torch.Tensor:
        with self.fake:
            return geometry.empty()

    def compute(
        self,
        op: OpOverload,
        values: tuple[object, ...],
        fakes: tuple[object, ...],
        kwargs: Mapping[str, object] | None = None,
    ) -> tuple[Value, torch.Tensor]:
        """Record an operator on Values, typed by running it on fake tensors."""
        keywords = kwargs or {}
        with self.fake:
            made = op(*fakes, **keywords)
        args = tuple(argument(value, self) for value in values)
        alias = self._shared(made, fakes, values)
        rest = ordered(op, keywords, self)
        return self.append(operator(op, values), args, rest, (tensor_type(made),), (alias,)), made

    @staticmethod
    def _shared(made: torch.Tensor, fakes: tuple[object, ...], values: tuple[object, ...]) -> Value | None:
        for fake, value in zip(fakes, values, strict=True):
            if isinstance(fake, torch.Tensor) and isinstance(value, Value) and same_storage(fake, made):
                return value
        return None

    def append(
        self,
        op: Op,
        args: tuple[Arg, ...],
        kwargs: tuple[tuple[str, Arg], ...],
        types: tuple[TensorType | ScalarType, ...],
        aliases: tuple[Value | None, ...],
        bodies: tuple[Graph, ...] = (),
    ) -> Value:
        """Record a node and return its first output; where it runs again, of the node that ran first."""
        stream = self.drawn if op.random else None
        self.drawn += op.random
        place = self.places.origin()
        node = Node(-1, "", op, args, kwargs, types, aliases, stream, place, bodies)
        before = self.replay.find(self.nodes, node)
        if before >= 0:
            return Value(before)
        node = replace(node, id=self._new_id())
        self.nodes.append(node)
        return Value(node.id)


def _are_same_bits(one: torch.Tensor, other: torch.Tensor) -> bool:
    if Geometry.of(one) != Geometry.of(other) or one.requires_grad != other.requires_grad:
        return False
    with _disable_current_modes(), torch.no_grad():
        return _bits(one) == _bits(other)


def _bits(tensor: torch.Tensor) -> bytes:
    return bytes(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy())


def _filled(args: tuple[object, ...], old: object, new: object) -> tuple[object, ...]:
    return tuple(old if arg is HOLE else new if arg is NEW else arg for arg in args)


def operator(
    func: OpOverload, args: tuple[object, ...] = (), kwargs: Mapping[str, object] | None = None
) -> Op:
    """Return the graph's operator for a call of a torch operator.

    One without a table entry counts as doing more than it says: it is a barrier, run once.
    """
    names = [a.name for a in func._schema.arguments]
    random = draws(func, {**dict(zip(names, args, strict=False)), **(kwargs or {})}) if args else False
    return Op(str(func), pure=not random and known(str(func)), random=random)


def type_of(geometry: Geometry) -> TensorType:
    """Return the type of a tensor of this geometry."""
    name = str(geometry.dtype).removeprefix("torch.")
    return TensorType(geometry.shape, name, str(geometry.device), geometry.strides)


def same_storage(left: torch.Tensor, right: torch.Tensor) -> bool:
    """Whether two tensors share their storage."""
    return bool(left.untyped_storage()._cdata == right.untyped_storage()._cdata)
