"""Measure each distinct operator of a graph once: seconds, and bytes hidden beyond its outputs.

Seconds and bytes come from separate runs. Seconds are CPU seconds of the thread, the least of several
runs over operands that turn, so that an operator finds in the caches no more than it would in the
step. The views that a program makes for an operator, where it reads through them, count with it. Hidden bytes
are the allocator's peak while the operator runs, less its outputs.
"""

import gc
import os
import platform
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import Any

import torch
from torch.profiler import profile as torch_profile
from torch.profiler import record_function

from peakfold.bridge.codegen.operators import overload
from peakfold.bridge.runtime import heap
from peakfold.bridge.runtime.alone import filled, operator_alone
from peakfold.bridge.runtime.operands import PLACE, Call, Maker
from peakfold.bridge.runtime.recording import recording
from peakfold.cost.cache import CostCache, Measurement
from peakfold.cost.costs import Costs, Link
from peakfold.cost.key import Machine, keys
from peakfold.cost.roofline import CPU, seconds_of
from peakfold.errors import PlanError
from peakfold.ir.graph import Graph, Node, Value
from peakfold.ir.types import TensorType
from peakfold.ops.flops import touched
from peakfold.ops.inplace import is_placed
from peakfold.ops.recurrent import BACKWARD

Progress = Callable[[int, int], None]

BATCH = 16
COLD, VIEWS = 1 << 20, 30
"""Numbers that are written before a view is timed, and how often it is."""
BEGIN, END = "peakfold:begin", "peakfold:end"


FAILURES = (RuntimeError, TypeError, ValueError, IndexError, NotImplementedError, PlanError)
"""What an operator raises that is unknown or does not accept the operands made for it."""


@dataclass(frozen=True, slots=True)
class Effort:
    """How long an operator is measured.

    Attributes:
        runs: least number of timed runs.
        seconds: after so many, no run beyond ``least_runs`` starts.
        least_runs: runs of the slowest operators.
        slow: an operator that takes so many seconds is timed once.
        batch: seconds of work between two looks at the clock.
        cold: bytes of operands that are used in turn.
        copies: most sets of operands.
    """

    runs: int = 7
    seconds: float = 0.1
    least_runs: int = 3
    slow: float = 0.5
    batch: float = 2e-4
    cold: int = 8 << 20
    copies: int = 8


def machine(threads: int) -> Machine:
    """Return what operators on the CPU run on."""
    return Machine("cpu", _cpu_model(), torch.__version__, threads)


def profile(
    graph: Graph,
    cache: CostCache,
    threads: int = 1,
    progress: Progress | None = None,
    effort: Effort | None = None,
) -> Costs:
    """Return the measured costs of a graph; what the cache does not know is measured and kept there.

    Operators that cannot be measured get a roofline estimate and are named in ``Costs.estimated``.

    Args:
        graph: the program, on the CPU.
        cache: what is known already.
        threads: threads of torch meanwhile; those that the step will run on, since convolutions choose
            their algorithm, and so their workspace, by them.
        progress: called with (operators measured, operators to measure).
        effort: how long each is measured; a default when None.
    """
    here = machine(threads)
    by_node = keys(graph, here)
    known = cache.get_many(by_node.values())
    missing = {key: graph.node[node] for node, key in by_node.items() if key not in known}
    if missing:
        with _quiet(threads):
            for batch in _measure(graph, missing, effort or Effort(), progress or _silent):
                cache.put(batch)
        known = cache.get_many(by_node.values())
    made = views_made(graph)
    view = _view(cache, here) if any(made[node] for node in by_node) else 0.0
    seconds: dict[int, float] = {}
    workspace: dict[int, int] = {}
    estimated: dict[str, None] = {}
    for node, key in by_node.items():
        found = known.get(key)
        if found is None:
            estimated[graph.node[node].op.name] = None
            seconds[node] = seconds_of(graph, graph.node[node], CPU)
        else:
            seconds[node], workspace[node] = found.seconds, found.workspace
        seconds[node] += made[node] * view
    return Costs(seconds, workspace, f"measured on {here}", LINK, tuple(estimated))


