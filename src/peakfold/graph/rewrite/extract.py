"""Programs out of classes of equal Values: several, by cost, each looked at as a whole.

Peak memory is not compositional: extractions go by seconds, with more or less weight on bytes and on sharing,
and each is simulated. Operators that nobody has measured are priced by a model first, and low; those that an
extraction would use are measured, and it is done again.
"""

import heapq
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import quantiles

from peakfold.cost.roofline import CPU, seconds_of
from peakfold.graph.rewrite.candidate import ACROSS, Price, Regions, named, standalone
from peakfold.graph.rewrite.change import Ids, in_order
from peakfold.graph.rewrite.classes import Classes, substituted
from peakfold.graph.rewrite.driver import Terms
from peakfold.graph.rewrite.move import Retype
from peakfold.ir.graph import Graph, Node, Value
from peakfold.ir.types import TensorType

PRICINGS, MOST_TRIES = 8, 12
LEAST = 1e-12
"""Seconds that every node counts at least, so that no extraction reads itself."""
HOPE = 0.5
"""Of what the model says of an operator that is not measured."""
BYTES = (0.0, 1e-10)
"""Seconds that a byte of what is made counts, in different extractions."""

Accept = Callable[[Graph], bool]


class Prices:
    """Seconds of all nodes: measured, or until then from a model that is mostly too low, to be tried."""

    def __init__(self, classes: Classes, graph: Graph, seconds: Mapping[int, float], price: Price) -> None:
        self._classes, self._price = classes, price
        self.known = dict(seconds)
        ratios = [
            took / max(seconds_of(graph, graph.node[ident], CPU), LEAST) for ident, took in seconds.items()
        ]
        self._scale = HOPE * (quantiles(ratios, n=10)[0] if len(ratios) > 1 else min(ratios, default=1.0))
        self._guessed: dict[int, float] = {}

    def of(self, node: Node) -> float:
        """Return the seconds of a node, never nothing."""
        if node.is_view or node.is_host:
            return LEAST
        if node.id in self.known:
            return max(self.known[node.id], LEAST)
        if node.id not in self._guessed:
            self._guessed[node.id] = self._scale * seconds_of(self._classes.whole, node, CPU)
        return max(self._guessed[node.id], LEAST)

    def measure(self, nodes: Sequence[Node]) -> bool:
        """Measure nodes; return whether any was not yet."""
        missing = [node for node in nodes if node.id not in self.known and not node.is_view]
        if missing:
            found = self._price(standalone(self._classes.whole, missing))
            self.known.update({node.id: found.get(node.id, 0.0) for node in missing})
        return bool(missing)


@dataclass(frozen=True)
class Extraction:
    """One of the programs that classes are.

    Attributes:
        graph: the program.
        ids: where the Values of the given graph are.
        rules: those that made its new nodes.
        without: rules whose nodes it was not to use.
    """

    graph: Graph
    ids: Ids
    rules: frozenset[str]
    without: frozenset[str] = frozenset()


def cheapest(
    extractor: "Extractor",
    terms: Terms,
    accept: Accept,
    refused: Counter[str],
    retype: Retype | None,
    below: float | None = None,
) -> tuple[Extraction, float] | None:
    """Return the cheapest extraction that keeps to the terms; None where none is cheaper than the graph.

    One that is refused is tried again without each of the rules that made it. With ``below`` it must take
    fewer seconds than that.
    """
    graph, prices = extractor.classes.graph, extractor.prices
    given = sum(prices.of(node) for node in graph.nodes)
    allowed = None if terms.may_raise_peak else terms.peak(graph)
    queue = [(cost, at, one) for at, (cost, one) in enumerate(extractor.run(frozenset()))]
    heapq.heapify(queue)
    without: set[frozenset[str]] = {frozenset()}
    count = len(queue)
    while queue and time.perf_counter() < extractor.deadline:
        cost, _, one = heapq.heappop(queue)
        if below is not None and cost >= below * (1 - 1e-9):
            break
        if cost > given * (1 - 1e-9) - terms.margin * _touched(graph, one.graph, prices):
            refused["it costs more, or as much"] += 1
            break
        typed = one.graph if retype is None else retype(one.graph, frozenset(one.graph.node))
        if typed is None or any(graph.type(a) != typed.type(b) for a, b in _results(graph, typed)):
            refused["a reader does not take the new strides, or a result would change"] += 1
        elif allowed is not None and terms.peak(typed) > allowed:
            refused["it would raise the peak"] += 1
        elif not accept(typed):
            refused["it was not accepted"] += 1
        elif _crosses(one, terms.regions):
            refused[ACROSS] += 1
        else:
            return replace(one, graph=typed), cost
        for rule in sorted(one.rules):
            banned = one.without | {rule}
            if banned in without or len(without) >= MOST_TRIES:
                continue
            without.add(banned)
            for again, other in extractor.run(banned):
                heapq.heappush(queue, (again, count, other))
                count += 1
    return None


