"""Equality saturation of a graph by rules, and the cheapest of several extractions."""

import time
from collections.abc import Sequence

from peakfold.graph.rewrite.account import Account
from peakfold.graph.rewrite.candidate import Price
from peakfold.graph.rewrite.change import Ids
from peakfold.graph.rewrite.classes import Classes
from peakfold.graph.rewrite.driver import LIMITS, TERMS, Applied, Found, Limits, Terms
from peakfold.graph.rewrite.extract import Accept, Extractor, Prices, cheapest
from peakfold.graph.rewrite.grow import Growing
from peakfold.graph.rewrite.move import Retype
from peakfold.graph.rule import Rule
from peakfold.ir.graph import Graph

GROWING = 0.5
"""Part of the time for applying rules; the rest is for extracting."""


def saturated(
    graph: Graph,
    rules: Sequence[Rule],
    price: Price,
    *,
    limits: Limits = LIMITS,
    terms: Terms = TERMS,
    accept: Accept = lambda graph: True,
    account: Account | None = None,
    retype: Retype | None = None,
) -> Found:
    """Return the cheapest graph among extractions from all that rules derive; the given one wins ties.

    Args:
        graph: where it starts.
        rules: what is applied, everywhere.
        price: seconds of the nodes of a graph.
        limits: of seconds, and of matches of one rule.
        terms: what the result has to keep to.
        accept: asked of each graph that would be the best: whether its rounding may be what it is, say.
        account: one to go on with; a new one where None.
        retype: gives the types of an extraction; without it strides stay as they are everywhere.
    """
    given, account = account, account or Account()
    start = time.perf_counter()
    with account.timed("(price)"):
        seconds = dict(price(graph))
    classes = Classes(graph)
    until = start + GROWING * limits.seconds
    stop = Growing(classes, terms, account, until, limits.matches, retype is not None).run(rules)
    with account.timed("(extract)"):
        prices = Prices(classes, graph, seconds, price)
        extractor = Extractor(classes, prices, start + limits.seconds)
        found = cheapest(extractor, terms, accept, account["(extract)"].refused, retype)
    if given is None:
        account.stop()
    before = sum(seconds.values())
    if found is None:
        return Found(graph, Ids(), (), before, before, stop, classes.size, account)
    made, after = found
    at = tuple(sorted(graph.name_of(old) for old in made.ids.values if old.node in made.ids.gone))
    step = Applied("+".join(sorted(made.rules)) or "shared", at, before - after)
    return Found(made.graph, made.ids, (step,), before, after, stop, classes.size, account)
