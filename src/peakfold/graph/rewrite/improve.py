"""Makes the moves of templates that pay, by measured seconds and bytes; the graph as it is wins ties."""

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from peakfold.graph.rewrite.account import Account
from peakfold.graph.rewrite.candidate import ACROSS, Price, Regions, across, grown, standalone, there
from peakfold.graph.rewrite.change import Refusal, Rewritten
from peakfold.graph.rewrite.driver import LIMITS, TERMS, Applied, Found, Limits, Terms
from peakfold.graph.rewrite.move import Move, Retype
from peakfold.graph.rewrite.templates import TEMPLATES, Template
from peakfold.ir.graph import Graph

Seconds = Mapping[int, float]


@dataclass(frozen=True)
class _State:
    done: Rewritten
    seconds: Seconds
    peak: int
    regions: Regions
    steps: tuple[Applied, ...] = ()


def improved(
    graph: Graph,
    price: Price,
    retype: Retype,
    *,
    templates: Mapping[str, Template] = TEMPLATES,
    limits: Limits = LIMITS,
    terms: Terms = TERMS,
    account: Account | None = None,
) -> Found:
    """Return a graph after the moves that save seconds and raise no peak, one after the other.

    A move's readers are priced too: what they read may lie otherwise in memory.

    Args:
        graph: where it starts.
        price: seconds of the nodes of a graph.
        retype: gives the types after a move.
        templates: what is tried, by name.
        limits: of seconds, and of moves.
        terms: what a move has to keep to.
        account: one to go on with; a new one where None.
    """
    given, deadline = account, time.perf_counter() + limits.seconds
    account = given or Account()
    with account.timed("(price)"):
        seconds = price(graph)
    state = _State(Rewritten(graph), seconds, terms.peak(graph), terms.regions)
    stop = ""
    for name, template in templates.items():
        tried: set[object] = set()
        while not stop:
            with account.timed(name):
                move = _next(template(state.done.graph), tried)
            if move is None:
                break
            tried |= {move.at, _alike(move)}
            account[name].tried += 1
            account[name].matched += 1
            made = _made(state, move, price, retype, terms, account)
            if isinstance(made, Refusal):
                account[name].refused[made.reason] += 1
            else:
                account[name].fired += 1
                tried.discard(_alike(move))
                state = made
            stop = _limit(limits, len(state.steps), deadline, name)
    if given is None:
        account.stop()
    before, after = sum(seconds.values()), sum(state.seconds.values())
    stop = stop or "no more moves"
    done = state.done
    return Found(done.graph, done.ids, state.steps, before, after, stop, 1, account, state.regions)


def _limit(limits: Limits, steps: int, deadline: float, name: str) -> str:
    if steps >= limits.steps:
        return f"limit of {limits.steps} moves, at {name}"
    return f"limit of {limits.seconds:g} seconds, at {name}" if time.perf_counter() > deadline else ""


def _next(moves: Iterator[Move], tried: set[object]) -> Move | None:
    return next((move for move in moves if tried.isdisjoint((move.at, _alike(move)))), None)


def _alike(move: Move) -> object:
    """Return what moves have in common that cost and save the same: their operators and types."""
    new = tuple((node.op.name, _constants(node.args), node.types) for node in move.change.new)
    return move.rule, new, tuple(_constants(node.args) for node in move.change.nodes)


def _constants(args: tuple[object, ...]) -> tuple[object, ...]:
    plain = (int, float, bool, str)
    return tuple(
        _constants(arg) if isinstance(arg, tuple) else arg if isinstance(arg, plain) else 0 for arg in args
    )


def _made(
    state: _State, move: Move, price: Price, retype: Retype, terms: Terms, account: Account
) -> _State | Refusal:
    before = state.done.graph
    nodes = frozenset(ident for _, ident in move.at)
    if across(nodes, state.regions):
        return Refusal(ACROSS)
    with account.timed("(apply)"):
        done = move.apply()
    if isinstance(done, Refusal):
        return done
    changed = frozenset(node.id for node in done.graph.nodes if before.node.get(node.id) is not node)
    with account.timed("(types)"):
        graph = retype(done.graph, changed)
    if graph is None:
        return Refusal("a reader does not take the new strides, or a result would change")
    dirty = [node for node in graph.nodes if before.node.get(node.id) is not node]
    with account.timed("(price)"):
        seconds = {ident: took for ident, took in state.seconds.items() if ident in graph.node}
        seconds |= price(standalone(graph, dirty))
    saved = sum(state.seconds.values()) - sum(seconds.values())
    touched = sum(
        state.seconds.get(ident, 0.0)
        for ident in before.node
        if graph.node.get(ident) is not before.node[ident]
    )
    if saved <= terms.margin * touched:
        return Refusal("it costs more, or as much")
    with account.timed("(peak)"):
        peak = terms.peak(graph)
    if peak > state.peak and not terms.may_raise_peak:
        return Refusal("it would raise the peak")
    ids = state.done.ids.then(done.ids)
    step = Applied(move.rule, move.names, saved)
    return replace(
        state,
        done=Rewritten(graph, ids),
        seconds=seconds,
        peak=peak,
        steps=(*state.steps, step),
        regions=there(grown(state.regions, nodes, done.ids.new), graph),
    )
