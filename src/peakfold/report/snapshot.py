"""A torch memory snapshot of a planned timeline, for the viewer at pytorch.org/memory_viz.

The format is that of ``torch.cuda.memory._snapshot()``: segments, and for each device a list of events.
It is written with plain dicts, so nothing of torch is needed here or to read it.
"""

import pickle
from dataclasses import dataclass

from peakfold.report.model import Block, Timeline

PAGE = 512
BASE = 0x7F0000000000
MICROSECOND = 1_000_000

Frame = dict[str, str | int]
Event = dict[str, str | int | list[Frame]]


@dataclass(frozen=True)
class Placed:
    """A block at an address."""

    block: Block
    address: int


def snapshot_of(timeline: Timeline) -> dict[str, object]:
    """Return a timeline as a memory snapshot.

    The addresses are those of a first-fit placement of the blocks; they only serve the drawing.

    Example:
        >>> line = Timeline(("a",), (0.5,), (Block("w", "parameters", 100, 0, 1),))
        >>> [event["action"] for event in snapshot_of(line)["device_traces"][0]]
        ['segment_alloc', 'alloc', 'free_requested', 'free_completed']
    """
    placed = _place(timeline)
    total = max((_end(item) - BASE for item in placed), default=0)
    events = [_event("segment_alloc", BASE, total, 0, ()), *_events(timeline, placed)]
    return {"segments": [_segment(total)], "device_traces": [events], "allocator_settings": {}}


def snapshot_bytes(timeline: Timeline) -> bytes:
    """Return the snapshot as a pickle; protocol 4, as torch writes it."""
    return pickle.dumps(snapshot_of(timeline), protocol=4)


def _place(timeline: Timeline) -> list[Placed]:
    """First fit in order of start: each block at the lowest address free over its life."""
    placed: list[Placed] = []
    live: list[Placed] = []
    for block in sorted(timeline.blocks, key=lambda block: (block.start, -block.end, block.name)):
        live = [item for item in live if item.block.end > block.start]
        item = Placed(block, _gap(live, block.nbytes))
        placed.append(item)
        live = sorted([*live, item], key=lambda item: item.address)
    return placed


def _gap(live: list[Placed], nbytes: int) -> int:
    address = BASE
    for item in live:
        if item.address - address >= nbytes:
            return address
        address = max(address, -(-_end(item) // PAGE) * PAGE)
    return address


def _end(item: Placed) -> int:
    return item.address + item.block.nbytes


def _events(timeline: Timeline, placed: list[Placed]) -> list[Event]:
    """Allocations and frees in order; at one step what dies goes first."""
    times = [0.0]
    for seconds in timeline.seconds:
        times.append(times[-1] + seconds)
    order = [(item.block.end, 0, item) for item in placed] + [(item.block.start, 1, item) for item in placed]
    order.sort(key=lambda entry: (entry[0], entry[1], entry[2].address))
    events: list[Event] = []
    for step, is_start, item in order:
        now = round(times[step] * MICROSECOND)
        actions = ("alloc",) if is_start else ("free_requested", "free_completed")
        frames = _frames(timeline, item.block)
        events += [_event(action, item.address, item.block.nbytes, now, frames) for action in actions]
    return events


def _event(action: str, address: int, size: int, time_us: int, frames: tuple[Frame, ...]) -> Event:
    return {
        "action": action,
        "addr": address,
        "size": size,
        "stream": 0,
        "time_us": time_us,
        "frames": list(frames),
    }


def _frames(timeline: Timeline, block: Block) -> tuple[Frame, ...]:
    file, _, line = block.source.rpartition(":")
    number = int(line) if line.isdigit() else 0
    step = timeline.steps[block.start] if block.start < len(timeline.steps) else "step"
    made: Frame = {"name": f"{block.name} ({block.kind})", "filename": file or "peakfold", "line": number}
    return (made, {"name": step, "filename": block.module or "step", "line": block.start})


def _segment(total: int) -> dict[str, object]:
    block = {
        "address": BASE,
        "size": total,
        "requested_size": total,
        "state": "inactive",
        "frames": [],
    }
    return {
        "device": 0,
        "address": BASE,
        "total_size": total,
        "allocated_size": 0,
        "active_size": 0,
        "requested_size": 0,
        "stream": 0,
        "segment_type": "large",
        "segment_pool_id": (0, 0),
        "is_expandable": False,
        "frames": [],
        "blocks": [block],
    }
