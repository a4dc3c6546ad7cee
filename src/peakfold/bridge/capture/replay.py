"""What runs a second time in a program, and stands for what ran the first time."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from peakfold.bridge.capture.places import model_line
from peakfold.errors import CaptureError
from peakfold.ir.graph import Arg, Node, Op, Value, substitute

if TYPE_CHECKING:
    from peakfold.bridge.capture.tape import Tape

_BATCH_NORM = "aten._native_batch_norm_legit_functional.default"
_STATISTICS = (3, 4, 6)
"""Places of running mean, running variance and momentum: in training the output depends on none of them."""


@dataclass(eq=False)
class Replay:
    """Finds the node that computed the same before, while something runs again.

    Attributes:
        depth: how many functions run again now, one inside the other; 0 for none.
        is_strict: nodes stand only for those of the very same operands, barriers too.
        same: the first node of the very same operands as another that ran first, by its id.
    """

    depth: int = 0
    is_strict: bool = False
    same: dict[int, int] = field(default_factory=dict)
    _same: dict[str, int] = field(default_factory=dict)
    _keep: bool = False
    _seen: dict[str, int] = field(default_factory=dict)
    _first: dict[Value, Value] = field(default_factory=dict)
    """The first value that equals this one: two blocks may each have made the same mask."""
    _indexed: int = 0

    @contextmanager
    def strictly(self, nodes: list[Node], constants: Mapping[int, int]) -> Iterator[None]:
        """Have `is_strict` be true inside.

        Args:
            nodes: all that ran first.
            constants: the first constant of the same numbers as each, by its id.
        """
        before, self.is_strict = self.is_strict, True
        self.same |= constants
        for node in nodes:
            first = self._same.setdefault(self._strict_key(node), node.id)
            self.same[node.id] = first
        try:
            yield
        finally:
            self.is_strict = before

    def one(self, value: Value) -> Value:
        """Return the same value of the first node that computed it."""
        return Value(self.same.get(value.node, value.node), value.index)

    def _strict_key(self, node: Node) -> str:
        return _key_of(node, {value: self.one(value) for value in node.inputs})

    @contextmanager
    def again(self, tape: "Tape", drawn: int | None) -> Iterator[None]:
        """Have nodes inside stand for earlier ones where they compute the same.

        Args:
            tape: what is recorded.
            drawn: position in the random stream at which the function ran first, None where the numbers
                are not drawn from there again.
        """
        keep, now = self._keep, tape.drawn
        self.depth += 1
        if drawn is not None:
            self._keep, tape.drawn = True, drawn
        try:
            yield
        finally:
            self.depth -= 1
            if drawn is not None:
                self._keep, tape.drawn = keep, now

    def find(self, nodes: list[Node], node: Node) -> int:
        """Return the id of the node that computed the same, -1 for none.

        Raises:
            CaptureError: it draws numbers again, for other operands than before.
        """
        if not self.depth:
            return -1
        op = node.op
        if self.is_strict:
            found = self._same.get(self._strict_key(node), -1)
        else:
            self._index(nodes)
            found = self._seen.get(_key_of(node, self._first), -1) if op.pure or op.random else -1
        if found < 0 and op.random and self._keep:
            raise CaptureError(
                stage="capture",
                what="a checkpointed function draws its random numbers again for other values",
                where=model_line(),
                expected="a checkpointed function that computes the same each time",
                hint="remove torch.utils.checkpoint: recomputation is planned for you",
            )
        return found

    def find_batch_norm(self, nodes: list[Node], args: tuple[Arg, ...]) -> int:
        """Return the id of the batch normalization of the same values, with any statistics; -1 for none."""
        if not self.depth or self.is_strict:
            return -1
        self._index(nodes)
        return self._seen.get(_key(Op(_BATCH_NORM), _without_statistics(args), (), None, self._first), -1)

    def _index(self, nodes: list[Node]) -> None:
        for node in nodes[self._indexed :]:
            if node.op.name == _BATCH_NORM and node.args[5]:
                self._seen.setdefault(
                    _key(node.op, _without_statistics(node.args), (), None, self._first), node.id
                )
            first = self._seen.setdefault(_key_of(node, self._first), node.id)
            if first != node.id and (node.op.pure or node.op.random):
                self._first.update((value, Value(first, value.index)) for value in node.outputs)
        self._indexed = len(nodes)


def _key_of(node: Node, new: Mapping[Value, Value]) -> str:
    """Return what nodes of the same operator and operands have in common, with other values for some."""
    inside = "".join(f" {body.digest}" for body in node.bodies)
    return _key(node.op, node.args, node.kwargs, node.stream, new) + inside


def _key(
    op: Op,
    args: tuple[Arg, ...],
    kwargs: tuple[tuple[str, Arg], ...],
    stream: object,
    new: Mapping[Value, Value],
) -> str:
    """Return a text that tells -0.0 from 0.0 and 1 from True."""
    return f"{op.name} {substitute(args, new)!r} {substitute(kwargs, new)!r} {stream}"


def _without_statistics(args: tuple[Arg, ...]) -> tuple[Arg, ...]:
    return tuple("" if place in _STATISTICS else arg for place, arg in enumerate(args))
