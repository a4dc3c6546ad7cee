"""What a match would do: the change, what it adds and drops, and what that costs."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from peakfold.graph.rewrite.change import Change, Refusal, Rewritten, apply
from peakfold.graph.rewrite.conditions import UNSTRETCHED, unmet
from peakfold.graph.rewrite.infer import CannotInfer, infer
from peakfold.graph.rewrite.maker import Maker, first_free
from peakfold.graph.rewrite.match import Match
from peakfold.graph.rewrite.vocabulary import STRETCHING, write
from peakfold.graph.rule import UNDECIDED, Rule, Term, Var
from peakfold.ir.graph import Arg, Graph, Input, Node, Value, substitute
from peakfold.ir.types import TensorType

Price = Callable[[Graph], Mapping[int, float]]
"""Seconds of each node of a graph, by id; views may be absent."""

Regions = Sequence[frozenset[int]]
"""Ids of the nodes whose runs are inside of each region."""


ACROSS = "it would lie across the border of a region"


def across(nodes: frozenset[int], regions: Regions) -> bool:
    """Return whether nodes are partly inside of a region and partly not."""
    return any(nodes & region and not nodes <= region for region in regions)


def grown(regions: Regions, nodes: frozenset[int], new: Collection[int]) -> Regions:
    """Return regions with what was made of nodes inside of them: it is inside too.

    Example:
        >>> [sorted(region) for region in grown((frozenset({1, 2}), frozenset({3})), frozenset({1}), (4, 5))]
        [[1, 2, 4, 5], [3]]
    """
    return tuple(region.union(new) if nodes and nodes <= region else region for region in regions)


def there(regions: Regions, graph: Graph) -> Regions:
    """Return regions without the nodes that are gone from a graph."""
    return tuple(region.intersection(graph.node) for region in regions)


@dataclass(frozen=True)
class Candidate:
    """A rewrite that can be done, not done yet.

    Attributes:
        graph: what it rewrites.
        rule: the rule.
        match: where.
        change: what it does.
        dying: ids of the nodes that nothing reads after it.
    """

    graph: Graph
    rule: Rule
    match: Match
    change: Change
    dying: frozenset[int]

    @cached_property
    def added(self) -> Graph:
        """The new nodes as a graph of their own, to ask for their price."""
        return standalone(self.graph, self.change.new)

    def gain(self, known: Mapping[int, float], price: Price) -> float:
        """Return the seconds that it saves.

        Args:
            known: seconds of the nodes of the graph.
            price: of the new nodes.
        """
        before = sum(known.get(ident, 0.0) for ident in self.dying)
        return before - (sum(price(self.added).values()) if self.change.new else 0.0)

    def apply(self) -> Rewritten | Refusal:
        """Return the graph after it."""
        return apply(self.graph, self.change)


def candidate(
    graph: Graph, match: Match, regions: Regions = (), undecided: bool = False
) -> Candidate | Refusal:
    """Return what a match would do, or why it cannot be done.

    Args:
        graph: where the match is.
        match: of a rule.
        regions: a match must be inside or outside of each.
        undecided: also use rules that are neither proved nor refuted.
    """
    rule = match.rule
    if rule.level == UNDECIDED and not undecided:
        return Refusal("the rule is neither proved nor refuted")
    for condition in rule.conditions:
        reason = unmet(condition, match.variables, match.constants, graph.tensor_type)
        if reason is not None:
            return Refusal(reason)
    if across(match.nodes, regions):
        return Refusal(ACROSS)
    phases = {graph.node[ident].origin.phase for ident in match.nodes}
    if "update" in phases and len(phases) > 1:
        return Refusal("it would mix the update with what comes before it")
    try:
        return _made(graph, match)
    except CannotInfer as error:
        return Refusal(str(error))


def _made(graph: Graph, match: Match) -> Candidate | Refusal:
    root = graph.node[match.roots[0].node]
    maker = Maker(graph, root, first_free(graph))
    values = {
        old: build(maker, term, match.variables, match.constants)
        for old, term in zip(match.roots, match.rule.rhs, strict=True)
    }
    values = {old: new for old, new in values.items() if old != new}
    if not values:
        return Refusal("both sides are the same nodes")
    if not all(_may_stand(graph, maker, old, new) for old, new in values.items()):
        return Refusal("shape, dtype or strides would change")
    if _must_not_stretch(match.rule) and _stretches(graph, maker, match.nodes):
        return Refusal(f"not {UNSTRETCHED}()")
    new = named(graph, maker.nodes, values)
    change = Change(new, values)
    return Candidate(graph, match.rule, match, change, dying(graph, change))


def _must_not_stretch(rule: Rule) -> bool:
    return any(condition.name == UNSTRETCHED for condition in rule.conditions)


def _stretches(graph: Graph, maker: Maker, matched: Iterable[int]) -> bool:
    """Whether a pointwise operator of either side reads tensors of several shapes."""
    nodes = [*maker.nodes, *(graph.node[ident] for ident in matched)]
    read = (list(node.inputs) for node in nodes if node.op.name in STRETCHING)
    return any(len({maker.shape(value) for value in values}) > 1 for values in read)


def _may_stand(graph: Graph, maker: Maker, old: Value, new: Value) -> bool:
    """Whether a Value may stand for another: of its type, or of other strides where no reader can tell."""
    before, after = graph.tensor_type(old), maker.tensor(new)
    if before == after:
        return True
    if replace(before, strides=after.strides) != after or old in graph.results:
        return False
    return all(_gives_the_same(graph, graph.node[reader], old, after) for reader in graph.users.get(old, ()))


def _gives_the_same(graph: Graph, reader: Node, old: Value, after: TensorType) -> bool:
    """Whether a node's outputs have the same types once an operand has another type."""
    kinds = {value: graph.type(value) for value in reader.inputs} | {old: after}
    try:
        found = infer(reader.op.name, reader.args, dict(reader.kwargs), kinds.__getitem__)
    except CannotInfer:
        return False
    return tuple(result.type for result in found) == reader.types