LINK = Link(bandwidth=5e9, latency=20e-6, copy=5e9)
"""Copies within the memory of a CPU, roughly."""


def _measure(
    graph: Graph, missing: Mapping[str, Node], effort: Effort, progress: Progress
) -> Iterator[dict[str, Measurement]]:
    """Measure all bytes, then all seconds, and yield batches; an operator that fails is left out."""
    maker = Maker()
    hidden = _hidden_bytes(graph, {key: node for key, node in missing.items() if _fits(graph, node)}, maker)
    found: dict[str, Measurement] = {}
    for done, (key, nbytes) in enumerate(hidden.items()):
        progress(done, len(hidden))
        found[key] = Measurement(_seconds(graph, missing[key], maker, effort), nbytes)
        if len(found) == BATCH:
            yield found
            found = {}
    yield found
    progress(len(hidden), len(hidden))


def _fits(graph: Graph, node: Node) -> bool:
    """Whether an operator runs on the CPU and leaves most of the machine's memory free."""
    kinds = [graph.type(value) for value in node.inputs] + list(node.types)
    tensors = [kind for kind in kinds if isinstance(kind, TensorType)]
    physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    small = sum(kind.nbytes for kind in tensors) < physical // 8
    return all(kind.device == "cpu" for kind in tensors) and small and not _takes_opaque(node)


_OPAQUE = frozenset(("workspace", "reserve", "reserveSpace"))
"""What an operator calls a tensor whose bytes only its forward counterpart can fill."""


def _takes_opaque(node: Node) -> bool:
    """Whether an operator would crash on made-up operands; one that torch does not know cannot be asked."""
    if node.op.name == BACKWARD:
        return False
    try:
        arguments = overload(node.op.name)._schema.arguments
    except PlanError:
        return True
    return any(argument.name in _OPAQUE for argument in arguments)


def _hidden_bytes(graph: Graph, nodes: Mapping[str, Node], maker: Maker) -> dict[str, int]:
    """Return the hidden bytes by key, from one recording of all operators; those that fail are absent."""
    ran: list[str] = []
    with recording() as profiler:
        for key, node in nodes.items():
            if _runs(graph, node, maker):
                ran.append(key)
    outputs = {key: _output_bytes(nodes[key]) for key in ran}
    return {key: max(peak - outputs[key], 0) for key, peak in zip(ran, _peaks(profiler), strict=True)}


def operator_of(graph: Graph, node: Node) -> Callable[..., object]:
    """Return what a node runs: where a part is written into its place, that is all it does."""
    is_border = node.op.name == PLACE and isinstance(node.args[3], Value)
    return place if is_border or is_placed(graph, node) else operator_alone(node)


def place(
    whole: torch.Tensor,
    part: torch.Tensor,
    dim: int = 0,
    start: int | None = None,
    stop: int | None = None,
    step: int = 1,
) -> torch.Tensor:
    """Write a part into its place of a tensor, and return the tensor."""
    torch.ops.aten.slice.Tensor(whole, dim, start, stop, step).copy_(part)
    return whole


def _output_bytes(node: Node) -> int:
    pairs = zip(node.types, node.aliases, strict=True)
    return sum(kind.nbytes for kind, alias in pairs if alias is None and isinstance(kind, TensorType))


def _runs(graph: Graph, node: Node, maker: Maker) -> bool:
    """Run an operator to warm up, then between two marks; say whether it ran at all."""
    try:
        operator = operator_of(graph, node)
        args, kwargs = filled(node, maker.call(graph, node))
        operator(*args, **kwargs)
    except FAILURES:
        return False
    with record_function(BEGIN):
        pass
    outputs = operator(*args, **kwargs)
    with record_function(END):
        pass
    del outputs
    return True


def _peaks(profiler: torch_profile) -> Iterator[int]:
    """Yield the most bytes allocated between each pair of marks."""
    results: Any = profiler.profiler and profiler.profiler.kineto_results
    events = results.events()
    kept = [event for event in events if event.name() in ("[memory]", BEGIN, END)]
    live = peak = 0
    for event in sorted(kept, key=lambda event: event.start_ns()):
        if event.name() == BEGIN:
            live = peak = 0
        elif event.name() == END:
            yield peak
        else:
            live += event.nbytes()
            peak = max(peak, live)


