"""Which shapes an operator takes and gives, over numbers and over symbols alike."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

from peakfold.graph.rule import Apply, Term, Var, subterms
from peakfold.graph.substitution.dims import Dim, IllegalShape, Shape, Solver

Choose = Callable[[tuple[str, ...]], str]
"""Picks one of the ways in which an operator's shapes can be legal."""

EQUAL, LEFT_IS_ONE, RIGHT_IS_ONE = "equal", "left is 1", "right is 1"
UNGROUPED, OPAQUE = "ungrouped", "opaque"


@dataclass
class Typing:
    """Shapes of terms over inputs of given shapes.

    Attributes:
        inputs: shape of each variable.
        choose: picks between ways to be legal where the shapes leave it open.
        solver: what is known of the symbols.
        groupings: the answers that `choose` is offered for an open number of groups.
        stretch: whether elementwise operators stretch axes of size 1.
        bounds: for each index variable the sizes that its entries must stay below.
    """

    inputs: Mapping[str, Shape]
    choose: Choose
    solver: Solver = field(default_factory=Solver)
    groupings: tuple[str, ...] = (UNGROUPED, "2", "3")
    stretch: bool = True
    bounds: dict[str, list[Dim]] = field(default_factory=dict)
    _memo: dict[Term, Shape] = field(default_factory=dict)

    def shape(self, term: Term) -> Shape:
        """Return the shape of a term.

        Raises:
            IllegalShape: an operator does not take its operands.
        """
        if term not in self._memo:
            self._memo[term] = self._inferred(term)
        return self.found(self._memo[term])

    def found(self, shape: Shape) -> Shape:
        """Return a shape in the symbols that are not solved for."""
        return tuple(self.solver.find(dim) for dim in shape)

    def _inferred(self, term: Term) -> Shape:
        if isinstance(term, Var):
            return self.inputs[term.name]
        if term.op == "gather":
            return self._gather(term)
        operands = [self.shape(arg) for arg in term.args]
        operands = [self.found(shape) for shape in operands]
        if len({len(shape) for shape in operands}) > 1:
            raise IllegalShape(f"{term.op} of different ranks")
        rule = _RULES.get(term.op)
        if rule is not None:
            return rule(self, term, *operands)
        result = operands[0]
        for other in operands[1:]:
            result = self.broadcast(result, other)
        return result

    def broadcast(self, a: Shape, b: Shape) -> Shape:
        """Return the shape that two shapes are stretched to."""
        return tuple(self._wider(x, y) for x, y in zip(a, b, strict=True))

    def _wider(self, a: Dim, b: Dim) -> Dim:
        a, b = self.solver.find(a), self.solver.find(b)
        one = Dim(1)
        if a == b:
            return a
        if not self.stretch:
            self.solver.equate(a, b)
            return a
        if b == one:
            return a
        if a == one:
            return b
        if not a.terms and not b.terms:
            raise IllegalShape(f"sizes {a} and {b}")
        chosen = self.choose((EQUAL, LEFT_IS_ONE, RIGHT_IS_ONE))
        if chosen == EQUAL:
            self.solver.equate(a, b)
            return a
        self.solver.equate(a if chosen == LEFT_IS_ONE else b, one)
        return b if chosen == LEFT_IS_ONE else a

    def _gather(self, term: Apply) -> Shape:
        table, index = term.args
        if not isinstance(index, Var):
            raise IllegalShape("gather by something that is computed")
        operand, places = self.shape(table), self.shape(index)
        axis = axis_of(term, operand)
        if len(places) != 1:
            raise IllegalShape("gather by an index that is no vector")
        self.bounds.setdefault(index.name, []).append(operand[axis])
        return (*operand[:axis], places[0], *operand[axis + 1 :])


def axis_of(term: Apply, shape: Shape) -> int:
    """Return the axis that a term names.

    Raises:
        IllegalShape: the operand has no such axis.
    """
    axis = term.attr("axis")
    if not 0 <= axis < len(shape):
        raise IllegalShape(f"axis {axis} of rank {len(shape)}")
    return axis


def parts_axis(term: Apply) -> int:
    """Return the axis on which the tensors that a split goes by have the sizes of its parts."""
    of = term.attr("of", -1)
    return term.attr("axis") if of < 0 else of


def index_variables(terms: tuple[Term, ...]) -> frozenset[str]:
    """Return the names of the variables that hold indices, not numbers.

    Example:
        >>> from peakfold.graph.rule import parse_rule
        >>> sorted(index_variables(parse_rule("r: gather[axis=0](a, i) => a").lhs))
        ['i']
    """
    found = (term.args[1] for term in subterms(terms) if isinstance(term, Apply) and term.op == "gather")
    return frozenset(index.name for index in found if isinstance(index, Var))


def _with(shape: Shape, axis: int, dim: Dim) -> Shape:
    return (*shape[:axis], dim, *shape[axis + 1 :])


def _transpose(typing: Typing, term: Apply, x: Shape) -> Shape:
    if len(x) < 2:
        raise IllegalShape("transpose of a vector")
    return (*x[:-2], x[-1], x[-2])


