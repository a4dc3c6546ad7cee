"""Equality saturation of a graph by rules, and the cheapest of several extractions.

Rules that mostly pay go first, until nothing is new; the others start from all that these made, within what
is left of time and room. After each stage programs are extracted: many rules never find less than few.
"""

import time
from collections.abc import Sequence
from dataclasses import replace

from peakfold.graph.rewrite.account import Account
from peakfold.graph.rewrite.candidate import Price, there
from peakfold.graph.rewrite.change import Ids
from peakfold.graph.rewrite.classes import Classes
from peakfold.graph.rewrite.driver import LIMITS, TERMS, Applied, Found, Limits, Terms
from peakfold.graph.rewrite.extract import Accept, Extraction, Extractor, Prices, cheapest
from peakfold.graph.rewrite.grow import Growing
from peakfold.graph.rewrite.move import Retype
from peakfold.graph.rule import Rule
from peakfold.ir.graph import Graph
from peakfold.ops.strides import counts_in_storage

GROWING = 0.5
"""Part of the time for applying rules; the rest is for extracting."""
COUNTED = "a view counts its places in a storage"
"""What is equal to a tensor may have another storage: such a program is left to rewrites one by one."""


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
    further: Sequence[Rule] = (),
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
        further: what is applied once the rules have come to an end.
    """
    given, account = account, account or Account()
    start = time.perf_counter()
    with account.timed("(price)"):
        seconds = dict(price(graph))
    before = sum(seconds.values())
    if any(counts_in_storage(node) for node in graph.nodes):
        if given is None:
            account.stop()
        return Found(graph, Ids(), (), before, before, COUNTED, 0, account, terms.regions)
    classes = Classes(graph)
    prices = Prices(classes, graph, seconds, price)
    extractor = Extractor(classes, prices, start + limits.seconds)
    growing = Growing(
        classes, terms, account, start + GROWING * limits.seconds, limits.matches, retype is not None
    )
    found: tuple[Extraction, float] | None = None
    stops = []
    for stage in (rules, further) if further else (rules,):
        stops.append(growing.run(stage))
        with account.timed("(extract)"):
            below = None if found is None else found[1]
            refused = account["(extract)"].refused
            here = replace(terms, regions=growing.regions)
            found = cheapest(extractor, here, accept, refused, retype, below) or found
    stop = ", then ".join(dict.fromkeys(stops))
    if given is None:
        account.stop()
    if found is None:
        return Found(graph, Ids(), (), before, before, stop, classes.size, account, terms.regions)
    made, after = found
    at = tuple(sorted(graph.name_of(old) for old in made.ids.values if old.node in made.ids.gone))
    step = Applied("+".join(sorted(made.rules)) or "shared", at, before - after)
    regions = there(growing.regions, made.graph)
    return Found(made.graph, made.ids, (step,), before, after, stop, classes.size, account, regions)
