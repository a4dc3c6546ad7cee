"""The Plan: HOW a Graph is computed. No layer of it changes a result.

A `Plan` holds decisions, the few lines that a person reads and edits. A `Schedule` is what they
come to: each step in order. `peakfold.plan.schedule.lower` makes the second from the first, and the
same decisions always give the same schedule.
"""

from dataclasses import dataclass
from typing import Literal

from peakfold.ir.graph import Value


@dataclass(frozen=True, slots=True, order=True)
class Run:
    """The ``k``-th time that a node is computed; recomputation is a second run, not a new node."""

    node: int
    k: int = 0


@dataclass(frozen=True, slots=True, order=True)
class Buffer:
    """The storage that run ``k`` of a node (or a graph input, ``k`` = 0) makes for a Value.

    ``value`` owns its storage: views have no buffer of their own.
    """

    value: Value
    k: int = 0


ReuseKind = Literal["donate", "update", "accumulate"]


@dataclass(frozen=True, slots=True)
class Reuse:
    """An output is written into the buffer of an operand.

    Attributes:
        output: index of the output of the run.
        operand: the Value whose storage it takes.
        kind: ``donate``: the operand dies here; ``update``: the operand is a state input and the
            output its new value; ``accumulate``: the output is added into the operand.
    """

    output: int
    operand: Value
    kind: ReuseKind


@dataclass(frozen=True, slots=True)
class Compute:
    """Run a node. Operands are those of the latest run before this step."""

    run: Run
    reuses: tuple[Reuse, ...] = ()


@dataclass(frozen=True, slots=True)
class Free:
    """Give the bytes of a buffer back."""

    buffer: Buffer


@dataclass(frozen=True, slots=True)
class Offload:
    """Start to copy a buffer to the host; until its `Release` it may be read, and not written."""

    buffer: Buffer


@dataclass(frozen=True, slots=True)
class Release:
    """Wait until the copy of an offloaded buffer has ended, and give its device bytes back."""

    buffer: Buffer


@dataclass(frozen=True, slots=True)
class Prefetch:
    """Start to copy an offloaded buffer back; its device bytes are taken from here on."""

    buffer: Buffer


@dataclass(frozen=True, slots=True)
class Arrive:
    """Wait until the copy of a prefetched buffer has ended: it may be read, and its host bytes are free."""

    buffer: Buffer


@dataclass(frozen=True, slots=True)
class Pack:
    """Pack a buffer into fewer bytes, without loss, and give its own back."""

    buffer: Buffer


@dataclass(frozen=True, slots=True)
class Unpack:
    """Make a packed buffer again what it was, and give the packed bytes back."""

    buffer: Buffer


@dataclass(frozen=True, slots=True)
class Commit:
    """Copy the new value of a state input into the input's own storage."""

    input: int


@dataclass(frozen=True, slots=True)
class Loop:
    """Do ``steps`` once for each of ``parts`` parts; types inside are those of the largest part."""

    region: str
    parts: int
    steps: tuple["Step", ...]


Step = Compute | Free | Offload | Release | Prefetch | Arrive | Pack | Unpack | Commit | Loop


@dataclass(frozen=True, slots=True)
class Schedule:
    """Every step of the program, in order."""

    steps: tuple[Step, ...]


@dataclass(frozen=True, slots=True, order=True)
class Recompute:
    """Drop what a node computed, and compute it again before a later use.

    The gap that is bridged ends at the first run of ``use``; it starts at the reader before that.

    Attributes:
        node: the node whose outputs are dropped.
        use: the node whose first run needs them again.
        hold: when the value is computed again on the way to another one, before ``use``: keep it
            until ``use`` (True), or drop it and compute it once more (False).
        since: with ``hold``: keep it only from where it is computed again for this node or a later one;
            None for all of the gap.
    """

    node: int
    use: int
    hold: bool = True
    since: int | None = None


@dataclass(frozen=True, slots=True, order=True)
class OffloadGap:
    """A value waits on the host between two of its readers.

    All four nodes mean their first runs. A repeated run that reads the value in between brings it back
    earlier; where nothing is left of the gap, nothing is moved.

    Attributes:
        value: owns its storage: what a node makes, or a graph input.
        after: the copy to the host starts when this node has run: the value's maker or one of its
            readers. The id of an input itself means the beginning of the program.
        gone: the device's bytes are given back before this node runs, which waits for the copy.
        fetch: the copy back starts before this node runs.
        use: the next reader, which waits for the copy back.
    """

    value: Value
    after: int
    gone: int
    fetch: int
    use: int


@dataclass(frozen=True, slots=True, order=True)
class Anchor:
    """A place at which an axis is split, where its name alone leaves a choice.

    Attributes:
        value: a value that the region reads or makes.
        dim: its dimension.
        outer: places of the factors before this one in the dimension.
    """

    value: Value
    dim: int
    outer: int = 1


@dataclass(frozen=True, slots=True)
class Region:
    """Runs that are done in parts, one part after the other, along one dimension.

    A node of which the region has a run above 0 is computed again inside; who is outside reads run 0.

    Attributes:
        axis: the dimension, by the name that `plan.fission.dims` gives it, e.g. ``"batch"``.
        parts: how many; all of one size but the last, which may be smaller.
        runs: of nodes other than views, sorted, each node once.
        plan: the decisions inside one part, by the node ids of the body, nested regions included; None
            for none.
        anchor: where the axis is split; None where the name says it.
    """

    axis: str
    parts: int
    runs: tuple[Run, ...]
    plan: "Plan | None" = None
    anchor: Anchor | None = None


@dataclass(frozen=True, slots=True, order=True)
class CompressGap:
    """A value is packed without loss between two of its readers: truth values to bits, small numbers.

    Attributes:
        value: what a node makes; it owns its storage, and can be packed.
        after: the node after whose first run it is packed.
        use: the next reader.
    """

    value: Value
    after: int
    use: int


@dataclass(frozen=True, slots=True)
class Plan:
    """The decisions for one graph.

    Attributes:
        graph: digest of the graph that it is for.
        recompute: gaps over which values are dropped and computed again, sorted.
        updates: replace each state input as soon as its new value is complete and nothing still
            needs the old one (``"early"``), or after everything else (``"last"``).
        reuse: write results into dying operands where the operator allows it.
        order: ids of all nodes that are not views, in the order of their first runs; empty for the
            program's own order.
        offload: gaps over which values wait on the host, sorted.
        compress: gaps over which values are packed, sorted.
        regions: runs done in parts; disjoint, a nested one is in the plan of the outer one. Where there are
            any, all other decisions are about the outer graph that `plan.fission.split` makes.
    """

    graph: str
    recompute: tuple[Recompute, ...] = ()
    updates: Literal["early", "last"] = "early"
    reuse: bool = True
    order: tuple[int, ...] = ()
    offload: tuple[OffloadGap, ...] = ()
    regions: tuple[Region, ...] = ()
    compress: tuple[CompressGap, ...] = ()
