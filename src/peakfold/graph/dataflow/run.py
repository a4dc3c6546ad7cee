"""The reference interpreter of dataflow: small, slow, and sure of who is dead."""

from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from peakfold.errors import PlanError
from peakfold.graph.dataflow.form import Apply, Dataflow, Enter, Loop, Merge, Step, Switch, Wire
from peakfold.ir.graph import Node

V = TypeVar("V")


class Dead:
    """What flows where nothing was chosen."""

    def __repr__(self) -> str:
        """Return its name."""
        return "DEAD"


DEAD = Dead()
"""The dead value."""

Operator = Callable[[Node, Sequence[V]], Sequence[V]]
"""Runs a node on the values of its inputs, none of them dead, and returns its outputs."""


def run(program: Dataflow, given: Sequence[V], operator: Operator[V]) -> list[V | Dead]:
    """Run a program and return what it gives out.

    Args:
        program: of switches and merges.
        given: a value for each input.
        operator: runs an operator. A predicate is what ``bool`` says of it.

    Raises:
        PlanError: both sides of a merge are alive, which no graph's dataflow leads to.

    Example:
        >>> from peakfold.ir.types import tensor
        >>> switch = Switch("p", "x", "x_else", "x_then")
        >>> program = Dataflow(("p", "x"), (switch,), ("x_then", "x_else"), ())
        >>> run(program, [True, 7], lambda node, values: values)
        [7, DEAD]
    """
    machine = _Machine({loop.name: loop for loop in program.loops}, operator)
    wires: dict[Wire, V | Dead] = dict(zip(program.inputs, given, strict=True))
    machine.run(program.steps, wires)
    return [wires[wire] for wire in program.outputs]


class _Machine(Generic[V]):
    def __init__(self, loops: dict[str, Loop], operator: Operator[V]) -> None:
        self._loops = loops
        self._operator = operator

    def run(self, steps: Sequence[Step], wires: dict[Wire, V | Dead]) -> None:
        for step in steps:
            if isinstance(step, Apply):
                self._apply(step, wires)
            elif isinstance(step, Switch):
                _switch(step, wires)
            elif isinstance(step, Merge):
                wires[step.made] = _merged(step.made, wires[step.first], wires[step.second])
            else:
                self._enter(step, wires)

    def _apply(self, step: Apply, wires: dict[Wire, V | Dead]) -> None:
        alive = _alive([wires[wire] for wire in step.reads])
        gated = step.gate is not None and wires[step.gate] is DEAD
        if alive is None or gated:
            wires.update(dict.fromkeys(step.makes, DEAD))
            return
        wires.update(zip(step.makes, self._operator(step.node, alive), strict=True))

    def _enter(self, step: Enter, wires: dict[Wire, V | Dead]) -> None:
        """Run passes until what leaves is alive; a loop that is given dead values gives dead values."""
        loop = self._loops[step.loop]
        given: list[V | Dead] = [wires[wire] for wire in step.reads]
        while _alive(given) is not None:
            inside = dict(zip(loop.parameters, given, strict=True))
            self.run(loop.steps, inside)
            leaving = [inside[wire] for wire in loop.leaves]
            given = [inside[wire] for wire in loop.goes_on]
            if _alive(leaving) is not None:
                for wire, one in zip(step.makes, leaving, strict=True):
                    wires[wire] = _merged(wire, one, DEAD if _alive(given) is None else given[0])
                return
        wires.update(dict.fromkeys(step.makes, DEAD))


def _alive(values: Sequence[V | Dead]) -> list[V] | None:
    """Return values none of which is dead, else None."""
    found = [value for value in values if not isinstance(value, Dead)]
    return found if len(found) == len(values) else None


def _switch(step: Switch, wires: dict[Wire, V | Dead]) -> None:
    predicate, value = wires[step.predicate], wires[step.value]
    wires[step.false] = wires[step.true] = DEAD
    if not isinstance(predicate, Dead):
        wires[step.true if predicate else step.false] = value


def _merged(name: Wire, first: V | Dead, second: V | Dead) -> V | Dead:
    if isinstance(first, Dead):
        return second
    if isinstance(second, Dead):
        return first
    raise PlanError(
        stage="dataflow",
        what="both sides of a merge are alive",
        where=name,
        expected="one value that is alive, or none",
        hint="this is a fault of peakfold, not of your model: please report it with the graph",
    )
