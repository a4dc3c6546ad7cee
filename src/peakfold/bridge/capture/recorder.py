"""Every operator that a program runs below autograd, recorded as nodes of a functional Graph."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache

import torch
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    FakeTensorMode,
)
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from peakfold.bridge.capture.arguments import argument, check_dense, ordered, recognised, tensor_type
from peakfold.bridge.capture.functional import DRAWS_IN_LOGICAL_ORDER, NEW, SILENT, draws, functional, inverse
from peakfold.bridge.capture.host import HostBook, HostNumber
from peakfold.bridge.capture.places import Places, model_line
from peakfold.bridge.capture.storage import HOLE, Geometry, Storages, View, ViewCall, fill
from peakfold.errors import CaptureError
from peakfold.ir.graph import Arg, Input, Kind, Node, Op, State, Value
from peakfold.ir.types import ScalarType, TensorType

aten = torch.ops.aten
OpOverload = torch._ops.OpOverload

NOTHING = TensorType((0,), "float32", "cpu", (1,))
"""Type of an output that an operator leaves out: it has a place, and no bytes."""

_SAME = frozenset((aten.detach.default, aten.alias.default, aten.lift_fresh.default))
_IN_PLACE_VIEWS = frozenset(
    ("aten::squeeze_", "aten::unsqueeze_", "aten::t_", "aten::transpose_", "aten::swapaxes_",
     "aten::swapdims_", "aten::as_strided_", "aten::detach_")
)  # fmt: skip


@dataclass
class Recording:
    """What has been recorded so far.

    Attributes:
        inputs: graph inputs, in the order in which they were added.
        nodes: nodes in program order; names are given at the end.
        constants: tensors that the program holds, by input id.
        storages: what each tensor stands for.
        book: host numbers.
    """

    inputs: list[Input] = field(default_factory=list)
    nodes: list[Node] = field(default_factory=list)
    constants: dict[int, torch.Tensor] = field(default_factory=dict)
    storages: Storages = field(default_factory=Storages)
    book: HostBook = field(default_factory=HostBook)
    host_values: dict[float, Value] = field(default_factory=dict)
    draws: int = 0
    ids: int = 0

    def new_id(self) -> int:
        """Return the next free id."""
        self.ids += 1
        return self.ids - 1


class Recorder(TorchDispatchMode):
    """Records operators on fake tensors; stands on top of a `FakeTensorMode`."""

    supports_higher_order_operators = True

    def __init__(self, fake: FakeTensorMode, places: Places) -> None:
        super().__init__()
        self.fake = fake
        self.places = places
        self.recording = Recording()
        self.known: dict[int, str] = {}
        self.constants: dict[int, torch.Tensor] = {}
        self.input_writes = 0

    # -- inputs -------------------------------------------------------------------------------

    def add_input(self, tensor: torch.Tensor, name: str, kind: Kind) -> Value:
        """Make a fake tensor an input of the graph."""
        value = Value(self.recording.new_id())
        self.recording.inputs.append(Input(value.node, name, kind, tensor_type(tensor)))
        self.recording.storages.whole(tensor, value, given=True)
        return value

    def add_scalar(self, name: str, real: float | None, origin: object) -> HostNumber:
        """Make a host number an input of the graph."""
        number = self.recording.book.given(origin, real)
        value = Value(self.recording.new_id())
        self.recording.inputs.append(Input(value.node, name, "scalar", ScalarType("float")))
        self.recording.host_values[float(number)] = value
        return number

    def constant(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return the fake tensor of a real one that the program holds."""
        if id(tensor) in self.known:
            raise CaptureError(
                stage="capture",
                what=f"{self.known[id(tensor)]} is used through an object that is not the module's attribute",
                where=model_line(),
                expected="the module's own attribute, read when it is used",
                hint="read the parameter from the module inside forward",
            )
        if id(tensor) in self.constants:
            return self.constants[id(tensor)]
        with self.fake:
            fake = Geometry.of(tensor).empty()
        value = self.add_input(fake, f"constant.{len(self.recording.constants)}", "constant")
        self.recording.constants[value.node] = tensor
        self.constants[id(tensor)] = fake
        return fake

    # -- reading and writing ------------------------------------------------------------------

    def value(self, tensor: torch.Tensor) -> Value:
        """Return what a tensor stands for now."""
        return self._read(self._view(tensor))

    def host_value(self, number: HostNumber) -> Value:
        """Return what a host number stands for, recording the nodes that compute it."""
        known = self.recording.host_values.get(float(number))
        if known is not None:
            return known
        args: list[Arg] = []
        for part in number.operands:
            args.append(self.host_value(part) if isinstance(part, HostNumber) else part)  # type: ignore[arg-type]
        value = self._append(Op(f"host.{number.op}"), tuple(args), (), (ScalarType("float"),), (None,))
        self.recording.host_values[float(number)] = value
        return value

    def item(self, tensor: torch.Tensor) -> HostNumber:
        """Return the host number that a tensor of one element holds, recorded."""
        value = self.value(tensor)
        number = self.recording.book.given(value, None)
        kind = "float" if tensor.dtype.is_floating_point else "int"
        op = Op("aten._local_scalar_dense.default")
        self.recording.host_values[float(number)] = self._append(
            op, (value,), (), (ScalarType(kind),), (None,)  # type: ignore[arg-type]
        )  # fmt: skip
        return number

    def number(self, number: float) -> HostNumber | None:
        """Return the recorded host number with these bits."""
        return recognised(number, self.recording.book, strict=self.places.phase == "update")

    def write(self, tensor: torch.Tensor, value: Value, made: torch.Tensor) -> None:
        """Make a tensor stand for a new Value, which ``made`` is the fake tensor of."""
        self._write(self._view(tensor), value, made)

    def choose(self, condition: torch.Tensor, pair: State) -> State:
        """Return a state pair that keeps the old value where a condition does not hold."""
        old = Value(pair.input)
        given = next(i for i in self.recording.inputs if i.id == pair.input)
        args = (self.value(condition), pair.output, old)
        return State(pair.input, self._append(Op("aten.where.self"), args, (), (given.type,), (None,)))

    def _view(self, tensor: torch.Tensor) -> View:
        view = self.recording.storages.view(tensor)
        if view is not None:
            return view
        cell = self.recording.storages.cell(tensor)
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
        self.recording.storages.keep(tensor, view)
        return view

    def _read(self, view: View) -> Value:
        if view.parent is None:
            return view.cell.value
        if view.call is None:
            return self._read(view.parent)
        call = view.call
        if call.version != view.cell.version:
            above = self._read(view.parent)
            types = tuple(_type_of(geometry) for geometry in call.outputs)
            args = tuple(argument(fill(arg, above), self) for arg in call.args)
            kwargs = ordered(call.op, call.kwargs, self)
            aliases = (above,) * len(types)
            call.node = self._append(_op(call.op), args, kwargs, types, aliases).node
            call.version = view.cell.version
        return Value(call.node, view.index)

    def _write(self, view: View, value: Value, made: torch.Tensor) -> None:
        while view.parent is not None:
            if view.call is not None:
                value, made = self._scatter(view, view.call, value, made)
            view = view.parent
        whole = view.cell.geometry
        if tuple(made.stride()) != whole.strides or made.dtype != whole.dtype:
            value, made = self._compute(aten.copy.default, (view.cell.value, value), (whole.empty, made))
        self.input_writes += view.cell.given
        view.cell.value = value
        view.cell.version += 1

    def _scatter(
        self, view: View, call: ViewCall, value: Value, made: torch.Tensor
    ) -> tuple[Value, torch.Tensor]:
        assert view.parent is not None
        above = view.parent
        op, args = inverse(call, view.index, above.geometry)
        old = self._read(above) if any(arg is HOLE for arg in args) else None
        values = tuple(old if arg is HOLE else value if arg is NEW else arg for arg in args)
        fakes = tuple(above.geometry.empty if arg is HOLE else made if arg is NEW else arg for arg in args)
        return self._compute(op, values, fakes)

    def _compute(
        self, op: OpOverload, values: tuple[object, ...], fakes: tuple[object, ...]
    ) -> tuple[Value, torch.Tensor]:
        """Record an operator on Values, typed by running it on fake tensors."""
        with self.fake:
            made = op(*(fake() if callable(fake) else fake for fake in fakes))
        args = tuple(argument(value, self) for value in values)
        alias = self._shared(made, fakes, values)
        return self._append(_op(op, values), args, (), (tensor_type(made),), (alias,)), made

    @staticmethod
    def _shared(made: torch.Tensor, fakes: tuple[object, ...], values: tuple[object, ...]) -> Value | None:
        for fake, value in zip(fakes, values, strict=True):
            if isinstance(fake, torch.Tensor) and isinstance(value, Value) and _same_storage(fake, made):
                return value
        return None

    def _append(
        self,
        op: Op,
        args: tuple[Arg, ...],
        kwargs: tuple[tuple[str, Arg], ...],
        types: tuple[TensorType | ScalarType, ...],
        aliases: tuple[Value | None, ...],
    ) -> Value:
        recording = self.recording
        stream = recording.draws if op.random else None
        recording.draws += op.random
        node = Node(recording.new_id(), "", op, args, kwargs, types, aliases, stream, self.places.origin())
        recording.nodes.append(node)
        return Value(node.id)

    # -- dispatch -----------------------------------------------------------------------------

    def __torch_dispatch__(
        self,
        func: OpOverload,
        types: Sequence[type],
        args: tuple[object, ...] = (),
        kwargs: Mapping[str, object] | None = None,
    ) -> object:
        keywords = dict(kwargs or {})
        if not isinstance(func, OpOverload):
            raise _control_flow(func)
        if func.namespace in ("prim", "profiler"):
            return func(*args, **keywords)
        if func is aten._local_scalar_dense.default:
            return self._number(args)
        if composite(func.name()):
            with self:
                return func.decompose(*args, **keywords)
        args, keywords = self._without_reals(func, args, keywords)
        if func._schema.name.startswith("aten::_foreach_"):
            with self:
                return each(func, args, keywords)
        if func in SILENT:
            return self._silent(func, args, keywords)
        if func._schema.is_mutable:
            return self._mutate(func, args, keywords)
        return self._pure(func, args, keywords)

    def _number(self, args: tuple[object, ...]) -> object:
        (tensor,) = args
        assert isinstance(tensor, torch.Tensor)
        if isinstance(tensor, FakeTensor) and tensor.constant is not None:
            return tensor.constant.item()
        if self.places.phase == "update":
            return float(self.item(tensor))
        raise data_dependent("a value of a tensor is read to decide what Python does")

    def _without_reals(
        self, func: OpOverload, args: tuple[object, ...], kwargs: dict[str, object]
    ) -> tuple[tuple[object, ...], dict[str, object]]:
        leaves, tree = pytree.tree_flatten((args, kwargs))
        if not any(isinstance(leaf, torch.Tensor) and not isinstance(leaf, FakeTensor) for leaf in leaves):
            return args, kwargs
        made = [self.constant(x) if _is_real(x) else x for x in leaves]
        return pytree.tree_unflatten(made, tree)  # type: ignore[no-any-return]

    def _run(self, func: OpOverload, args: tuple[object, ...], kwargs: dict[str, object]) -> object:
        try:
            return func(*args, **kwargs)
        except (DataDependentOutputException, DynamicOutputShapeException) as error:
            raise data_dependent(f"the shape or value that {func} gives depends on its data") from error

    def _pure(self, func: OpOverload, args: tuple[object, ...], kwargs: dict[str, object]) -> object:
        result = self._run(func, args, kwargs)
        outputs = _tensors(result)
        if not any(isinstance(output, torch.Tensor) for output in outputs):
            return result
        for output in outputs:
            check_dense(output)
        if func in _SAME:
            return self._fold(args[0], result)
        shared = self._shared_argument(args, next(x for x in outputs if x is not None))
        if shared is not None:
            self._view_outputs(func, args, kwargs, shared, outputs)
            return result
        self._record(func, args, kwargs, outputs)
        return result

    def _fold(self, source: object, result: object) -> object:
        assert isinstance(source, torch.Tensor)
        assert isinstance(result, torch.Tensor)
        above = self._view(source)
        if source is not result:
            self.recording.storages.keep(result, View(above.cell, above.geometry, above))
        return result

    def _shared_argument(self, args: tuple[object, ...], output: torch.Tensor) -> torch.Tensor | None:
        for arg in args:
            if isinstance(arg, torch.Tensor) and _same_storage(arg, output):
                return arg
        return None

    def _view_outputs(
        self,
        func: OpOverload,
        args: tuple[object, ...],
        kwargs: dict[str, object],
        source: torch.Tensor,
        outputs: list[torch.Tensor | None],
    ) -> None:
        above = self._view(source)
        holed = tuple(HOLE if arg is source else arg for arg in args)
        call = ViewCall(func, holed, kwargs, tuple(map(Geometry.of, outputs)))
        for index, output in enumerate(outputs):
            if output is not source:
                self.recording.storages.keep(
                    output, View(above.cell, call.outputs[index], above, call, index)
                )
        self._read(View(above.cell, call.outputs[0], above, call, 0))

    def _record(
        self,
        func: OpOverload,
        args: tuple[object, ...],
        kwargs: dict[str, object],
        outputs: list[torch.Tensor | None],
    ) -> int:
        value = self._append(
            _op(func, args, kwargs),
            tuple(argument(arg, self) for arg in args),
            ordered(func, kwargs, self),
            tuple(map(_output_type, outputs)),
            (None,) * len(outputs),
        )
        for index, output in enumerate(outputs):
            if output is None:
                continue
            self.recording.storages.whole(output, Value(value.node, index))
        return value.node

    def _mutate(self, func: OpOverload, args: tuple[object, ...], kwargs: dict[str, object]) -> object:
        if func._schema.name in _IN_PLACE_VIEWS:
            return self._view_in_place(func, args, kwargs)
        pure = functional(func)
        if pure is None:
            raise CaptureError(
                stage="capture",
                what=f"the in-place operator {func} has no functional form",
                where=model_line(),
                hint="write the result into a new tensor",
            )
        targets = _targets(func, args, kwargs)
        if pure in DRAWS_IN_LOGICAL_ORDER and not targets[0].is_contiguous():
            return self._draw_in_memory_order(pure, targets[0], args)
        outs = {a.name for a in func._schema.arguments if a.is_out}
        kept = {name: value for name, value in kwargs.items() if name not in outs}
        full = _completed(func, pure, args)
        outputs = _tensors(self._run(pure, full, kept))
        node = self._record(pure, full, kept, outputs)
        written = outputs[-len(targets) :] if outs else outputs
        for index, (target, output) in enumerate(zip(targets, written, strict=True)):
            self.write(target, Value(node, index), output)
        return _returned(func, args, kwargs)

    def _draw_in_memory_order(
        self, pure: OpOverload, target: torch.Tensor, args: tuple[object, ...]
    ) -> torch.Tensor:
        """Record a draw into a tensor that is not contiguous, which eager fills as it lies in memory."""
        order = sorted(range(target.dim()), key=lambda dim: -target.stride(dim))
        back = sorted(range(target.dim()), key=order.__getitem__)
        permute = aten.permute.default
        value, fake = self._compute(permute, (self.value(target), order), (target, order))
        value, fake = self._compute(pure, (value, *args[1:]), (fake, *args[1:]))
        value, fake = self._compute(permute, (value, back), (fake, back))
        self.write(target, value, fake)
        return target

    def _view_in_place(self, func: OpOverload, args: tuple[object, ...], kwargs: dict[str, object]) -> object:
        target = args[0]
        assert isinstance(target, torch.Tensor)
        above = self._view(target)
        plain = functional(func)
        assert plain is not None
        func(*args, **kwargs)
        geometry = Geometry.of(target)
        call = ViewCall(plain, (HOLE, *args[1:]), kwargs, (geometry,))
        same = plain is aten.detach.default
        self.recording.storages.keep(target, View(above.cell, geometry, above, None if same else call))
        return target

    def _silent(self, func: OpOverload, args: tuple[object, ...], kwargs: dict[str, object]) -> object:
        x, weight, bias, mean, variance, training, momentum, epsilon = args
        if not training or mean is None:
            return self._pure(func, args, kwargs)
        assert isinstance(mean, torch.Tensor)
        assert isinstance(variance, torch.Tensor)
        result = self._run(func, args, kwargs)
        pure = SILENT[func]
        outputs = [*_tensors(result), Geometry.of(mean).empty(), Geometry.of(variance).empty()]
        node = self._record(pure, (x, weight, bias, mean, variance, training, momentum, epsilon), {}, outputs)
        self.write(mean, Value(node, 3), outputs[3])
        self.write(variance, Value(node, 4), outputs[4])
        return result