def _crosses(one: Extraction, regions: Regions) -> bool:
    """Whether what is outside of a region stands for what is inside, or the other way: equal ones may."""
    pairs = [(old.node, new.node) for old, new in one.ids.values.items() if new.node in one.graph.node]
    return any((old in region) != (new in region) for region in regions for old, new in pairs)


def _results(graph: Graph, other: Graph) -> Iterator[tuple[Value, Value]]:
    for a, b in zip(graph.outputs, other.outputs, strict=True):
        yield a.value, b.value
    for one, two in zip(graph.state, other.state, strict=True):
        yield one.output, two.output


def _touched(before: Graph, after: Graph, prices: Prices) -> float:
    return sum(prices.of(node) for node in before.nodes if node.id not in after.node)


Members = Mapping[Value, Sequence["_Member"]]


def _members(classes: Classes, without: frozenset[str]) -> Members:
    """Return the outputs of nodes in each class, those of the given graph first."""
    found: dict[Value, list[_Member]] = {}
    for node in classes.whole.nodes:
        if classes.rule_of.get(node.id) in without:
            continue
        pairs = zip(node.types, node.aliases, strict=True)
        nbytes = sum(k.nbytes for k, a in pairs if a is None and isinstance(k, TensorType))
        reads = tuple(classes.find(value) for value in dict.fromkeys(node.inputs))
        for value in node.outputs:
            found.setdefault(classes.find(value), []).append(_Member(node, value.index, nbytes, reads))
    return found


@dataclass
class Extractor:
    """Extracts programs from classes.

    Attributes:
        classes: of equal Values.
        prices: of all nodes.
        deadline: when nothing more is measured.
    """

    classes: Classes
    prices: Prices
    deadline: float

    def run(self, without: frozenset[str]) -> list[tuple[float, Extraction]]:
        """Return extractions with their measured seconds, without what some rules made."""
        members = _members(self.classes, without)
        found: list[Extraction] = []
        for _ in range(PRICINGS):
            found = [replace(one, without=without) for one in self._all(members)]
            used = {node.id: node for one in found for node in one.graph.nodes}
            if not self.prices.measure(list(used.values())) or time.perf_counter() > self.deadline:
                break
        return [(sum(self.prices.of(node) for node in one.graph.nodes), one) for one in found]

    def _all(self, members: "Members") -> Iterator[Extraction]:
        """Yield extractions: by seconds alone and with bytes, what is shared paid in part or not at all."""
        seen: set[frozenset[int]] = set()
        users = self.classes.graph.users
        readers = {value: count for value in members if (count := len(users.get(value, ()))) > 1}
        parts: list[Mapping[Value, float]] = [{value: 1 / count for value, count in readers.items()}]
        if readers:
            parts.append(dict.fromkeys(readers, 0.0))
        own = {node.id: self.prices.of(node) for node in self.classes.whole.nodes}
        choices: list[Mapping[Value, _Member]] = []
        for per_byte in BYTES:
            for shares in parts:
                chosen = _chosen(self.classes, members, own, per_byte, shares)
                if chosen in choices:
                    continue
                choices.append(chosen)
                found = _graph_of(self.classes, chosen)
                if found is not None and (key := frozenset(found.graph.node)) not in seen:
                    seen.add(key)
                    yield found


