"""Drives rules over a graph: the best first, as TASO's search does, within limits and with an account.

Jia et al., "TASO: Optimizing Deep Learning Computation with Automatic Generation of Graph Substitutions"
(SOSP 2019), algorithm 2: states that cost up to alpha times the best are expanded, cheapest first.
"""

import heapq
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from peakfold.graph.rewrite.account import Account
from peakfold.graph.rewrite.candidate import Candidate, Price, Regions, candidate, grown, there
from peakfold.graph.rewrite.change import Ids, Refusal, Rewritten
from peakfold.graph.rewrite.liveness import peak
from peakfold.graph.rewrite.match import Matcher
from peakfold.graph.rule import Rule
from peakfold.graph.wl import Hashed, hashed, hashed_after
from peakfold.ir.graph import Graph

ALPHA = 1.05


@dataclass(frozen=True)
class Limits:
    """When a search ends.

    Attributes:
        states: most graphs that are expanded.
        seconds: most wall seconds.
        steps: most rewrites one after the other.
        matches: most matches of one rule in one graph.
    """

    states: int = 200
    seconds: float = 8.0
    steps: int = 200
    matches: int = 10_000


@dataclass(frozen=True)
class Terms:
    """What a rewrite has to keep to.

    Attributes:
        may_raise_peak: whether more bytes may live at once than before.
        regions: ids of nodes inside of each region; no rewrite lies across a border.
        undecided: use rules that are neither proved nor refuted.
        margin: part of the seconds of what it replaces that a rewrite must save; the input wins ties.
        peak: most bytes alive at once of a graph.
    """

    may_raise_peak: bool = False
    regions: Regions = ()
    undecided: bool = False
    margin: float = 0.02
    peak: Callable[[Graph], int] = peak


LIMITS, TERMS = Limits(), Terms()


@dataclass(frozen=True)
class Applied:
    """One rewrite that was done.

    Attributes:
        rule: its name.
        at: names of the nodes whose values it made anew.
        gain: seconds saved, by the prices given.
    """

    rule: str
    at: tuple[str, ...]
    gain: float


@dataclass(frozen=True)
class Found:
    """What a search came to.

    Attributes:
        graph: the best graph; the given one where nothing is better.
        ids: where its Values are.
        steps: the rewrites that lead to it.
        before: seconds of the given graph, by the prices given.
        after: seconds of the best.
        stop: why the search ended.
        states: graphs that were expanded.
        account: what each rule did and cost.
        regions: ids of the nodes that are now inside of each region.
    """

    graph: Graph
    ids: Ids
    steps: tuple[Applied, ...]
    before: float
    after: float
    stop: str
    states: int
    account: Account = field(repr=False)
    regions: Regions = ()


@dataclass(frozen=True)
class _State:
    hashed: Hashed
    ids: Ids
    steps: tuple[Applied, ...]
    seconds: Mapping[int, float]
    cost: float
    regions: Regions

    @property
    def graph(self) -> Graph:
        return self.hashed.graph


def neighbours(
    graph: Graph, rules: Sequence[Rule], terms: Terms = TERMS, account: Account | None = None
) -> Iterator[Candidate]:
    """Yield each rewrite that can be done on a graph, one at a time; nothing is applied yet.

    A candidate's ``apply`` gives the graph and the map of its ids, its ``rule`` and ``match`` say what it is.

    Args:
        graph: the graph.
        rules: what is tried.
        terms: what a rewrite has to keep to; the peak is not looked at here.
        account: where tries, matches and refusals are counted.
    """
    book = account or Account()
    with book.timed("(index)"):
        matcher = Matcher(graph)
        possible = [rule for rule in rules if _can_match(matcher, rule, book)]
    for rule in possible:
        found = _of_rule(matcher, rule, terms, book)
        while True:
            with book.timed(rule.name):
                one = next(found, None)
            if one is None:
                break
            yield one


def _can_match(matcher: Matcher, rule: Rule, book: Account) -> bool:
    missing = matcher.missing(rule)
    if missing is not None:
        book[rule.name].refused[f"no operator of the graph is read as {missing}"] += 1
    return missing is None


def _of_rule(matcher: Matcher, rule: Rule, terms: Terms, book: Account) -> Iterator[Candidate]:
    entry = book[rule.name]
    entry.tried += 1
    for match in matcher.matches(rule):
        entry.matched += 1
        found = candidate(matcher.graph, match, terms.regions, terms.undecided)
        if isinstance(found, Refusal):
            entry.refused[found.reason] += 1
        else:
            yield found


