"""The cheapest program that all of rewriting finds: rules and templates, by measured seconds and bytes."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial

from peakfold.graph.rewrite.account import Account
from peakfold.graph.rewrite.candidate import Price
from peakfold.graph.rewrite.driver import LIMITS, TERMS, Found, Limits, Terms, search
from peakfold.graph.rewrite.improve import improved
from peakfold.graph.rewrite.layout import laid_out
from peakfold.graph.rewrite.move import Retype
from peakfold.graph.rewrite.rules import book_rules, hand_rules
from peakfold.graph.rewrite.saturate import saturated
from peakfold.graph.rewrite.templates import TEMPLATES, Template
from peakfold.graph.rule import Rule
from peakfold.ir.graph import Graph

Accept = Callable[[Graph], bool]


def cheapest(
    graph: Graph,
    price: Price,
    retype: Retype,
    *,
    rules: Sequence[Rule] | None = None,
    limits: Limits = LIMITS,
    terms: Terms = TERMS,
) -> Found:
    """Return the cheapest graph: by rules, then by templates and layouts; the given one wins ties.

    Args:
        graph: where it starts.
        price: measured seconds of the nodes of a graph.
        retype: gives the types after a move.
        rules: what is tried; those by hand and those of the book where None.
        limits: of the search over rules, and of each round of templates.
        terms: what each rewrite has to keep to.
    """
    account = Account()
    found = by_rules(graph, price, retype, rules=rules, limits=limits, terms=terms, account=account)
    layouts: Mapping[str, Template] = {"channels_last": partial(laid_out, price=price, retype=retype)}
    ways = ({**TEMPLATES, **layouts}, {**layouts, **TEMPLATES})
    terms = replace(terms, regions=found.regions)
    after = [
        improved(found.graph, price, retype, templates=way, limits=limits, terms=terms, account=account)
        for way in ways
    ]
    best = min(after, key=lambda one: one.after)
    account.stop()
    return replace(
        best,
        ids=found.ids.then(best.ids),
        steps=found.steps + best.steps,
        before=found.before,
        stop=f"{found.stop}; templates: {best.stop}",
        states=found.states + best.states,
    )


def by_rules(
    graph: Graph,
    price: Price,
    retype: Retype,
    *,
    rules: Sequence[Rule] | None = None,
    limits: Limits = LIMITS,
    terms: Terms = TERMS,
    accept: Accept = lambda graph: True,
    account: Account | None = None,
) -> Found:
    """Return the cheaper of equality saturation and of best-first search from what saturation found.

    Each has half of the time. The arguments are as in `saturated`; without rules, those by hand and those of
    the book are tried, by best-first search those by hand alone: most of the book's are of no gain alone.
    """
    given, account = account, account or Account()
    half = replace(limits, seconds=limits.seconds / 2)
    common = {"limits": half, "terms": terms, "accept": accept, "account": account}
    few, further = (hand_rules(), book_rules()) if rules is None else (rules, ())
    first = saturated(graph, few, price, retype=retype, further=further, **common)  # type: ignore[arg-type]
    ways = [first]
    for start in dict.fromkeys((graph.digest, first.graph.digest)):
        base = graph if start == graph.digest else first.graph
        ways.append(_from(first, base, few, price, common))
    if given is None:
        account.stop()
    best = min(ways, key=lambda one: one.after)
    return replace(best, before=first.before, stop=f"saturation: {first.stop}; search: {ways[-1].stop}")


def _from(
    first: Found, base: Graph, rules: Sequence[Rule], price: Price, common: Mapping[str, object]
) -> Found:
    if base.digest != first.graph.digest:
        return search(base, rules, price, **common)  # type: ignore[arg-type]
    terms = replace(common["terms"], regions=first.regions)  # type: ignore[type-var]
    found = search(base, rules, price, **{**common, "terms": terms})  # type: ignore[arg-type]
    return replace(found, ids=first.ids.then(found.ids), steps=first.steps + found.steps)
