"""Which Value a tensor of the traced program stands for, through in-place operators and views.

Each true storage has one `Cell`. A tensor is a `View` of a cell: the chain of view operators from the
cell's whole tensor. Writing into a view makes a new Value of the whole, so that every other view of the
cell is read anew from it [functionalization, as torch.func.functionalize does it].
"""

from dataclasses import dataclass, field

import torch

from peakfold.ir.graph import Value


@dataclass(frozen=True, slots=True)
class Geometry:
    """Shape, strides and offset of a tensor in its storage, in elements, and its dtype."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int
    dtype: torch.dtype
    device: torch.device

    @staticmethod
    def of(tensor: torch.Tensor) -> "Geometry":
        """Return the geometry of a tensor."""
        return Geometry(
            tuple(tensor.shape), tensor.stride(), int(tensor.storage_offset()), tensor.dtype, tensor.device
        )

    @property
    def is_dense(self) -> bool:
        """Whether its elements fill its span of the storage, each in a place of its own."""
        step = 1
        for stride, length in sorted(zip(self.strides, self.shape, strict=True)):
            if length != 1 and stride != step:
                return False
            step *= length
        return True

    def empty(self) -> torch.Tensor:
        """Return a new tensor of these strides (a fake one under a fake mode)."""
        return torch.empty_strided(self.shape, self.strides, dtype=self.dtype, device=self.device)


@dataclass(slots=True, eq=False)
class Cell:
    """One true storage.

    Attributes:
        value: what the whole of it stands for now.
        geometry: of the whole.
        version: how often it was written.
        given: whether it is a graph input's.
    """

    value: Value
    geometry: Geometry
    version: int = 0
    given: bool = False


class Hole:
    """Stands for the viewed tensor in the arguments of a view operator."""


HOLE = Hole()


@dataclass(slots=True, eq=False)
class ViewCall:
    """One call of a view operator; its outputs share one node at each version of the cell.

    Attributes:
        op: the operator.
        args: its arguments, with `HOLE` for the viewed tensor.
        kwargs: its keyword arguments.
        outputs: geometry of each output.
        node: id of the node that computed it, valid at ``version`` of the cell.
        version: see ``node``.
    """

    op: torch._ops.OpOverload
    args: tuple[object, ...]
    kwargs: dict[str, object]
    outputs: tuple[Geometry, ...]
    node: int = -1
    version: int = -1


@dataclass(slots=True, eq=False)
class View:
    """A tensor: a cell, and the view operators that lead from its whole to the tensor.

    Attributes:
        cell: the storage.
        geometry: of the tensor.
        parent: the tensor that it was viewed from; None for the whole.
        call: the view operator; None where the tensor is the same as its parent.
        index: which output of the call it is.
    """

    cell: Cell
    geometry: Geometry
    parent: "View | None" = None
    call: ViewCall | None = None
    index: int = 0

    @property
    def is_part(self) -> bool:
        """Whether a view operator leads to it from the whole."""
        view: View | None = self
        while view is not None and view.call is None:
            view = view.parent
        return view is not None


@dataclass(slots=True, eq=False)
class Storages:
    """The tensors of one trace. Holds them alive, so that neither ids nor storages are reused."""

    views: dict[int, View] = field(default_factory=dict)
    cells: dict[int, Cell] = field(default_factory=dict)
    alive: list[object] = field(default_factory=list)

    def view(self, tensor: torch.Tensor) -> View | None:
        """Return the view that a tensor is, or None for a tensor that the trace has not seen."""
        known = self.views.get(id(tensor))
        if known is not None:
            return known
        cell = self.cells.get(_key(tensor))
        return None if cell is None else self._same_place(tensor, cell)

    def cell(self, tensor: torch.Tensor) -> Cell | None:
        """Return the cell of a tensor's storage, or None where the trace has not seen it."""
        return self.cells.get(_key(tensor))

    def whole(self, tensor: torch.Tensor, value: Value, given: bool = False) -> None:
        """Add a tensor that owns a new storage."""
        geometry = Geometry.of(tensor)
        cell = Cell(value, geometry, given=given)
        self.cells[_key(tensor)] = cell
        self.keep(tensor, View(cell, geometry))

    def keep(self, tensor: torch.Tensor, view: View) -> None:
        """Add a tensor as a view."""
        self.views[id(tensor)] = view
        self.alive.append((tensor, tensor.untyped_storage()))

    def _same_place(self, tensor: torch.Tensor, cell: Cell) -> View | None:
        geometry = Geometry.of(tensor)
        for view in self.views.values():
            if view.cell is cell and view.geometry == geometry:
                self.keep(tensor, view)
                return view
        return None


def _key(tensor: torch.Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)


def fill(arg: object, value: object) -> object:
    """Return nested arguments with the hole filled."""
    if arg is HOLE:
        return value
    if isinstance(arg, list | tuple):
        return tuple(fill(item, value) for item in arg)
    return arg
