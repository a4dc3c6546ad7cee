"""When a captured program is the user's: what must be as it was.

`Guards.check` runs before each call, so it is one pass over flat lists; words are made on failure only.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import repeat
from operator import attrgetter, call, eq, is_, methodcaller

import torch
from torch.nn.modules import module as torch_module
from torch.utils import _pytree as pytree

from peakfold.bridge.capture.batches import FlatBatch, arguments
from peakfold.bridge.capture.entries import MISSING, Entry, copied
from peakfold.bridge.capture.namespaces import Attributes
from peakfold.bridge.capture.optimizer_guards import OptimizerGuard
from peakfold.bridge.capture.outside import Outside

_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


@dataclass(frozen=True, slots=True)
class Ambient:
    """The modes of torch that decide what a program computes."""

    grad: bool
    inference: bool
    autocast: tuple[tuple[bool, torch.dtype], ...]
    dtype: torch.dtype
    device: str
    deterministic: bool
    attention: tuple[bool, ...]

    @staticmethod
    def now() -> "Ambient":
        """Return the modes that hold now."""
        return Ambient(
            torch.is_grad_enabled(),
            torch.is_inference_mode_enabled(),
            tuple((torch.is_autocast_enabled(d), torch.get_autocast_dtype(d)) for d in ("cpu", "cuda")),
            torch.get_default_dtype(),
            str(torch.get_default_device()),
            torch.are_deterministic_algorithms_enabled(),
            (
                torch._C._get_flash_sdp_enabled(),
                torch._C._get_mem_efficient_sdp_enabled(),
                torch._C._get_math_sdp_enabled(),
            ),
        )


@dataclass(frozen=True, slots=True)
class Leaf:
    """A leaf of the batch, as it must be.

    Attributes:
        name: e.g. ``"batch.0"``.
        tensor: (shape, strides, dtype, device, which gradient it needs), or None for a Python object.
        value: the Python object.
    """

    name: str
    tensor: tuple[object, ...] | None
    value: object

    @staticmethod
    def of(name: str, leaf: object) -> "Leaf":
        """Return the guard of a leaf."""
        if isinstance(leaf, torch.Tensor):
            return Leaf(name, _geometry(leaf), None)
        return Leaf(name, None, copied(leaf))

    def broken(self, leaf: object) -> str | None:
        """Return what differs, or None."""
        if isinstance(leaf, torch.Tensor):
            now = _geometry(leaf)
            if now == self.tensor:
                return None
            return f"{self.name} is {_described(now)}, captured as {_described(self.tensor)}"
        if self.tensor is None and type(leaf) is type(self.value) and _equal(leaf, self.value):
            return None
        return f"{self.name} is {leaf!r}, captured as {_described(self.tensor) or repr(self.value)}"


def _equal(now: object, then: object) -> bool:
    """Whether two Python objects are equal; arrays in every element."""
    if now is then:
        return True
    same = now == then
    return bool(same.all()) if hasattr(same, "all") and hasattr(same, "shape") else bool(same)


def _geometry(tensor: torch.Tensor) -> tuple[object, ...]:
    needs = tensor.requires_grad and ("of its own" if tensor.is_leaf else "of what it was computed from")
    return (tensor.shape, tensor.stride(), tensor.dtype, tensor.device, needs)


def _described(geometry: tuple[object, ...] | None) -> str:
    if geometry is None:
        return ""
    shape, strides, dtype, device, needs = geometry
    name = str(dtype).removeprefix("torch.")
    text = f"a {name} tensor of shape {tuple(shape)} and strides {strides} on {device}"  # type: ignore[arg-type]
    return f"{text} that needs a gradient {needs}" if needs else text


@dataclass(frozen=True, slots=True)
class Same:
    """Entries of namespaces that must hold the same objects.

    Attributes:
        gets: ``get`` of each namespace.
        keys: name in it.
        values: object that it must hold.
        labels: what to call each.
    """

    gets: tuple[Callable[..., object], ...]
    keys: tuple[str, ...]
    values: tuple[object, ...]
    labels: tuple[str, ...]

    @staticmethod
    def of(rows: Iterable[tuple[Mapping[str, object], str, str]]) -> "Same":
        """Return the guard of (namespace, key, label) as they are now."""
        found = list(rows)
        return Same(
            tuple(table.reader if isinstance(table, Attributes) else table.get for table, _, _ in found),
            tuple(key for _, key, _ in found),
            tuple(table.get(key, MISSING) for table, key, _ in found),
            tuple(label for _, _, label in found),
        )

    def hold(self) -> bool:
        """Whether all hold."""
        return all(map(is_, map(call, self.gets, self.keys, repeat(MISSING)), self.values))

    def broken(self, before: str, after: str) -> str | None:
        """Return the label of the first that does not hold, in words, or None."""
        if self.hold():
            return None
        rows = zip(self.gets, self.keys, self.values, self.labels, strict=True)
        return next(
            f"{before}{label}{after}" for get, key, value, label in rows if get(key, MISSING) is not value
        )


@dataclass(frozen=True, slots=True)
class Geometries:
    """Tensors of namespaces, which must lie in memory and need a gradient as before."""

    gets: tuple[Callable[[str], torch.Tensor], ...]
    keys: tuple[str, ...]
    labels: tuple[str, ...]
    shapes: tuple[torch.Size, ...]
    dtypes: tuple[torch.dtype, ...]
    needs: tuple[bool, ...]
    strides: tuple[tuple[int, ...], ...]
    devices: tuple[torch.device, ...]
    storages: int
    hooks: tuple[object, ...]

    @staticmethod
    def of(rows: Sequence[tuple[Mapping[str, torch.Tensor | None], str, str]]) -> "Geometries":
        """Return the guard of (namespace, key, label) as they are now."""
        tensors = [table[key] for table, key, _ in rows]
        assert all(tensor is not None for tensor in tensors)
        return Geometries(
            tuple(table.get for table, _, _ in rows),  # type: ignore[misc]
            tuple(key for _, key, _ in rows),
            tuple(label for _, _, label in rows),
            tuple(map(_SHAPE, tensors)),
            tuple(map(_DTYPE, tensors)),
            tuple(map(_NEEDS, tensors)),
            tuple(map(_STRIDE, tensors)),
            tuple(map(_DEVICE, tensors)),
            _storages(tensors),
            tuple(map(_tensor_hooks, tensors)),
        )

    def broken(self) -> str | None:
        """Return the first that differs, in words, or None."""
        try:
            tensors = list(map(call, self.gets, self.keys))
            if not all(map(is_, map(_NEEDS, tensors), self.needs)):
                return self._words("requires_grad", _NEEDS, tensors, self.needs)
            if not all(map(is_, map(_DTYPE, tensors), self.dtypes)):
                return self._words("dtype", _DTYPE, tensors, self.dtypes)
            if not all(map(eq, map(_SHAPE, tensors), self.shapes)):
                return self._words("shape", _SHAPE, tensors, self.shapes)
            if not all(map(eq, map(_STRIDE, tensors), self.strides)):
                return self._words("stride", _STRIDE, tensors, self.strides)
            if not all(map(eq, map(_DEVICE, tensors), self.devices)):
                return self._words("device", _DEVICE, tensors, self.devices)
            if not all(map(eq, map(_tensor_hooks, tensors), self.hooks)):
                return self._words("hooks", _tensor_hooks, tensors, self.hooks)
            if _storages(tensors) != self.storages:
                return "parameters or buffers share memory that did not, or the other way round"
        except AttributeError:
            return "a parameter or buffer was removed"
        return None

    def _words(
        self, what: str, read: Callable[[object], object], now: Sequence[object], then: Sequence[object]
    ) -> str:
        for label, tensor, known in zip(self.labels, now, then, strict=True):
            if read(tensor) != known:
                return f"{what} of {label} is {read(tensor)}, captured as {known}"
        raise AssertionError(what)


_SHAPE, _DTYPE, _NEEDS, _DEVICE = map(attrgetter, ("shape", "dtype", "requires_grad", "device"))
_STRIDE = methodcaller("stride")


def _tensor_hooks(tensor: object) -> tuple[object, ...]:
    """Return a tensor's hooks on its gradient."""
    assert isinstance(tensor, torch.Tensor)
    before, after = tensor._backward_hooks, getattr(tensor, "_post_accumulate_grad_hooks", None)
    if not before and not after:
        return ()
    return (*(before or {}).items(), None, *(after or {}).items())