def _matmul(typing: Typing, term: Apply, x: Shape, y: Shape) -> Shape:
    if len(x) < 2:
        raise IllegalShape("matmul of vectors")
    for a, b in zip(x[:-2], y[:-2], strict=True):
        typing.solver.equate(a, b)
    typing.solver.equate(x[-1], y[-2])
    return (*x[:-1], y[-1])


def _reduced(typing: Typing, term: Apply, x: Shape) -> Shape:
    return _with(x, axis_of(term, x), Dim(1))


def _same(typing: Typing, term: Apply, x: Shape) -> Shape:
    axis_of(term, x)
    return x


def _expand(typing: Typing, term: Apply, x: Shape, like: Shape) -> Shape:
    stretch, typing.stretch = typing.stretch, True
    wide = typing.found(typing.broadcast(x, like))
    typing.stretch = stretch
    for a, b in zip(wide, typing.found(like), strict=True):
        typing.solver.equate(a, b)
    return like


def _concat(typing: Typing, term: Apply, x: Shape, y: Shape) -> Shape:
    axis = axis_of(term, x)
    for place, (a, b) in enumerate(zip(x, y, strict=True)):
        if place != axis:
            typing.solver.equate(a, b)
    return _with(x, axis, x[axis] + y[axis])


def _split(typing: Typing, term: Apply, x: Shape, first: Shape, second: Shape) -> Shape:
    axis, of = axis_of(term, x), parts_axis(term)
    if of >= len(first):
        raise IllegalShape(f"axis {of} of rank {len(first)}")
    typing.solver.equate(x[axis], first[of] + second[of])
    return _with(x, axis, (first, second)[term.output][of])


def _slice(typing: Typing, term: Apply, x: Shape) -> Shape:
    axis, dropped = axis_of(term, x), term.attr("low") + term.attr("high")
    typing.solver.raise_to(x[axis], dropped + 1)
    return _with(x, axis, x[axis] - dropped)


def _pad(typing: Typing, term: Apply, x: Shape) -> Shape:
    axis = axis_of(term, x)
    return _with(x, axis, x[axis] + term.attr("low") + term.attr("high"))


def _conv(typing: Typing, term: Apply, x: Shape, w: Shape) -> Shape:
    if len(x) < 3:
        raise IllegalShape("a convolution without a spatial axis")
    _groups(typing, x[1], w)
    for kernel in w[2:]:
        _odd(typing, kernel)
    spatial = (_strided(typing, size, term.attr("stride", 1)) for size in x[2:])
    return (x[0], w[0], *spatial)


def _groups(typing: Typing, channels: Dim, w: Shape) -> None:
    channels, part, outputs = (typing.solver.find(dim) for dim in (channels, w[1], w[0]))
    if channels == part:
        return
    if not channels.terms and not part.terms:
        groups, rest = divmod(channels.const, part.const) if part.const > 0 else (0, 1)
        if rest or groups < 1:
            raise IllegalShape(f"{channels} channels in groups of {part}")
    else:
        chosen = UNGROUPED if channels == Dim(1) else typing.choose(typing.groupings)
        if chosen == OPAQUE:
            return
        groups = 1 if chosen == UNGROUPED else int(chosen)
        typing.solver.equate(channels, part.times(groups))
    _multiple(typing, outputs, groups)


def _multiple(typing: Typing, dim: Dim, factor: int) -> None:
    if factor == 1:
        return
    if dim.terms:
        typing.solver.equate(dim, typing.solver.fresh().times(factor))
    elif dim.const % factor:
        raise IllegalShape(f"{dim} outputs in {factor} groups")


def _odd(typing: Typing, kernel: Dim) -> None:
    kernel = typing.solver.find(kernel)
    if kernel.terms:
        if kernel.const % 2 == 1 and all(factor % 2 == 0 for _, factor in kernel.terms):
            return
        typing.solver.equate(kernel, typing.solver.fresh(0).times(2) + 1)
    elif kernel.const % 2 == 0:
        raise IllegalShape(f"an even kernel of {kernel}")


def _strided(typing: Typing, size: Dim, stride: int) -> Dim:
    size = typing.solver.find(size)
    if stride == 1:
        return size
    if not size.terms:
        return Dim((size.const - 1) // stride + 1)
    if all(factor % stride == 0 for _, factor in size.terms):
        terms = tuple((name, factor // stride) for name, factor in size.terms)
        return Dim(-(-size.const // stride), terms)
    count = typing.solver.fresh()
    missing = int(typing.choose(tuple(map(str, range(stride)))))
    typing.solver.equate(size, count.times(stride) - missing)
    return count


def _pool(typing: Typing, term: Apply, x: Shape) -> Shape:
    if len(x) < 3:
        raise IllegalShape("pooling without a spatial axis")
    return (*x[:2], *(_strided(typing, size, term.attr("stride", 1)) for size in x[2:]))


_RULES: Final[Mapping[str, Callable[..., Shape]]] = {
    "transpose": _transpose,
    "matmul": _matmul,
    "sum": _reduced,
    "mean": _reduced,
    "max": _reduced,
    "softmax": _same,
    "expand": _expand,
    "concat": _concat,
    "split": _split,
    "slice": _slice,
    "pad": _pad,
    "conv": _conv,
    "conv_relu": _conv,
    "avgpool": _pool,
    "maxpool": _pool,
}
