"""The cheapest program that all of rewriting finds: rules and templates, by measured seconds and bytes."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

from peakfold.graph.rewrite.account import Account
from peakfold.graph.rewrite.candidate import Price
from peakfold.graph.rewrite.driver import LIMITS, TERMS, Found, Limits, Terms, search
from peakfold.graph.rewrite.improve import improved
from peakfold.graph.rewrite.layout import laid_out
from peakfold.graph.rewrite.move import Retype
from peakfold.graph.rewrite.rules import hand_rules
from peakfold.graph.rewrite.templates import TEMPLATES, Template
from peakfold.graph.rule import Rule
from peakfold.ir.graph import Graph


def cheapest(
    graph: Graph,
    price: Price,
    retype: Retype,
    *,
    rules: Sequence[Rule] | None = None,
    limits: Limits = LIMITS,
    terms: Terms = TERMS,
) -> Found:
    """Return the cheapest graph: by rules, then by templates, then by layouts; the given one wins ties.

    Args:
        graph: where it starts.
        price: measured seconds of the nodes of a graph.
        retype: gives the types after a move.
        rules: what is tried; those by hand where None.
        limits: of the search over rules, and of each round of templates.
        terms: what each rewrite has to keep to.
    """
    account = Account()
    common = {"limits": limits, "terms": terms, "account": account}
    found = search(graph, hand_rules() if rules is None else rules, price, **common)  # type: ignore[arg-type]
    layouts: Mapping[str, Template] = {"channels_last": partial(laid_out, price=price, retype=retype)}
    ways = ({**TEMPLATES, **layouts}, {**layouts, **TEMPLATES})
    after = [improved(found.graph, price, retype, templates=way, **common) for way in ways]  # type: ignore[arg-type]
    best = min(after, key=lambda one: one.after)
    account.stop()
    return replace(
        best,
        ids=found.ids.then(best.ids),
        steps=found.steps + best.steps,
        before=found.before,
        stop=f"rules: {found.stop}; templates: {best.stop}",
        states=found.states + best.states,
        account=account,
    )
