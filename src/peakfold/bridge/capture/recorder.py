"""Every operator that a program runs below autograd, recorded as nodes of a functional Graph."""

from collections.abc import Mapping, Sequence
from functools import cache

import torch
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
)
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from peakfold.bridge.capture.arguments import argument, check_dense, ordered, tensor_type
from peakfold.bridge.capture.functional import DRAWS_IN_LOGICAL_ORDER, SILENT, functional
from peakfold.bridge.capture.kernels import as_eager, elements_first, run_fake
from peakfold.bridge.capture.keyed import draws_keyed, keyed
from peakfold.bridge.capture.places import data_dependent, model_line
from peakfold.bridge.capture.storage import HOLE, Geometry, View, ViewCall
from peakfold.bridge.capture.tape import Tape, operator, same_storage
from peakfold.errors import CaptureError
from peakfold.ir.graph import Value
from peakfold.ir.types import TensorType

aten = torch.ops.aten
OpOverload = torch._ops.OpOverload

NOTHING = TensorType((0,), "float32", "cpu", (1,))
"""Type of an output that an operator leaves out: it has a place, and no bytes."""

_SAME = frozenset((aten.detach.default, aten.alias.default, aten.lift_fresh.default))
_IN_PLACE_VIEWS = frozenset(
    ("aten::squeeze_", "aten::unsqueeze_", "aten::t_", "aten::transpose_", "aten::swapaxes_",
     "aten::swapdims_", "aten::as_strided_", "aten::detach_")
)  # fmt: skip


class Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Records operators on fake tensors; stands on top of a `FakeTensorMode`."""

    supports_higher_order_operators = True

    def __init__(self, tape: Tape) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.tape = tape

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
        if composite(func._schema.name, func._overloadname):
            with self:
                return func.decompose(*args, **keywords)
        args, keywords = self._without_reals(func, args, keywords)
        two = elements_first(func, args)
        if two is not None:
            with self:
                return two(*args, **keywords)
        if func._schema.name.startswith("aten::_foreach_"):
            with self:
                return each(func, args, keywords)
        if self.tape.key is not None and draws_keyed(func, args, keywords):
            return self._keyed(func, args, keywords, self.tape.key)
        if func in SILENT:
            return self._silent(func, args, keywords)
        if func._schema.is_mutable:
            return self._mutate(func, args, keywords)
        return self._pure(func, args, keywords)

    def _number(self, args: tuple[object, ...]) -> object:
        (tensor,) = args
        assert isinstance(tensor, torch.Tensor)
        known = self.tape.values.number(tensor)
        if known is not None:
            return known
        if self.tape.places.phase == "update":
            return float(self.tape.item(tensor))
        raise data_dependent("a value of a tensor is read to decide what Python does")

    def _without_reals(
        self, func: OpOverload, args: tuple[object, ...], kwargs: dict[str, object]
    ) -> tuple[tuple[object, ...], dict[str, object]]:
        leaves, tree = pytree.tree_flatten((args, kwargs))
        if not any(isinstance(leaf, torch.Tensor) and not isinstance(leaf, FakeTensor) for leaf in leaves):
            return args, kwargs
        if func is not aten.detach.default and self.tape.places.phase == "forward":
            _check_need_no_gradient([leaf for leaf in leaves if id(leaf) not in self.tape.known])
        fresh = func is aten.lift_fresh.default
        made = [self.tape.constant(x, fresh=fresh) if _is_real(x) else x for x in leaves]
        return pytree.tree_unflatten(made, tree)  # type: ignore[no-any-return]

    def _keyed(
        self, func: OpOverload, args: tuple[object, ...], kwargs: dict[str, object], key: torch.Tensor
    ) -> object:
        """Record how the numbers are made from the key; as pure operators they are the same in any order."""
        position = self.tape.drawn
        self.tape.drawn += 1
        with self, torch.no_grad():
            made = keyed(func, args, kwargs, key, position)
        if not func._schema.is_mutable:
            return made
        target = args[0]
        assert isinstance(target, torch.Tensor)
        self.tape.write(target, self.tape.value(made), made)
        return target

    def _run(self, func: OpOverload, args: tuple[object, ...], kwargs: dict[str, object]) -> object:
        try:
            return as_eager(func, args, run_fake(func, args, kwargs))
        except (DataDependentOutputException, DynamicOutputShapeException) as error:
            raise data_dependent(f"the shape or value that {func} gives depends on its data") from error

    def _pure(self, func: OpOverload, args: tuple[object, ...], kwargs: dict[str, object]) -> object:
        result = self._run(func, args, kwargs)
        self.tape.values.follow(func, args, kwargs, result)
        outputs = _tensors(result)
        if not any(isinstance(output, torch.Tensor) for output in outputs):
            return result
        for output in outputs:
            check_dense(output)
        if func in _SAME:
            return self._fold(args[0], result)
        shared = self._shared_argument(args, next(x for x in outputs if x is not None))
        if shared is not None:
            self._view_outputs(func, args, kwargs, shared, [x for x in outputs if x is not None])
            return result
        self._record(func, args, kwargs, outputs)
        return result

    def _fold(self, source: object, result: object) -> object:
        assert isinstance(source, torch.Tensor)
        assert isinstance(result, torch.Tensor)
        above = self.tape.view(source)
        if source is not result:
            self.tape.storages.keep(result, View(above.cell, above.geometry, above))
        return result

    def _shared_argument(self, args: tuple[object, ...], output: torch.Tensor) -> torch.Tensor | None:
        for arg in args:
            if isinstance(arg, torch.Tensor) and same_storage(arg, output):
                return arg
        return None

    def _view_outputs(
        self,
        func: OpOverload,
        args: tuple[object, ...],
        kwargs: dict[str, object],
        source: torch.Tensor,
        outputs: list[torch.Tensor],
    ) -> None:
        above = self.tape.view(source)
        holed = tuple(HOLE if arg is source else arg for arg in args)
        call = ViewCall(func, holed, kwargs, tuple(map(Geometry.of, outputs)))
        for index, output in enumerate(outputs):
            if output is not source:
                self.tape.storages.keep(output, View(above.cell, call.outputs[index], above, call, index))
        self.tape.read(View(above.cell, call.outputs[0], above, call, 0))

    def _record(
        self,
        func: OpOverload,
        args: tuple[object, ...],
        kwargs: dict[str, object],
        outputs: list[torch.Tensor | None],
    ) -> int:
        value = self.tape.append(
            operator(func, args, kwargs),
            tuple(argument(arg, self.tape) for arg in args),
            ordered(func, kwargs, self.tape),
            tuple(map(_output_type, outputs)),
            (None,) * len(outputs),
        )
        for index, output in enumerate(outputs):
            if output is None:
                continue
            self.tape.storages.whole(output, Value(value.node, index))
        return value.node

    def _mutate(self, func: OpOverload, args: tuple[object, ...], kwargs: dict[str, object]) -> object:
        self.tape.values.written(func, args, kwargs)
        if func._schema.name in _IN_PLACE_VIEWS:
            return self._view_in_place(func, args, kwargs)
        if func is aten.copy_.default and self.tape.view(args[0]).is_part:  # type: ignore[arg-type]
            self.tape.check_may_write(args[:1])  # type: ignore[arg-type]
            return self._copy_into_part(*args[:2])  # type: ignore[arg-type]
        pure = functional(func)
        if pure is None:
            raise CaptureError(
                stage="capture",
                what=f"the in-place operator {func} has no functional form",
                where=model_line(),
                hint="write the result into a new tensor",
            )
        targets = _targets(func, args, kwargs)
        self.tape.check_may_write(targets)
        if pure in DRAWS_IN_LOGICAL_ORDER and not targets[0].is_contiguous():
            return self._draw_in_memory_order(pure, targets[0], args)
        outs = {a.name for a in func._schema.arguments if a.is_out}
        kept = {name: value for name, value in kwargs.items() if name not in outs}
        full = _completed(func, pure, args)
        outputs = _tensors(self._run(pure, full, kept))
        node = self._record(pure, full, kept, outputs)
        new = sum(a.alias_info is None for a in func._schema.returns)
        written = outputs[-len(targets) :] if outs else outputs[new:]
        for index, (target, output) in enumerate(zip(targets, written, strict=True), 0 if outs else new):
            assert output is not None
            self.tape.write(target, Value(node, index), output)
        if new:
            return outputs[0] if new == 1 else tuple(outputs[:new])
        return _returned(func, args, kwargs)

    def _copy_into_part(self, target: torch.Tensor, source: torch.Tensor) -> torch.Tensor:
        """Record a copy into a part of a tensor: what is written there is the source itself."""
        value, fake = self.tape.value(source), source
        if fake.dtype != target.dtype:
            kind = {"dtype": target.dtype}
            value, fake = self.tape.compute(aten._to_copy.default, (value,), (fake,), kind)
        if fake.shape != target.shape:
            shape = list(target.shape)
            value, fake = self.tape.compute(aten.expand.default, (value, shape), (fake, shape))
        self.tape.write(target, value, fake)
        return target

    def _draw_in_memory_order(
        self, pure: OpOverload, target: torch.Tensor, args: tuple[object, ...]
    ) -> torch.Tensor:
        """Record a draw into a tensor that is not contiguous, which eager fills as it lies in memory."""
        order = sorted(range(target.dim()), key=lambda dim: -target.stride()[dim])
        back = sorted(range(target.dim()), key=order.__getitem__)
        permute = aten.permute.default
        value, fake = self.tape.compute(permute, (self.tape.value(target), order), (target, order))
        value, fake = self.tape.compute(pure, (value, *args[1:]), (fake, *args[1:]))
        value, fake = self.tape.compute(permute, (value, back), (fake, back))
        self.tape.write(target, value, fake)
        return target

    def _view_in_place(self, func: OpOverload, args: tuple[object, ...], kwargs: dict[str, object]) -> object:
        target = args[0]
        assert isinstance(target, torch.Tensor)
        above = self.tape.view(target)
        plain = functional(func)
        assert plain is not None
        func(*args, **kwargs)
        geometry = Geometry.of(target)
        call = ViewCall(plain, (HOLE, *args[1:]), kwargs, (geometry,))
        same = plain is aten.detach.default
        self.tape.storages.keep(target, View(above.cell, geometry, above, None if same else call))
        return target

    def _silent(self, func: OpOverload, args: tuple[object, ...], kwargs: dict[str, object]) -> object:
        x, weight, bias, mean, variance, training, momentum, epsilon = args
        if not training or mean is None:
            return self._pure(func, args, kwargs)
        assert isinstance(mean, torch.Tensor)
        assert isinstance(variance, torch.Tensor)
        result = self._run(func, args, kwargs)
        pure = SILENT[func]
        new_mean, new_variance = Geometry.of(mean).empty(), Geometry.of(variance).empty()
        outputs = [*_tensors(result), new_mean, new_variance]
        given = (x, weight, bias, mean, variance, training, momentum, epsilon)
        plain = tuple(argument(arg, self.tape) for arg in given)
        before = self.tape.replay.find_batch_norm(self.tape.nodes, plain)
        node = self._record(pure, given, {}, outputs)
        if before >= 0:  # the statistics are new, what is normalized is not
            for index, output in enumerate(outputs[:3]):
                assert output is not None
                self.tape.storages.whole(output, Value(before, index))
        self.tape.write(mean, Value(node, 3), new_mean)
        self.tape.write(variance, Value(node, 4), new_variance)
        return result


@cache
def composite(name: str, overload: str) -> bool:
    """Whether an operator is made of others on every device: eager never runs it as one.

    Example:
        >>> composite("aten::linear", "default"), composite("aten::silu_backward", "default")
        (True, False)
    """
    full = name if overload == "default" else f"{name}.{overload}"
    has = torch._C._dispatch_has_kernel_for_dispatch_key
    return has(full, "CompositeImplicitAutograd") and not (has(full, "CPU") or has(full, "CUDA"))


def _is_real(leaf: object) -> bool:
    return isinstance(leaf, torch.Tensor) and not isinstance(leaf, FakeTensor)


def _check_need_no_gradient(leaves: Sequence[object]) -> None:
    """Refuse tensors from outside of the program that eager's backward pass would leave a gradient in."""
    for leaf in leaves:
        if (
            isinstance(leaf, torch.Tensor)
            and _is_real(leaf)
            and leaf.requires_grad
            and torch.is_grad_enabled()
        ):
            raise CaptureError(
                stage="capture",
                what="a tensor that needs a gradient is neither the model's nor of the batch",
                where=model_line(),
                expected="tensors that need a gradient among the model's parameters, or in the batch",
                got=f"a tensor of shape {tuple(leaf.shape)}",
                hint="make it a parameter of the model, pass it in the batch, or detach it",
            )


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
            found.extend(tensor for tensor in _tensors(given) if tensor is not None)
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


def _control_flow(func: object) -> CaptureError:
    return CaptureError(
        stage="capture",
        what=f"the control flow operator {func} cannot be part of one graph",
        where=model_line(),
        expected="torch.cond, or while_loop without gradients",
        hint="write both branches and choose with torch.where",
    )
