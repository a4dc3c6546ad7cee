"""Applies rules everywhere to classes of equal Values, within limits and with an account."""

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import islice

from peakfold.graph.rewrite.account import Account
from peakfold.graph.rewrite.candidate import ACROSS, across, grown
from peakfold.graph.rewrite.classes import Classes
from peakfold.graph.rewrite.conditions import UNSTRETCHED, unmet
from peakfold.graph.rewrite.driver import Terms
from peakfold.graph.rewrite.infer import CannotInfer
from peakfold.graph.rewrite.match import Match, Matcher, words_of
from peakfold.graph.rule import UNDECIDED, Rule
from peakfold.ir.graph import Value
from peakfold.ir.types import TensorType

ROUNDS, MOST_MADE = 4, 4000
ROOM, ROOM_EACH = 400, 3
"""Nodes that are made at most: so many, and so many for each of the given graph."""


@dataclass
class Growing:
    """Applies rules everywhere until nothing is new, or a limit is reached.

    Attributes:
        classes: what grows.
        terms: what a rewrite has to keep to.
        account: where tries, matches and refusals are counted.
        deadline: when to stop.
        most: matches of one rule in one round.
        any_strides: equal Values may lie otherwise in memory.
    """

    classes: Classes
    terms: Terms
    account: Account
    deadline: float
    most: int
    any_strides: bool

    def __post_init__(self) -> None:
        """Begin with the regions of the given graph; what is made inside of one is inside too."""
        self.regions = self.terms.regions

    def run(self, rules: Sequence[Rule]) -> str:
        """Apply rules; return why it ended."""
        classes, seen = self.classes, set[object]()
        most = self._most
        able = [rule for rule in rules if self._may_be_used(rule)]
        for _ in range(ROUNDS):
            size = classes.size
            with self.account.timed("(index)"):
                matcher = classes.matcher()
                here = [rule for rule in able if matcher.missing(rule) is None]
            new = [self._everywhere(rule, matcher, seen) for rule in here]
            with self.account.timed("(rebuild)"):
                classes.rebuild()
                fresh = classes.words_since(size)
            if self._is_full:
                return self._limit(f"{most} nodes" if classes.size >= most else "seconds")
            if not any(new):
                return "saturated"
            able = [rule for rule in able if not fresh.isdisjoint(words_of(rule))]
        return self._limit(f"{ROUNDS} rounds")

    def _limit(self, of: str) -> str:
        """Return the limit that is reached, with the rule that made the most nodes."""
        made = Counter(self.classes.rule_of.values())
        most = f"; {max(made, key=made.__getitem__)} made most" if made else ""
        return f"limit of {of}{most}"

    @property
    def _most(self) -> int:
        return min(MOST_MADE, ROOM + ROOM_EACH * len(self.classes.graph.nodes))

    @property
    def _is_full(self) -> bool:
        return self.classes.size >= self._most or time.perf_counter() > self.deadline

    def _may_be_used(self, rule: Rule) -> bool:
        may = rule.level != UNDECIDED or self.terms.undecided
        if not may:
            self.account[rule.name].refused["the rule is neither proved nor refuted"] += 1
        return may

    def _everywhere(self, rule: Rule, matcher: Matcher, seen: set[object]) -> bool:
        new = False
        with self.account.timed(rule.name):
            self.account[rule.name].tried += 1
            for match in islice(matcher.matches(rule), self.most):
                if self._is_full:
                    break
                bound = (tuple(match.variables.items()), tuple(match.constants.items()))
                key = (rule.name, match.roots, *bound)
                if key not in seen:
                    seen.add(key)
                    new = self._applied(match) or new
        return new

    def _applied(self, match: Match) -> bool:
        entry = self.account[match.rule.name]
        entry.matched += 1
        reason = self._refused(match)
        if reason is None:
            size = self.classes.size
            try:
                made = self.classes.made(match)
            except CannotInfer as error:
                entry.refused[str(error)] += 1
                return False
            self.regions = grown(self.regions, match.nodes, self.classes.made_since(size))
            pairs = list(zip(match.roots, made, strict=True))
            if all(self._may_be_one(a, b) for a, b in pairs):
                entry.fired += 1
                news = [self.classes.union(a, b) for a, b in pairs]
                return any(news)
            reason = "shape, dtype or strides would change"
        entry.refused[reason] += 1
        return False

    def _may_be_one(self, a: Value, b: Value) -> bool:
        first, second = self.classes.type(a), self.classes.type(b)
        if first == second or not (isinstance(first, TensorType) and isinstance(second, TensorType)):
            return first == second
        return self.any_strides and replace(first, strides=second.strides) == second

    def _refused(self, match: Match) -> str | None:
        for condition in match.rule.conditions:
            if condition.name == UNSTRETCHED:
                return "that nothing is stretched is not looked at here"
            reason = unmet(condition, match.variables, match.constants, self._tensor)
            if reason is not None:
                return reason
        if "update" in {self.classes.phase(ident) for ident in match.nodes}:
            return "the update is left as it is"
        if across(match.nodes, self.regions):
            return ACROSS
        return None

    def _tensor(self, value: Value) -> TensorType:
        kind = self.classes.type(value)
        assert isinstance(kind, TensorType)
        return kind