@dataclass(frozen=True)
class _Member:
    """An output of a node in a class: what it costs by itself, its bytes, and the classes that it reads."""

    node: Node
    index: int
    nbytes: int
    reads: tuple[Value, ...]


def _chosen(
    classes: Classes,
    members: Members,
    own: Mapping[int, float],
    per_byte: float,
    parts: Mapping[Value, float],
) -> Mapping[Value, _Member]:
    """Return the member of each class of the least cost with all that it reads: a least fixed point.

    Args:
        classes: of equal Values.
        members: of each class.
        own: seconds of each node.
        per_byte: seconds that a byte of what is made counts.
        parts: what of a Value's cost each reader pays, where that is not all.
    """
    cost: dict[Value, float] = {classes.find(Value(one.id)): 0.0 for one in classes.graph.inputs}
    chosen: dict[Value, _Member] = {}
    changed = True
    while changed:
        changed = False
        for value, outputs in members.items():
            for one in outputs:
                total = own[one.node.id] + per_byte * one.nbytes
                for read in one.reads:
                    known = cost.get(read)
                    if known is None:
                        break
                    total += known * parts.get(read, 1.0)
                else:
                    if total < cost.get(value, float("inf")) * (1 - 1e-9):
                        cost[value], chosen[value], changed = total, one, True
    return chosen


def _graph_of(classes: Classes, chosen: Mapping[Value, _Member]) -> Extraction | None:
    """Return the graph of a choice; None where it would read itself."""
    graph = classes.graph
    new = {value: _there(classes, value, chosen) for value in graph.results}
    needed: dict[int, Node] = {}
    waiting = [value.node for value in new.values()]
    waiting += [node.id for node in graph.nodes if node.op.random or not node.op.pure]
    nodes = classes.whole.node
    while waiting:
        ident = waiting.pop()
        if ident in needed or ident not in nodes:
            continue
        needed[ident] = nodes[ident]
        for value in nodes[ident].inputs:
            if value not in new:
                new[value] = _there(classes, value, chosen)
            waiting.append(new[value].node)
    for value in [value for node in graph.nodes for value in node.outputs]:
        if value not in new and value.node not in needed:
            new[value] = _there(classes, value, chosen)
    moved = {value: there for value, there in new.items() if value != there}
    body = [substituted(node, moved) for node in _placed(classes, needed)]
    ordered = in_order(body, frozenset(graph.input))
    if ordered is None:
        return None
    fresh = [node for node in ordered if node.id not in graph.node]
    values = {old: moved[old] for node in graph.nodes for old in node.outputs if old in moved}
    gives = {old: there for old, there in values.items() if old.node not in needed}
    names = {node.id: node for node in named(graph, fresh, gives)}
    outputs = tuple(replace(out, value=new[out.value]) for out in graph.outputs)
    state = tuple(replace(pair, output=new[pair.output]) for pair in graph.state)
    made = Graph(graph.inputs, tuple(names.get(node.id, node) for node in ordered), outputs, state)
    gone = frozenset(node.id for node in graph.nodes if node.id not in needed)
    held = {
        old: there for old, there in values.items() if there.node in made.node or there.node in made.input
    }
    rules = frozenset(classes.rule_of[node.id] for node in fresh)
    return Extraction(made, Ids(held, gone, tuple(node.id for node in fresh)), rules)


def _there(classes: Classes, value: Value, chosen: Mapping[Value, _Member]) -> Value:
    found = chosen.get(classes.find(value))
    return classes.find(value) if found is None else Value(found.node.id, found.index)


def _placed(classes: Classes, needed: Mapping[int, Node]) -> list[Node]:
    """Return nodes in the order of the program, each that was made where the class it is in first stood."""
    place = {node.id: float(i) for i, node in enumerate(classes.graph.nodes)}
    first: dict[Value, float] = {}
    for node in classes.graph.nodes:
        for value in node.outputs:
            first.setdefault(classes.find(value), place[node.id])
    end = float(len(place))

    def key(node: Node) -> tuple[float, int]:
        return place.get(node.id, min(first.get(classes.find(v), end) for v in node.outputs) - 0.5), node.id

    return sorted(needed.values(), key=key)
