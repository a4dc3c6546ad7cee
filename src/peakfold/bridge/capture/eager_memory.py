"""How many bytes the eager loop holds at each moment, without running or allocating anything.

The user's own loop runs on fake tensors: forward, ``loss.backward()``, ``optimizer.step()``,
``optimizer.zero_grad()``. Each new storage counts from the operator that makes it until Python and
autograd let go of it, so that lifetimes are the real ones and not a model of them.
"""

import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import accumulate
from typing import Any, Literal

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from peakfold.bridge.capture import batches
from peakfold.bridge.capture.fakes import FakeModule, fake_of
from peakfold.bridge.capture.hidden import Hidden, onednn
from peakfold.bridge.capture.intercept import all_ways
from peakfold.bridge.capture.kernels import RECURRENT, REDUCTION_AT, recurrent_workspace, run_fake
from peakfold.bridge.capture.places import Places
from peakfold.bridge.capture.recorder import composite
from peakfold.bridge.capture.settled import as_before
from peakfold.bridge.capture.update import mirrored
from peakfold.bridge.capture.values import Values, asked_by_libraries

aten = torch.ops.aten

MemoryKind = Literal[
    "parameters", "buffers", "gradients", "optimizer state", "batch", "activations", "workspace"
]


@dataclass(frozen=True, slots=True)
class Held:
    """One storage, or the hidden workspace of one operator.

    Attributes:
        name: of the tensor, or of the module and operator that made it.
        kind: decides its colour.
        nbytes: size.
        start: index of the operator that makes it; 0 for what lives before the step.
        end: index of the first operator during which it no longer lives.
        module: path of the module that makes it.
        source: file and line of the model's code.
    """

    name: str
    kind: MemoryKind
    nbytes: int
    start: int
    end: int
    module: str = ""
    source: str = ""


@dataclass(frozen=True)
class EagerMemory:
    """What the eager loop holds over one steady-state step.

    Attributes:
        steps: name of each operator run, in order.
        held: everything that is held, in order of its start.
    """

    steps: tuple[str, ...]
    held: tuple[Held, ...]

    @cached_property
    def totals(self) -> tuple[int, ...]:
        """Bytes during each operator."""
        changes = [0] * (len(self.steps) + 1)
        for block in self.held:
            changes[block.start] += block.nbytes
            changes[block.end] -= block.nbytes
        return tuple(accumulate(changes[:-1]))

    @property
    def peak_bytes(self) -> int:
        """The most bytes held at once."""
        return max(self.totals, default=0)

    @property
    def peak_step(self) -> int:
        """Index of the first operator that runs at the peak."""
        return self.totals.index(self.peak_bytes) if self.totals else 0

    @property
    def at_peak(self) -> Mapping[MemoryKind, int]:
        """Bytes of each kind at the peak."""
        found: dict[MemoryKind, int] = {}
        for block in self.held:
            if block.start <= self.peak_step < block.end:
                found[block.kind] = found.get(block.kind, 0) + block.nbytes
        return found


def eager_memory(
    model: torch.nn.Module,
    loss_fn: Callable[..., object] | None,
    optimizer: torch.optim.Optimizer | None,
    batch: object,
    *,
    workspace: Hidden = onednn,
) -> EagerMemory:
    """Return what the user's eager loop holds over one step whose optimizer state exists.

    Args:
        model: real, fake or on the meta device.
        loss_fn: as for `capture_step`; None for inference, ``model(*batch)`` without gradients.
        optimizer: whose step ends the loop; None leaves gradients.
        batch: as for `capture_step`.
        workspace: hidden bytes of an operator run; `hidden.measured` where operators were profiled.
    """
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    module = FakeModule.of(model, mode)
    places = Places({id(m): path for path, m in model.named_modules()})
    watch = _Watch(places, workspace)
    flat = batches.flatten(batch)
    with mode:
        leaves = [fake_of(leaf) if isinstance(leaf, torch.Tensor) else leaf for leaf in flat.leaves]
        twin = None if optimizer is None else mirrored(optimizer, module, mode)
        if twin is not None:
            _standing_gradients(module, twin)
    _add_residents(watch, module, twin, leaves, flat.names)
    with ExitStack() as stack:
        stack.enter_context(torch.autograd.set_detect_anomaly(False))
        asked = asked_by_libraries(watch.values)
        kept = as_before(model, loss_fn or model)
        for context in (module.swapped(), kept, asked, places.following(), all_ways(), mode, watch):
            stack.enter_context(context)
        args, kwargs = batches.unflatten(leaves, flat.tree)
        if loss_fn is None:
            with torch.no_grad():
                results = model(*args, **kwargs)
            del args, kwargs, results
            return watch.result()
        result = loss_fn(model, *args, **kwargs)
        loss = result[0] if isinstance(result, tuple) else result
        assert isinstance(loss, torch.Tensor)
        places.phase = "backward"
        loss.backward()  # type: ignore[no-untyped-call]
        places.phase = "update"
        watch.mark({name: fake.grad for name, _, fake in module.parameters if fake.grad is not None})
        if twin is not None:
            type(twin).step(twin)
            twin.zero_grad()
    return watch.result()


def _standing_gradients(module: FakeModule, twin: torch.optim.Optimizer) -> None:
    """Give parameters that the optimizer does not clear the gradients that earlier steps left."""
    updated = {id(parameter) for group in twin.param_groups for parameter in group["params"]}
    for _, _, fake in module.parameters:
        if fake.requires_grad and id(fake) not in updated:
            fake.grad = torch.empty_like(fake, requires_grad=False)