def _storages(tensors: Sequence[torch.Tensor | None]) -> int:
    """Return how many distinct storages tensors have."""
    return len({tensor.untyped_storage()._cdata for tensor in tensors if tensor is not None})


@dataclass(frozen=True, eq=False)
class Guards:
    """Everything that must hold for a captured program to be the user's.

    Attributes:
        batch: one a leaf.
        tree: of the batch's ``(args, kwargs)``.
        ambient: modes of torch.
        root: the model.
        modules: the model's, and those that its code reads beside it.
        classes: of which each of them is.
        held: (table of submodules, parameters or buffers, its keys).
        children: every submodule.
        parameters: every parameter.
        absent: every buffer that is None.
        geometries: shape, dtype and requires_grad of parameters and buffers.
        plain: Python values that the model's code reads, numbers and texts.
        entries: the same, for a fast look.
        copied: Python values that the model's code reads, lists, dicts and sets.
        set_by_code: attributes that the model's code sets: another run may leave something else in them.
        unhooked: tables of hooks that are empty.
        hooks: (table of hooks, what is in it) of those that are not.
        optimizer: None for gradients alone and for inference.
        graded: parameters whose ``.grad`` the optimizer's ``zero_grad`` clears; empty without one.
        gradients: whether each of them has one.
        outside: the model's code, and what it read outside of its modules, to be saved with a program.
    """

    batch: tuple[Leaf, ...]
    tree: pytree.TreeSpec
    ambient: Ambient
    root: torch.nn.Module
    modules: tuple[torch.nn.Module, ...]
    classes: tuple[type, ...]
    held: tuple[tuple[Mapping[str, object], tuple[str, ...]], ...]
    children: Same
    parameters: Same
    absent: Same
    geometries: Geometries
    plain: tuple[Entry, ...]
    entries: Same
    copied: tuple[Entry, ...]
    set_by_code: frozenset[str]
    unhooked: tuple[Mapping[int, object], ...]
    hooks: tuple[tuple[Mapping[int, object], tuple[tuple[int, object], ...]], ...]
    optimizer: OptimizerGuard | None
    graded: tuple[torch.Tensor, ...]
    gradients: tuple[bool, ...]
    outside: tuple[Outside, ...]

    def check(
        self, model: torch.nn.Module, optimizer: torch.optim.Optimizer | None, batch: object
    ) -> str | None:
        """Return in words the first thing that is not as it was captured, or None."""
        return (
            self._batch(batch)
            or self._ambient()
            or self._modules(model)
            or self._tensors()
            or self._entries()
            or (None if self.optimizer is None else self.optimizer.broken(optimizer))
            or self._gradients()
        )

    def _batch(self, batch: object) -> str | None:
        leaves, tree = pytree.tree_flatten(arguments(batch))
        if tree != self.tree:
            return "the batch has another structure"
        for guard, leaf in zip(self.batch, leaves, strict=True):
            reason = guard.broken(leaf)
            if reason is not None:
                return reason
        return None

    def _ambient(self) -> str | None:
        now = Ambient.now()
        if now == self.ambient:
            return None
        differ = [n for n in Ambient.__slots__ if getattr(now, n) != getattr(self.ambient, n)]
        return f"a mode of torch is not as captured: {', '.join(differ)}"

    def _modules(self, model: torch.nn.Module) -> str | None:
        if model is not self.root:
            return "the model is another object"
        if any(map(len, self.unhooked)) or any(tuple(table.items()) != held for table, held in self.hooks):
            return "a hook of a module was added or removed"
        if not all(map(is_, map(type, self.modules), self.classes)):
            return "a module is of another class"
        reason = self.children.broken("the submodule ", " was replaced")
        if reason is None and any(tuple(table) != keys for table, keys in self.held):
            return "a submodule, parameter or buffer was added or removed, or their order changed"
        return reason

    def _tensors(self) -> str | None:
        return (
            self.parameters.broken("the parameter ", " was replaced")
            or self.absent.broken("the buffer ", " was set")
            or self.geometries.broken()
        )

    def _entries(self) -> str | None:
        if not self.entries.hold():
            for found in self.plain:
                if not found.holds():
                    return found.words()
        return next((found.words() for found in self.copied if not found.holds()), None)

    def _gradients(self) -> str | None:
        if all(map(is_, map(_has_gradient, self.graded), self.gradients)):
            return None
        return "a .grad stands before the step that did not, or the other way round"


def _has_gradient(parameter: torch.Tensor) -> bool:
    return parameter.grad is not None


def hook_tables(roots: Iterable[torch.nn.Module]) -> list[Mapping[int, object]]:
    """Return every table of hooks of modules and what is in them, and torch's global ones."""
    tables: list[Mapping[int, object]] = [getattr(torch_module, f"_global{name}") for name in _HOOKS]
    modules = (module for root in roots for module in root.modules())
    return tables + [getattr(module, name) for module in modules for name in _HOOKS]


def batch_guards(batch: FlatBatch) -> tuple[Leaf, ...]:
    """Return the guards of a batch."""
    return tuple(map(Leaf.of, batch.names, batch.leaves))
