"""The one Report. Terminal, JSON and HTML are its faces; nothing here computes a plan.

Bytes are bytes (MB = 1e6 bytes where a face prints them), seconds are CPU seconds of the process on the
device's host, ratios are optimized over eager. A figure that was not taken is None.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate
from typing import Literal, get_args

from peakfold.report.arena import Arena

BlockKind = Literal[
    "parameters", "buffers", "gradients", "optimizer state", "batch", "activations", "workspace"
]
KINDS: tuple[BlockKind, ...] = get_args(BlockKind)


@dataclass(frozen=True)
class Block:
    """Bytes that are allocated over an interval of steps.

    Attributes:
        name: of the tensor, in the user's own words where there is one, e.g. ``"fc.weight"``.
        kind: decides its colour.
        nbytes: size.
        start: first step during which it is allocated.
        end: first step during which it no longer is.
        module: path of the module that makes it, or empty.
        source: file and line of the model's code, or empty.
    """

    name: str
    kind: BlockKind
    nbytes: int
    start: int
    end: int
    module: str = ""
    source: str = ""


@dataclass(frozen=True)
class Timeline:
    """Memory over one step: which blocks are allocated while each operator runs.

    Attributes:
        steps: name of each operator run, in order; a second run ends in ``" (again)"``.
        seconds: predicted seconds of each.
        blocks: everything allocated, residents included; in order of their start.

    Example:
        >>> weight = Block("w", "parameters", 100, 0, 2)
        >>> line = Timeline(("a", "b"), (0.1, 0.2), (weight, Block("h", "activations", 50, 1, 2)))
        >>> line.totals, line.peak_step, line.peak_bytes
        ((100, 150), 1, 150)
        >>> line.at_peak
        {'parameters': 100, 'activations': 50}
    """

    steps: tuple[str, ...]
    seconds: tuple[float, ...]
    blocks: tuple[Block, ...]

    def __post_init__(self) -> None:
        """Refuse what no step can be.

        Raises:
            ValueError: a block lies outside the steps, or the steps have not one duration each.
        """
        if len(self.seconds) != len(self.steps):
            raise ValueError(f"{len(self.seconds)} durations for {len(self.steps)} steps")
        outside = next((b for b in self.blocks if not 0 <= b.start <= b.end <= len(self.steps)), None)
        if outside is not None:
            raise ValueError(f"{outside.name} at {outside.start}..{outside.end} of {len(self.steps)} steps")

    @cached_property
    def series(self) -> Mapping[BlockKind, tuple[int, ...]]:
        """Bytes of each kind during each step; kinds that never occur are left out."""
        changes: dict[BlockKind, list[int]] = {}
        for block in self.blocks:
            line = changes.setdefault(block.kind, [0] * (len(self.steps) + 1))
            line[block.start] += block.nbytes
            line[block.end] -= block.nbytes
        return {kind: tuple(accumulate(changes[kind][:-1])) for kind in KINDS if kind in changes}

    @cached_property
    def totals(self) -> tuple[int, ...]:
        """Bytes during each step."""
        if not self.series:
            return (0,) * len(self.steps)
        return tuple(sum(column) for column in zip(*self.series.values(), strict=True))

    @property
    def peak_step(self) -> int:
        """Index of the first step with the most bytes; 0 for an empty timeline."""
        return self.totals.index(self.peak_bytes) if self.totals else 0

    @property
    def peak_bytes(self) -> int:
        """The most bytes during any step."""
        return max(self.totals, default=0)

    @property
    def at_peak(self) -> Mapping[BlockKind, int]:
        """Bytes of each kind during the peak step; kinds with none are left out."""
        found = {kind: line[self.peak_step] for kind, line in self.series.items()}
        return {kind: nbytes for kind, nbytes in found.items() if nbytes}


@dataclass(frozen=True)
class LiveTensor:
    """A tensor that is allocated at the peak.

    Attributes:
        name: of the tensor.
        kind: what it is.
        nbytes: size.
        module: path of the module that made it, or empty.
        source: file and line of the model's code, or empty.
        why: why it is kept, in words.
        recompute_seconds: what computing it again would cost; None when it cannot be freed.
        freeing: what freeing it would cost, in words.
    """

    name: str
    kind: BlockKind
    nbytes: int
    module: str
    source: str
    why: str
    recompute_seconds: float | None
    freeing: str


@dataclass(frozen=True)
class Decision:
    """One decision of the plan in words.

    Attributes:
        action: what is done, e.g. ``"recompute"``, ``"update"``, ``"reuse"``, ``"order"``.
        what: to what.
        when: when, or how.
        nbytes: bytes that it concerns; 0 when it is not about one amount.
        seconds: extra seconds that it costs.
    """

    action: str
    what: str
    when: str
    nbytes: int = 0
    seconds: float = 0.0


@dataclass(frozen=True)
class Eager:
    """The loop that users write. ``measured`` is False where the figures are predicted."""

    peak_bytes: int | None = None
    cpu_seconds: float | None = None
    measured: bool = False


@dataclass(frozen=True)
class Optimized:
    """What the plan comes to, predicted and measured."""

    predicted_peak_bytes: int | None = None
    peak_bytes: int | None = None
    host_bytes: int | None = None
    cpu_seconds: float | None = None
    predicted_latency_ratio: float | None = None


@dataclass(frozen=True)
class Equality:
    """The proof that both compute the same.

    Attributes:
        ok: whether every tensor is within the bound; None when it was not checked.
        max_error: largest error of any tensor in float64, relative to its own scale.
        bound: what max_error may be.
        batch: the batch that it was checked at: ``"full"``, or words that say the reduced one.
        steps: how many steps were compared.
        bit_equal: whether every bit agrees in the working precision; None when it was not checked.
        widened: the model's own casts to a narrower type were to float64 too, in both programs.
        undecided: numbers that were not compared, since rounding alone decides them in eager itself.
        proved_before: the day of the proof, where it was not made now but before, of the very same program.
    """

    ok: bool | None = None
    max_error: float | None = None
    bound: float | None = None
    batch: str | None = None
    steps: int | None = None
    bit_equal: bool | None = None
    widened: bool = False
    undecided: int = 0
    proved_before: str | None = None


@dataclass(frozen=True)
class StageSeconds:
    """Wall seconds of each stage."""

    capture: float | None = None
    profile: float | None = None
    search: float | None = None
    codegen: float | None = None
    verify: float | None = None


@dataclass(frozen=True)
class SearchSummary:
    """Why the search ended and how many states it looked at."""

    stop_reason: str | None = None
    states: int | None = None


@dataclass(frozen=True)
class GraphSize:
    """How large the captured program is."""

    nodes: int = 0
    storages: int = 0


@dataclass(frozen=True)
class Limits:
    """What was asked for: bytes and a ratio to eager's time, None where free.

    Attributes:
        memory_bytes: the budget in bytes.
        latency: most seconds over eager's.
        text: the budget as the user wrote it, e.g. ``"50%"``.
    """

    memory_bytes: int | None = None
    latency: float | None = None
    text: str = ""


@dataclass(frozen=True)
class Timelines:
    """Memory over the step: eager (before) and planned (after)."""

    before: Timeline | None = None
    after: Timeline | None = None


@dataclass(frozen=True)
class Texts:
    """The artefacts as text; stored in files of their own, not in the JSON."""

    plan: str = ""
    source: str = ""
    graph: str = ""


@dataclass(frozen=True)
class Report:
    """What was asked, what was found, what it measured and whether it is equal.

    Attributes:
        target: the workload's name or the file and function.
        limits: what was asked for.
        device: e.g. ``"cpu"``, ``"sim:rtx3090"``.
        eager: figures of the original.
        optimized: figures of the plan.
        equal: the proof.
        seconds: what each stage took.
        search: how the search ended.
        lower_bound_bytes: proven: no order and no recomputation gets below it.
        graph: size of the program.
        timelines: memory over the step, before and after.
        live_at_peak: what is allocated at the peak of ``after``, largest first.
        decisions: the plan in words, those that concern the most bytes first.
        barriers: operators without a table entry, which the planner leaves alone.
        notes: anything else a reader must know, one sentence each.
        environment: versions, machine, threads, seed.
        request: the command-line options that build the same program again; empty when it was called.
        texts: plan, emitted source and graph.
        arena: where the step's allocations lie; None where no arena was asked for.
    """

    target: str
    limits: Limits = Limits()
    device: str = "cpu"
    eager: Eager = Eager()
    optimized: Optimized = Optimized()
    equal: Equality = Equality()
    seconds: StageSeconds = StageSeconds()
    search: SearchSummary = SearchSummary()
    lower_bound_bytes: int | None = None
    graph: GraphSize = GraphSize()
    timelines: Timelines = Timelines()
    live_at_peak: tuple[LiveTensor, ...] = ()
    decisions: tuple[Decision, ...] = ()
    barriers: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    request: Mapping[str, str] = field(default_factory=dict)
    texts: Texts = Texts()
    arena: Arena | None = None

    @property
    def peak_bytes(self) -> int | None:
        """Peak of the plan: measured, or predicted where it was not run."""
        measured = self.optimized.peak_bytes
        return self.optimized.predicted_peak_bytes if measured is None else measured

    @property
    def memory_ratio(self) -> float | None:
        """Peak of the plan over eager's; predicted where the plan was not run."""
        return _ratio(self.peak_bytes, self.eager.peak_bytes)

    @property
    def latency_ratio(self) -> float | None:
        """Measured CPU seconds of the plan over eager's; None where not both were measured."""
        return _ratio(self.optimized.cpu_seconds, self.eager.cpu_seconds) if self.eager.measured else None


@dataclass(frozen=True)
class Estimate:
    """What a step will take, before anything is run or allocated.

    Attributes:
        target: the workload's name or the file and function.
        device: the device that it is estimated for.
        eager: predicted figures.
        components: bytes of each kind at the peak.
        peak_error: largest relative error of ``eager.peak_bytes`` that is to be expected.
        time_error: error of ``eager.cpu_seconds`` that is to be expected, as a part of them; None for a
            simulated device, where nothing is there to measure by.
        basis: what the figures rest on, in words.
        seconds: what each stage took.
        graph: size of the program.
        timeline: memory over the step.
        live_at_peak: what is allocated at the peak, largest first.
        barriers: operators without a table entry.
        notes: anything else a reader must know.
        environment: versions, machine, threads.
    """

    target: str
    device: str
    eager: Eager
    components: Mapping[BlockKind, int]
    peak_error: float | None = None
    time_error: float | None = None
    basis: str = ""
    seconds: StageSeconds = StageSeconds()
    graph: GraphSize = GraphSize()
    timeline: Timeline | None = None
    live_at_peak: tuple[LiveTensor, ...] = ()
    barriers: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)


def _ratio(part: float | None, whole: float | None) -> float | None:
    return None if part is None or not whole else part / whole