def _add_residents(
    watch: "_Watch",
    module: FakeModule,
    twin: torch.optim.Optimizer | None,
    leaves: Sequence[object],
    names: Sequence[str],
) -> None:
    for name, _, fake in module.parameters:
        watch.resident(fake, name, "parameters")
        if fake.grad is not None:
            watch.resident(fake.grad, f"{name}.grad", "gradients")
    for name, _, fake in module.buffers:
        watch.resident(fake, name, "buffers")
    if twin is not None:
        named = {id(fake): name for name, _, fake in module.parameters}
        for parameter, state in twin.state.items():
            for key, tensor in state.items():
                if isinstance(tensor, torch.Tensor):
                    watch.resident(tensor, f"{named[id(parameter)]}.{key}", "optimizer state")
    for name, leaf in zip(names, leaves, strict=True):
        if isinstance(leaf, torch.Tensor):
            watch.resident(leaf, name, "batch")


@dataclass(eq=False)
class _Life:
    """A storage that has been made; ``end`` is -1 while it lives."""

    block: Held
    end: int = -1


@dataclass(eq=False)
class _Lives:
    """Every storage seen, and who lives."""

    all: list[_Life] = field(default_factory=list)
    now: dict[int, tuple[Any, _Life]] = field(default_factory=dict)
    steps: list[str] = field(default_factory=list)

    def add(self, tensor: torch.Tensor, block: Held) -> None:
        """Count a storage until nothing holds it."""
        storage = tensor.untyped_storage()
        key = storage._cdata
        life = _Life(replace(block, nbytes=block.nbytes or storage.nbytes()))
        self.all.append(life)

        def gone(reference: object) -> None:
            life.end = len(self.steps)
            if self.now.get(key, (None, None))[1] is life:
                del self.now[key]

        self.now[key] = (weakref.ref(storage, gone), life)

    def knows(self, tensor: torch.Tensor) -> bool:
        """Whether the storage of a tensor is counted."""
        return tensor.untyped_storage()._cdata in self.now


_SOME_NUMBER = 1.0
"""What code that reads a tensor gets: no decision of the loop should depend on it."""


class _Watch(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts storages that operators make."""

    def __init__(self, places: Places, workspace: Hidden) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._places = places
        self._workspace = workspace
        self.values = Values()
        self._lives = _Lives()
        self._hidden: list[Held] = []

    def resident(self, tensor: torch.Tensor, name: str, kind: MemoryKind) -> None:
        """Count a storage that lives before the step."""
        if not self._lives.knows(tensor):
            self._lives.add(tensor, Held(name, kind, 0, 0, 0))

    def mark(self, gradients: Mapping[str, torch.Tensor]) -> None:
        """Say which storages are gradients of parameters."""
        for name, gradient in gradients.items():
            _, life = self._lives.now[gradient.untyped_storage()._cdata]
            life.block = replace(life.block, name=f"{name}.grad", kind="gradients")

    def result(self) -> EagerMemory:
        """Return what has been seen."""
        steps = self._lives.steps
        held = [replace(life.block, end=len(steps) if life.end < 0 else life.end) for life in self._lives.all]
        blocks = [block for block in (*held, *self._hidden) if block.start < block.end]
        return EagerMemory(tuple(steps), tuple(sorted(blocks, key=lambda block: block.start)))

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        keywords = dict(kwargs or {})
        if func.namespace in ("prim", "profiler"):
            return func(*args, **keywords)
        if func is aten._local_scalar_dense.default:
            known = self.values.number(args[0])
            return _SOME_NUMBER if known is None else known
        if composite(func._schema.name, func._overloadname):
            with self:
                return func.decompose(*args, **keywords)
        if self._adds_in_place(func, args, keywords):
            return args[0]
        if func._schema.is_mutable:
            self.values.written(func, tuple(args), keywords)
        result = run_fake(func, tuple(args), keywords)
        if not func._schema.is_mutable:
            self.values.follow(func, tuple(args), keywords, result)
        self._count(func, args, keywords, result)
        return result

    def _adds_in_place(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
        """Whether this is autograd adding two gradients, which it does in place for real tensors."""
        if func is not aten.add.Tensor or self._places.phase != "backward" or kwargs:
            return False
        left, right = args
        if not isinstance(right, torch.Tensor) or left.shape != right.shape or left.dtype != right.dtype:
            return False
        return bool(_unshared(left))

    def _count(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any) -> None:
        outputs = [leaf for leaf in pytree.tree_leaves(result) if isinstance(leaf, torch.Tensor)]
        made = [output for output in outputs if not self._lives.knows(output)]
        hidden = self._workspace(func, args, kwargs)
        if not made and not hidden and not func._schema.is_mutable:
            return
        steps, origin = self._lives.steps, self._places.origin()
        name = f"{origin.module}.{func._schema.name.removeprefix('aten::')}".removeprefix(".")
        block = Held(name, "activations", 0, len(steps), 0, origin.module, origin.source)
        if hidden:
            end = len(steps) + 1
            self._hidden.append(replace(block, kind="workspace", nbytes=hidden, end=end))
        steps.append(name)
        for output in made:
            self._lives.add(output, replace(block, nbytes=_bytes(func, args, output)))


def _bytes(func: torch._ops.OpOverload, args: Sequence[Any], output: torch.Tensor) -> int:
    """Return the bytes of a new storage."""
    if func is RECURRENT and output.dtype is torch.uint8:
        return recurrent_workspace(tuple(args)) if torch.is_grad_enabled() else 0
    counted = args[0] if func in REDUCTION_AT else output
    return int(counted.untyped_storage().nbytes())


def _unshared(tensor: torch.Tensor) -> bool:
    storage = tensor.untyped_storage()
    uses = torch._C._storage_Use_Count(storage._cdata)
    return bool(uses <= _ALONE and tensor.is_contiguous())


_ALONE = 2
"""Uses of a storage that belongs to one tensor: the tensor, and the Python object asking."""