def search(
    graph: Graph,
    rules: Sequence[Rule],
    price: Price,
    *,
    limits: Limits = LIMITS,
    terms: Terms = TERMS,
    alpha: float = ALPHA,
    accept: Callable[[Graph], bool] = lambda graph: True,
    account: Account | None = None,
) -> Found:
    """Return the cheapest graph that rules lead to.

    Args:
        graph: where it starts.
        rules: what is tried.
        price: seconds of the nodes of a graph.
        limits: when it ends.
        terms: what each rewrite has to keep to.
        alpha: a state that costs more than so many times the best is not expanded.
        accept: asked of each graph that would be the best so far: whether its rounding may be what it
            is, say. One that is not accepted is still gone on from.
        account: one to go on with; a new one where None.
    """
    given, account = account, account or Account()
    seconds = price(graph)
    start = _State(hashed(graph), Ids(), (), seconds, sum(seconds.values()), terms.regions)
    allowed = None if terms.may_raise_peak else terms.peak(graph)
    best, stop, states = start, "", 0
    queue = [(start.cost, 0, start)]
    seen = {start.hashed.value}
    deadline = time.perf_counter() + limits.seconds
    while queue and not stop:
        cost, _, state = heapq.heappop(queue)
        stop = _limit(limits, states, deadline, account)
        if stop:
            break
        states += 1
        if cost > alpha * best.cost or len(state.steps) >= limits.steps:
            continue
        for made in _expanded(state, rules, price, terms, account, alpha * best.cost, limits.matches):
            stop = _limit(limits, states - 1, deadline, account)
            if stop:
                break
            if made.hashed.value in seen:
                continue
            seen.add(made.hashed.value)
            with account.timed("(peak)"):
                fits = allowed is None or terms.peak(made.graph) <= allowed
            if not fits:
                account[made.steps[-1].rule].refused["it would raise the peak"] += 1
                continue
            account[made.steps[-1].rule].fired += 1
            heapq.heappush(queue, (made.cost, len(seen), made))
            if _is_better(made, best, start.cost, terms.margin):
                with account.timed("(accept)"):
                    best = made if accept(made.graph) else best
    if given is None:
        account.stop()
    last = (start.cost, best.cost, stop or "no more states", states, account, best.regions)
    return Found(best.graph, best.ids, best.steps, *last)


def _is_better(made: _State, best: _State, given: float, margin: float) -> bool:
    """Whether a state is cheaper than the best, and by a margin than the given graph, which wins ties."""
    return made.cost < min(best.cost * (1 - 1e-9), given * (1 - margin))


def _limit(limits: Limits, states: int, deadline: float, account: Account) -> str:
    """Return the limit that is reached, with the rule that fired most; empty for none."""
    most = max(account.entries.items(), key=lambda pair: pair[1].fired, default=("", None))[0]
    if states >= limits.states:
        return f"limit of {limits.states} states; {most} fired most"
    if time.perf_counter() > deadline:
        return f"limit of {limits.seconds:g} seconds; {most} fired most"
    return ""


def _expanded(
    state: _State,
    rules: Sequence[Rule],
    price: Price,
    terms: Terms,
    account: Account,
    most: float,
    matches: int,
) -> Iterator[_State]:
    seen = 0
    for found in neighbours(state.graph, rules, replace(terms, regions=state.regions), account):
        seen += 1
        if seen > matches * max(len(rules), 1):
            return
        with account.timed("(price)"):
            gain = found.gain(state.seconds, price)
        if state.cost - gain > most:
            account[found.rule.name].refused["it costs more"] += 1
            continue
        with account.timed("(apply)"):
            done = found.apply()
        if isinstance(done, Refusal):
            account[found.rule.name].refused[done.reason] += 1
            continue
        yield _after(state, found, done, gain, price, account)


def _after(
    state: _State, found: Candidate, done: Rewritten, gain: float, price: Price, account: Account
) -> _State:
    with account.timed("(hash)"):
        made = hashed_after(state.hashed, done.graph)
    seconds = {ident: took for ident, took in state.seconds.items() if ident in done.graph.node}
    seconds |= price(found.added) if found.change.new else {}
    at = tuple(state.graph.name_of(value) for value in found.match.roots)
    steps = (*state.steps, Applied(found.rule.name, at, gain))
    regions = there(grown(state.regions, found.match.nodes, done.ids.new), done.graph)
    return _State(made, state.ids.then(done.ids), steps, seconds, sum(seconds.values()), regions)
