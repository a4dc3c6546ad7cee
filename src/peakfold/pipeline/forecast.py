"""What a step will take, before anything is run or allocated."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass

import torch

from peakfold.bridge.runtime.profile import machine
from peakfold.cost import roofline
from peakfold.cost.cache import FILE_NAME, CostCache
from peakfold.cost.costs import Costs
from peakfold.cost.key import keys
from peakfold.ir.graph import Graph
from peakfold.ops.known import barriers
from peakfold.options import from_environment
from peakfold.pipeline.before import timeline_before
from peakfold.pipeline.machine import environment
from peakfold.pipeline.stage import Stages
from peakfold.pipeline.task import Task
from peakfold.report.model import Eager, Estimate, GraphSize, LiveTensor, Timeline
from peakfold.report.progress import Progress, silent


@dataclass(frozen=True)
class Guess:
    """Seconds, and how far off they may be, as a part of them."""

    seconds: float
    error: float


MEASURED_ERROR = 0.01
MODELLED_ERROR = 0.05
CALL = Guess(10e-6, 0.8)
"""Seconds that eager's Python takes for one operator beside the operator, and how far off that may be."""
KNOWN, ROUGH = 0.2, 1.0
"""How far off the seconds of operators may be: of those that were measured, and of those of a rough model."""
LIVE_ROWS = 50


def estimate(task: Task, device: str = "cpu", progress: Progress = silent, name: str = "") -> Estimate:
    """Return what eager's step takes: bytes by kind and seconds, and how far off that may be.

    Args:
        task: a training step; its tensors may be fake or on the meta device.
        device: ``"cpu"``, ``"cuda"``, or a simulated one for the seconds.
        progress: told where it is.
        name: what the report calls the program.

    Raises:
        CaptureError: the program cannot be captured.
    """
    options = from_environment()
    stages = Stages(progress, options.dump)
    with stages("capture"):
        graph = task.capture().graph
    costs, known = _costs(graph, device, CostCache(options.cache / FILE_NAME))
    whole = len(known) == len(costs.seconds)
    took = None if device.startswith("sim:") else _eager_seconds(costs.seconds, known)
    with stages("capture"):
        line = timeline_before(task, graph if whole else None, costs if whole else None)
    return Estimate(
        target=name or type(task.model).__name__,
        device=device,
        eager=Eager(line.peak_bytes, sum(costs.seconds.values()) if took is None else took.seconds),
        components=line.at_peak,
        peak_error=MEASURED_ERROR if whole else MODELLED_ERROR,
        time_error=None if took is None else took.error,
        basis=_basis(device, len(known), len(costs.seconds)),
        seconds=stages.seconds(),
        graph=GraphSize(len(graph.nodes), sum(1 for _ in graph.storages())),
        timeline=line,
        live_at_peak=_live(line),
        barriers=barriers(graph),
        environment=environment(0),
    )


def _eager_seconds(seconds: Mapping[int, float], known: Collection[int]) -> Guess:
    """Return what eager takes for operators, and how far off that is: by what is known of each.

    Example:
        >>> found = _eager_seconds({1: 1.0, 2: 1.0}, [1])
        >>> round(found.seconds, 5), round(found.error, 3)
        (2.00002, 0.6)
    """
    calls = len(seconds) * CALL.seconds
    off = sum((KNOWN if node in known else ROUGH) * each for node, each in seconds.items())
    total = sum(seconds.values()) + calls
    return Guess(total, (off + CALL.error * calls) / total if total else 0.0)


def _costs(graph: Graph, device: str, cache: CostCache) -> tuple[Costs, Collection[int]]:
    """Return costs of a graph without measuring any, and the nodes of which they were measured before."""
    if device.startswith("sim:"):
        return roofline.estimate(graph, device.removeprefix("sim:")), ()
    by_node = keys(graph, machine(torch.get_num_threads()))
    found = cache.get_many(by_node.values())
    known = {node: found[key] for node, key in by_node.items() if key in found}
    rough = {node: roofline.seconds_of(graph, graph.node[node], roofline.CPU) for node in by_node}
    seconds = rough | {node: entry.seconds for node, entry in known.items()}
    workspace = {node: entry.workspace for node, entry in known.items()}
    return Costs(seconds, workspace, "estimated"), known.keys()


def _basis(device: str, known: int, total: int) -> str:
    if device.startswith("sim:"):
        return f"the description of {device.removeprefix('sim:')}; workspace of convolutions as on a CPU"
    if known == total:
        return "every operator was measured on this machine before"
    return f"{known} of {total} operators were measured on this machine before, the rest is a rough model"


def _live(line: Timeline) -> tuple[LiveTensor, ...]:
    at = line.peak_step
    live = sorted(
        (block for block in line.blocks if block.start <= at < block.end), key=lambda block: -block.nbytes
    )
    return tuple(
        LiveTensor(
            name=block.name,
            kind=block.kind,
            nbytes=block.nbytes,
            module=block.module,
            source=block.source,
            why=f"alive until {_end(line, block.end)}",
            recompute_seconds=None,
            freeing="optimize to see",
        )
        for block in live[:LIVE_ROWS]
    )


def _end(line: Timeline, end: int) -> str:
    return "the step ends" if end >= len(line.steps) else line.steps[end]
