"""The literature's planners on our graphs and simulator: for comparison, and to start a search from."""

from collections.abc import Mapping

from peakfold.plan.literature.chen import chen
from peakfold.plan.literature.dtr import dtr
from peakfold.plan.literature.rotor import rotor
from peakfold.plan.literature.subject import Baseline, Name, Planner, Subject
from peakfold.plan.literature.xla import xla

__all__ = ["PLANNERS", "Baseline", "Name", "Planner", "Subject"]

PLANNERS: Mapping[Name, Planner] = {"chen": chen, "xla": xla, "dtr": dtr, "rotor": rotor}
"""Each planner by its name."""
