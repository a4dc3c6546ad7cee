"""What the operators of a graph cost on the device that is asked for."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch

from peakfold.bridge.runtime.link_speed import link_speed
from peakfold.bridge.runtime.profile import profile
from peakfold.cost import roofline
from peakfold.cost.cache import FILE_NAME, CostCache
from peakfold.cost.costs import Costs
from peakfold.ir.graph import Graph
from peakfold.options import Options
from peakfold.pipeline import host
from peakfold.pipeline.request import Request
from peakfold.pipeline.task import Task
from peakfold.plan.fission.program import controlled


def priced(
    graph: Graph, task: Task, asked: Request, options: Options, tell: Callable[[int, int], None]
) -> tuple[Costs, Sequence[str]]:
    """Return the costs of a graph's nodes, and what went wrong with the cache beside it.

    They are modelled for a simulated device, else measured where the cache has not got them.

    Args:
        graph: the program, or one that regions make of it.
        task: what it was captured from.
        asked: the device, and whether values may wait on the host.
        options: where the cache is.
        tell: told how many operators of how many are measured.
    """
    if asked.simulated:
        name = asked.device.removeprefix("sim:")
        return controlled(graph, lambda one: roofline.estimate(one, name)), ()
    cache = CostCache(options.cache / FILE_NAME)
    costs = controlled(graph, lambda one: profile(one, cache, torch.get_num_threads(), tell))
    if host.is_offloading(asked):
        costs = replace(costs, link=link_speed(cache, task.device, host.folder(asked), costs.link))
    return costs, [str(notice) for notice in cache.notices]
