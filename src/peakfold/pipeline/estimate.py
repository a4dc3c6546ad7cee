"""What a step will take, before anything is run or allocated."""

from collections.abc import Mapping

import torch

from peakfold.bridge.capture.eager_memory import EagerMemory, eager_memory
from peakfold.bridge.runtime.profile import machine
from peakfold.cost import roofline
from peakfold.cost.cache import FILE_NAME, CostCache
from peakfold.cost.costs import Costs
from peakfold.cost.key import keys
from peakfold.ir.graph import Graph
from peakfold.options import from_environment
from peakfold.pipeline.machine import environment
from peakfold.pipeline.stage import Stages
from peakfold.pipeline.task import Task
from peakfold.report.model import Eager, Estimate, GraphSize
from peakfold.report.progress import Progress, silent
