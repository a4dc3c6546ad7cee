"""Random training steps of NASNet's kind: cells of blocks that join two states each.

Only their shape counts here: what reads what, and how many bytes it makes.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random

from peakfold.plan.reorder.problem import Problem

CELLS = 6
"""Cells of a network; each third halves the bytes of what comes after it."""
BLOCKS = 5
"""Blocks of a cell."""
BYTES = 1 << 20
"""Of one state of the first cells."""


@dataclass
class _Made:
    """A program as it grows, an item after the other."""

    random: Random
    reads: list[tuple[int, ...]] = field(default_factory=list)
    makes: list[tuple[int, ...]] = field(default_factory=list)
    nbytes: list[int] = field(default_factory=list)
    forward: list[tuple[tuple[int, ...], int, bool]] = field(default_factory=list)

    def item(self, reads: Sequence[int], nbytes: int) -> int:
        """Add an item that makes one value; return the value."""
        value = len(self.nbytes)
        self.reads.append(tuple(dict.fromkeys(reads)))
        self.makes.append((value,))
        self.nbytes.append(nbytes)
        return value

    def layer(self, reads: Sequence[int], nbytes: int, weights: bool) -> int:
        """Add an item of the forward."""
        value = self.item(reads, nbytes)
        self.forward.append((self.reads[-1], value, weights))
        return value

    def operation(self, state: int, nbytes: int) -> int:
        """A separable convolution in two steps, a pooling, or the state as it is."""
        kind = self.random.random()
        if kind < 0.6:
            deep = self.layer((state,), nbytes, True)
            return self.layer((deep,), nbytes, True)
        return self.layer((state,), nbytes, False) if kind < 0.85 else state

    def cell(self, before: int, last: int, nbytes: int) -> int:
        """Add a cell that reads the two states before it; return its state."""
        states = [before, last]
        free: list[int] = []
        for _ in range(BLOCKS):
            one, other = self.random.choice(states), self.random.choice(states)
            made = (self.operation(one, nbytes), self.operation(other, nbytes))
            free = [state for state in free if state not in (one, other)]
            states.append(self.layer(made, nbytes, False))
            free.append(states[-1])
        return self.layer(free, nbytes, False)

    def backward(self, loss: int) -> None:
        """Add the backward: gradients of operands and weights, sums where a value has several readers."""
        grads: dict[int, list[int]] = {loss: [self.item((loss,), self.nbytes[loss])]}
        for reads, value, weights in reversed(self.forward):
            parts = grads.pop(value, [])
            if not parts:
                continue
            grad = parts[0]
            for other in parts[1:]:
                grad = self.item((grad, other), self.nbytes[value])
            for read in reads:
                grads.setdefault(read, []).append(self.item((grad, read), self.nbytes[read]))
            if weights:
                self.item((grad, *reads), BYTES // 64)


def network(seed: int, cells: int = CELLS, training: bool = True) -> Problem:
    """Return a random step; its items are in an order that is valid.

    Args:
        seed: of the network.
        cells: how many.
        training: with its backward; else the forward alone, whose peak depends on the order far more.
    """
    made, nbytes = _Made(Random(seed)), BYTES
    before = last = made.layer((), nbytes, True)
    for cell in range(cells):
        nbytes = nbytes if cell % 3 != 2 else nbytes // 2
        before, last = last, made.cell(before, last, nbytes)
    loss = made.layer((last,), 1024, True)
    if training:
        made.backward(loss)
    count = len(made.nbytes)
    readers = {value for read in made.reads for value in read}
    kept = frozenset(v for v in range(count) if v not in readers)
    return Problem(tuple(made.reads), tuple(made.makes), tuple(made.nbytes), kept, (0,) * len(made.reads))


@dataclass(frozen=True)
class Changed:
    """A problem after a random rewrite.

    Attributes:
        problem: the new one.
        order: an order of it, the old one with what is new in it.
        items: what is new, and who reads it.
    """

    problem: Problem
    order: tuple[int, ...]
    items: frozenset[int]


def changed(problem: Problem, order: Sequence[int], random: Random) -> Changed:
    """Compute a value again, or have it wait on the host, for the last of its readers.

    Args:
        problem: what is rewritten.
        order: its order.
        random: what chooses.
    """
    place = {item: at for at, item in enumerate(order)}
    ways = []
    for value, readers in enumerate(problem.readers):
        later = sorted((item for item in range(problem.size) if readers >> item & 1), key=place.__getitem__)
        if len(later) > 1 and place[later[-1]] - place[later[-2]] > 2:
            ways.append((value, later[-1]))
    value, reader = random.choice(ways)
    new = len(problem.nbytes)
    if random.random() < 0.5:
        return _recomputed(problem, order, value, reader, new)
    return _waiting(problem, order, value, reader, new)


def _recomputed(problem: Problem, order: Sequence[int], value: int, reader: int, new: int) -> Changed:
    maker, again = problem.maker[value], problem.size
    after = _with(problem, reader, value, new, ((problem.reads[maker], (new,)),), (problem.nbytes[value],))
    return Changed(after, _before(order, reader, (again,)), frozenset((again, reader, maker)))


def _waiting(problem: Problem, order: Sequence[int], value: int, reader: int, new: int) -> Changed:
    """A store that makes a mark of no bytes on the device, and a load that reads the mark."""
    store, load = problem.size, problem.size + 1
    added = (((value,), (new,)), ((new,), (new + 1,)))
    after = _with(problem, reader, value, new + 1, added, (0, problem.nbytes[value]))
    maker = problem.maker[value]
    at = order.index(maker) + 1
    placed = (*order[:at], store, *order[at:])
    return Changed(after, _before(placed, reader, (load,)), frozenset((store, load, reader)))


def _before(order: Sequence[int], item: int, added: tuple[int, ...]) -> tuple[int, ...]:
    at = list(order).index(item)
    return (*order[:at], *added, *order[at:])


def _with(
    problem: Problem,
    reader: int,
    old: int,
    new: int,
    added: Sequence[tuple[tuple[int, ...], tuple[int, ...]]],
    nbytes: tuple[int, ...],
) -> Problem:
    reads = [
        tuple(new if v == old and item == reader else v for v in row)
        for item, row in enumerate(problem.reads)
    ]
    return Problem(
        reads=(*reads, *(read for read, _ in added)),
        makes=(*problem.makes, *(made for _, made in added)),
        nbytes=(*problem.nbytes, *nbytes),
        kept=problem.kept,
        workspace=(*problem.workspace, *(0 for _ in added)),
    )
