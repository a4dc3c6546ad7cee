"""The layout layer: from lifetimes to an offset for every buffer, in one arena.

Example:
    >>> from peakfold.plan.memory import Buffer, Problem, plan
    >>> placement = plan(Problem((Buffer("a", 0, 2, 8), Buffer("b", 1, 3, 4), Buffer("c", 2, 4, 8))))
    >>> placement.arena, placement.lower_bound, placement.status
    (12, 12, 'optimal')
"""

from peakfold.plan.memory.bound import Bound, lower_bound
from peakfold.plan.memory.check import check_placement, match
from peakfold.plan.memory.csvfile import read_problem, read_solution, write_solution
from peakfold.plan.memory.planner import plan
from peakfold.plan.memory.problem import Buffer, Placement, Problem

__all__ = [
    "Bound",
    "Buffer",
    "Placement",
    "Problem",
    "check_placement",
    "lower_bound",
    "match",
    "plan",
    "read_problem",
    "read_solution",
    "write_solution",
]
