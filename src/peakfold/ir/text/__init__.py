"""Graphs and plans as text that a person reads, and back, exactly."""

from peakfold.ir.text.graph_parse import parse_graph
from peakfold.ir.text.graph_print import print_graph
from peakfold.ir.text.plan_parse import parse_plan, planned_for
from peakfold.ir.text.plan_print import print_plan

__all__ = ["parse_graph", "parse_plan", "planned_for", "print_graph", "print_plan"]
