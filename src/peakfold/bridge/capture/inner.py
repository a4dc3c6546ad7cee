"""The tape of a graph inside another: what a branch or a pass of a loop computes."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from peakfold.bridge.capture.finish import live
from peakfold.bridge.capture.host import HostNumber
from peakfold.bridge.capture.places import model_line
from peakfold.bridge.capture.storage import Geometry, View
from peakfold.bridge.capture.tape import Tape, aten, type_of
from peakfold.errors import CaptureError
from peakfold.ir.graph import Graph, Input, Output, Value
from peakfold.ir.types import Type


@dataclass(eq=False, kw_only=True)
class Inner(Tape):
    """What is recorded inside of a control flow operator.

    Tensors from outside become inputs when they are first read.

    Attributes:
        outer: the tape around it.
        taken: input that stands for each Value of the tape around.
        seen: the tensors from outside that were read.
    """

    outer: Tape
    taken: dict[Value, Value] = field(default_factory=dict)
    seen: list[torch.Tensor] = field(default_factory=list)

    @staticmethod
    def of(outer: Tape) -> "Inner":
        """Return an empty tape inside another."""
        return Inner(
            fake=outer.fake,
            places=outer.places,
            book=outer.book,
            known=outer.known,
            values=outer.values,
            decided=outer.decided,
            outer=outer,
        )

    def constant(self, tensor: torch.Tensor, *, fresh: bool = False) -> torch.Tensor:
        """Return the fake tensor of a real one; all of the program holds it."""
        return self.outer.constant(tensor, fresh=fresh)

    def host_value(self, number: HostNumber) -> Value:
        """Refuse numbers of an optimizer."""
        raise CaptureError(
            stage="capture",
            what="a branch or loop reads a number of the optimizer",
            where=model_line(),
            expected="control flow in the forward pass",
            hint="move it out of the optimizer, or pass optimizer=None",
        )

    def view(self, tensor: torch.Tensor) -> View:
        """Return the view that a tensor is; one from outside becomes an input."""
        known = self.storages.views.get(id(tensor))
        if known is not None:
            return known
        cell = self.storages.cell(tensor)
        if cell is None or cell.given:
            self._take(tensor)
        return super().view(tensor)

    def _take(self, tensor: torch.Tensor) -> None:
        value = self.outer.value(tensor)
        self.seen.append(tensor)
        if value not in self.taken:
            self.taken[value] = self.add_input(tensor, "", "batch")
        self.storages.whole(tensor, self.taken[value], given=True)

    def write(self, tensor: torch.Tensor, value: Value, made: torch.Tensor) -> None:
        """Make a tensor of the branch stand for a new Value; one from outside may not change."""
        if self.view(tensor).cell.given:
            raise CaptureError(
                stage="capture",
                what="a branch or loop writes into a tensor from outside of it",
                where=model_line(),
                expected="functions that return what they make",
                got=f"an in-place operator on a tensor of shape {tuple(tensor.shape)}",
                hint="write into a copy, tensor.clone(), and return it",
            )
        super().write(tensor, value, made)

    def reads(self, tensors: Sequence[torch.Tensor]) -> None:
        """Count what a function returns as read: tensors from outside that it gives back as they are."""
        for tensor in tensors:
            self.value(tensor)

    def owned(self, tensors: Sequence[torch.Tensor], wanted: Sequence[Geometry]) -> list[Value]:
        """Return what tensors stand for, each in a storage of its own that it fills, copied where it is not.

        Args:
            tensors: what a function returns.
            wanted: strides that each must have.
        """
        found: list[Value] = []
        roots: set[Value] = set()
        for tensor, geometry in zip(tensors, wanted, strict=True):
            value, view = self.value(tensor), self.view(tensor)
            root, whole = view.cell.value, type_of(view.cell.geometry)
            if geometry.strides != tensor.stride():
                value = self._restrided(tensor, value, geometry)
            elif view.cell.given or root in roots or whole.nbytes != type_of(geometry).nbytes:
                value, _ = self.compute(aten.clone.default, (value,), (tensor,))
            roots.add(root)
            found.append(value)
        return found

    def _restrided(self, tensor: torch.Tensor, value: Value, geometry: Geometry) -> Value:
        sizes = (list(geometry.shape), list(geometry.strides))
        options = {"dtype": geometry.dtype, "device": geometry.device}
        blank, made = self.compute(aten.empty_strided.default, sizes, sizes, options)
        return self.compute(aten.copy.default, (blank, value), (made, tensor))[0]

    def graph(self, given: Sequence[Input], outputs: Sequence[Value]) -> Graph:
        """Return what is needed for values, as a graph of these inputs, in this order."""
        nodes = live(tuple(self.nodes), list(outputs))
        named = tuple(Output(f"out.{index}", value) for index, value in enumerate(outputs))
        return Graph(tuple(given), nodes, named)

    def inputs_for(self, operands: Sequence[Value]) -> list[Input]:
        """Return an input for each Value of the tape around; unread ones are made here."""
        made = []
        for value in operands:
            known = self.taken.get(value)
            if known is None:
                known = self.taken[value] = Value(self._new_id())
                self.inputs.append(Input(known.node, "", "batch", type_in(self.outer, value)))
            made.append(next(one for one in self.inputs if one.id == known.node))
        return made


def type_in(tape: Tape, value: Value) -> Type:
    """Return the type of a Value of a tape."""
    for given in tape.inputs:
        if given.id == value.node:
            return given.type
    return next(node for node in tape.nodes if node.id == value.node).types[value.index]