def _seconds(graph: Graph, node: Node, maker: Maker, effort: Effort) -> float:
    """Return the least seconds of one run, over operands that turn."""
    operator = operator_of(graph, node)
    kinds = [graph.type(value) for value in dict.fromkeys(node.inputs)]
    copies = min(effort.copies, 1 + effort.cold // max(sum(touched(kind) for kind in kinds), 1))
    calls = [filled(node, maker.call(graph, node)) for _ in range(copies)]
    clock = time.thread_time if torch.get_num_threads() == 1 else time.perf_counter
    once = _timed(operator, calls, 1, clock)
    if once >= effort.slow:
        return once
    repeats = max(1, round(effort.batch / max(once, 1e-7)))
    best, spent, runs = float("inf"), 0.0, 0
    while runs < effort.least_runs or (runs < effort.runs and spent < effort.seconds):
        took = _timed(operator, calls, repeats, clock)
        best, spent, runs = min(best, took / repeats), spent + took, runs + 1
    return best


def _timed(
    operator: Callable[..., object], calls: Sequence[Call], repeats: int, clock: Callable[[], float]
) -> float:
    turn = [calls[i % len(calls)] for i in range(repeats)]
    start = clock()
    for args, kwargs in turn:
        operator(*args, **kwargs)
    return clock() - start


def views_made(graph: Graph) -> Mapping[int, int]:
    """Return how many views a program makes when it runs a node, by id; each reader makes its chains anew.

    Example:
        >>> from peakfold.ir.graph import Input, Op
        >>> from peakfold.ir.types import tensor
        >>> x, kind = Input(0, "x", "batch", tensor(4)), tensor(2, 2)
        >>> view = Node(1, "v", Op("aten.view.default"), (Value(0), (2, 2)), (), (kind,), (Value(0),))
        >>> turned = Node(2, "t", Op("aten.t.default"), (Value(1),), (), (kind,), (Value(0),))
        >>> relu = Node(3, "y", Op("aten.relu.default"), (Value(2),), (), (kind,), (None,))
        >>> views_made(Graph((x,), (view, turned, relu), ()))[3]
        2
    """
    made: dict[int, int] = {}
    for node in graph.nodes:
        read = (graph.node.get(value.node) for value in node.inputs)
        made[node.id] = sum(1 + made[of.id] for of in read if of is not None and of.is_view)
    return made


def _view(cache: CostCache, here: Machine) -> float:
    """Return the seconds that a view takes, whatever its shape; it is made once, after much else."""
    key = f"a view on {here}"
    known = cache.get(key)
    if known is not None:
        return known.seconds
    with _quiet(here.threads):
        call: Call = (torch.zeros(4), [2, 2]), {}
        nothing: Call = (), {}
        view, other = overload("aten.view.default"), torch.zeros(COLD)
        clock = time.thread_time if here.threads == 1 else time.perf_counter
        took, look = inf, inf
        for _ in range(VIEWS):
            other.add_(1)
            took = min(took, _timed(view, [call], 1, clock))
            look = min(look, _timed(_nothing, [nothing], 1, clock))
    cache.put({key: Measurement(max(took - look, 0.0), 0)})
    return cache.get_many([key])[key].seconds


def _nothing() -> None:
    """Take no more time than a call does."""


@contextmanager
def _quiet(threads: int) -> Iterator[None]:
    """Run on so many threads, without gradients, collections and page faults; random state is kept."""
    before, collecting = torch.get_num_threads(), gc.isenabled()
    torch.set_num_threads(threads)
    gc.disable()
    try:
        with torch.no_grad(), torch.random.fork_rng(devices=[]), heap.kept():
            yield
    finally:
        torch.set_num_threads(before)
        if collecting:
            gc.enable()


def _silent(done: int, total: int) -> None:
    """Say nothing."""


def _cpu_model() -> str:
    """Return the processor's name, as the kernel says it where it can."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    named = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return named[0] if named else platform.machine()