@cache
def composite(name: str) -> bool:
    """Whether an operator is made of others on every device: eager never runs it as one."""
    has = torch._C._dispatch_has_kernel_for_dispatch_key
    return has(name, "CompositeImplicitAutograd") and not (has(name, "CPU") or has(name, "CUDA"))


def _op(func: OpOverload, args: tuple[object, ...] = (), kwargs: Mapping[str, object] | None = None) -> Op:
    names = [a.name for a in func._schema.arguments]
    random = draws(func, {**dict(zip(names, args, strict=False)), **(kwargs or {})}) if args else False
    return Op(str(func), pure=not random, random=random)


def _type_of(geometry: Geometry) -> TensorType:
    name = str(geometry.dtype).removeprefix("torch.")
    return TensorType(geometry.shape, name, str(geometry.device), geometry.strides)


def _is_real(leaf: object) -> bool:
    return isinstance(leaf, torch.Tensor) and not isinstance(leaf, FakeTensor)


def _same_storage(left: torch.Tensor, right: torch.Tensor) -> bool:
    return left.untyped_storage()._cdata == right.untyped_storage()._cdata


def _output_type(output: torch.Tensor | None) -> TensorType:
    return NOTHING if output is None else tensor_type(output)


def _tensors(result: object) -> list[torch.Tensor | None]:
    if isinstance(result, torch.Tensor) or result is None:
        return [result]
    if isinstance(result, list | tuple):
        return [leaf for item in result for leaf in _tensors(item)]
    return []