def build(maker: Maker, term: Term, variables: Mapping[str, Value], constants: Mapping[str, Arg]) -> Value:
    """Make the nodes of a term.

    Raises:
        CannotInfer: a word cannot be said for its operands.
    """
    if isinstance(term, Var):
        return variables[term.name]
    args = [build(maker, arg, variables, constants) for arg in term.args]
    attrs = {name: constants[value] if isinstance(value, str) else value for name, value in term.attrs}
    if term.output:
        attrs["output"] = term.output
    return write(maker, term.op, args, attrs)


def named(graph: Graph, nodes: Sequence[Node], values: Mapping[Value, Value]) -> tuple[Node, ...]:
    """Give each node that stands for another one its name, so that plans and reports know it."""
    stands = {new.node: old.node for old, new in values.items()}
    taken = {node.name for node in graph.nodes}
    named: list[Node] = []
    for node in nodes:
        old = stands.get(node.id)
        name = graph.node[old].name if old is not None else _free(node.name, taken)
        taken.add(name)
        named.append(replace(node, name=name))
    return tuple(named)


def _free(name: str, taken: set[str]) -> str:
    found, number = name, 0
    while found in taken:
        number += 1
        found = f"{name}_{number}"
    return found


def dying(graph: Graph, change: Change) -> frozenset[int]:
    """Return the ids of the nodes that nothing reads after a change."""
    kept = {value for value in graph.results if value not in change.values}
    kept |= {value for node in change.new for value in node.inputs} | set(change.values.values())
    dead: set[int] = set()
    waiting = [value.node for value in change.values]
    while waiting:
        ident = waiting.pop()
        node = graph.node.get(ident)
        if node is None or ident in dead or node.op.random or not node.op.pure:
            continue
        if all(_unread(graph, value, change, kept, dead) for value in node.outputs):
            dead.add(ident)
            waiting += [value.node for value in node.inputs]
    return frozenset(dead)


def _unread(graph: Graph, value: Value, change: Change, kept: set[Value], dead: set[int]) -> bool:
    if value in change.values:
        return True
    return value not in kept and dead.issuperset(graph.users.get(value, ()))


def standalone(graph: Graph, nodes: Iterable[Node]) -> Graph:
    """Return nodes as a graph of their own, whose inputs are what they read from outside."""
    inside = tuple(nodes)
    made = {node.id for node in inside}
    read = dict.fromkeys(value for node in inside for value in node.inputs if value.node not in made)
    start = 1 + max((*made, first_free(graph)), default=0)
    given = {value: start + i for i, value in enumerate(read)}
    inputs = tuple(Input(ident, f"given{ident}", "batch", graph.type(v)) for v, ident in given.items())
    new = {value: Value(ident) for value, ident in given.items()}
    moved = tuple(_moved(node, new) for node in inside)
    return Graph(inputs, moved, ())


def _moved(node: Node, new: Mapping[Value, Value]) -> Node:
    args = tuple(substitute(arg, new) for arg in node.args)
    kwargs = tuple((name, substitute(arg, new)) for name, arg in node.kwargs)
    aliases = tuple(None if alias is None else new.get(alias, alias) for alias in node.aliases)
    return replace(node, args=args, kwargs=kwargs, aliases=aliases)