def _targets(func: OpOverload, args: tuple[object, ...], kwargs: Mapping[str, object]) -> list[torch.Tensor]:
    found: list[torch.Tensor] = []
    for place, schema in enumerate(func._schema.arguments):
        if schema.is_write:
            given = args[place] if place < len(args) else kwargs.get(schema.name)
            found.extend(_tensors(given))
    return found


def _completed(func: OpOverload, pure: OpOverload, args: tuple[object, ...]) -> tuple[object, ...]:
    """Return arguments with the defaults that the in-place form has and the functional one has not."""
    needed = [a.name for a in pure._schema.arguments if not a.has_default_value() and not a.kwarg_only]
    rest = [a for a in func._schema.arguments if not a.kwarg_only][len(args) : len(needed)]
    return (*args, *(a.default_value for a in rest))


def _returned(func: OpOverload, args: tuple[object, ...], kwargs: Mapping[str, object]) -> object:
    written = _targets(func, args, kwargs)
    count = len(func._schema.returns)
    return None if count == 0 else written[0] if count == 1 else tuple(written)


def each(
    func: OpOverload, args: tuple[object, ...], kwargs: Mapping[str, object]
) -> list[torch.Tensor] | None:
    """Run an operator on lists as one on each element, as torch does on CPU."""
    name = func._schema.name.removeprefix("aten::_foreach_")
    packet = getattr(aten, {"norm": "linalg_vector_norm"}.get(name, name))
    if name.startswith(("addcmul", "addcdiv")) and len(args) > 3:
        args, kwargs = args[:3], {**kwargs, "value": args[3]}
    count = len(next(arg for arg in args if isinstance(arg, list | tuple)))
    rows = [
        packet(*(_at(arg, i) for arg in args), **{key: _at(arg, i) for key, arg in kwargs.items()})
        for i in range(count)
    ]
    return None if func._schema.is_mutable else rows


def _at(arg: object, index: int) -> object:
    return arg[index] if isinstance(arg, list | tuple) else arg


def data_dependent(what: str) -> CaptureError:
    """Return the error for Python that needs the values of tensors."""
    return CaptureError(
        stage="capture",
        what=what,
        where=model_line(),
        expected="control flow and shapes that depend on shapes and Python values only",
        hint="use torch.where or masks, or move this out of the captured function",
    )


def _control_flow(func: object) -> CaptureError:
    return CaptureError(
        stage="capture",
        what=f"the control flow operator {func} cannot be part of one graph",
        where=model_line(),
        hint="write both branches and choose with torch.where",
    )
