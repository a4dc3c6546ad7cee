"""The arena as a picture: address against step, a rectangle a buffer."""

from collections.abc import Sequence
from dataclasses import dataclass

from peakfold.report.arena import Arena, ArenaBlock
from peakfold.report.chart import HEIGHT, STACK, WIDTH
from peakfold.report.model import BlockKind

MOST = 4_000
"""Rectangles that are drawn and can be pointed at; the largest areas of more."""

LARGEST = 10
NARROW = 4.0
"""Of WIDTH: narrower rectangles have no outline of another colour, which would hide them."""


@dataclass(frozen=True)
class Area:
    """All rectangles of one kind, as paths in a box of WIDTH x HEIGHT: wide ones and narrow ones."""

    kind: BlockKind
    path: str
    narrow: str


@dataclass(frozen=True)
class Drawing:
    """The picture. Lines are in percent from the bottom; ``data`` is read out under the pointer."""

    areas: tuple[Area, ...]
    bound: float
    hidden: int
    largest: tuple[ArenaBlock, ...]
    data: dict[str, object]


def drawing_of(arena: Arena) -> Drawing:
    """Draw an arena."""
    steps = max(len(arena.steps), 1)
    by_area = sorted(arena.blocks, key=lambda block: -block.nbytes * (block.end - block.start))
    shown = by_area[:MOST]
    kinds = [kind for kind in STACK if any(block.kind == kind for block in shown)]
    return Drawing(
        areas=tuple(_area(kind, [b for b in shown if b.kind == kind], arena.nbytes, steps) for kind in kinds),
        bound=round(100 * arena.lower_bound_bytes / max(arena.nbytes, 1), 2),
        hidden=len(arena.blocks) - len(shown),
        largest=tuple(sorted(arena.blocks, key=lambda block: -block.nbytes)[:LARGEST]),
        data=_data(shown, arena),
    )


def _area(kind: BlockKind, blocks: Sequence[ArenaBlock], top: int, steps: int) -> Area:
    narrow = [block for block in blocks if _is_narrow(block, steps)]
    wide = [block for block in blocks if not _is_narrow(block, steps)]
    return Area(kind, _path(wide, top, steps), _path(narrow, top, steps))


def _is_narrow(block: ArenaBlock, steps: int) -> bool:
    return WIDTH * (block.end - block.start) / steps < NARROW


def _path(blocks: Sequence[ArenaBlock], top: int, steps: int) -> str:
    return "".join(_rectangle(block, max(top, 1), steps) for block in blocks)


def _rectangle(block: ArenaBlock, top: int, steps: int) -> str:
    left, right = (WIDTH * step / steps for step in (block.start, block.end))
    low, high = (HEIGHT * (1 - at / top) for at in (block.offset, block.offset + block.nbytes))
    return f"M{left:.2f} {low:.1f}H{right:.2f}V{high:.1f}H{left:.2f}Z"


def _data(blocks: Sequence[ArenaBlock], arena: Arena) -> dict[str, object]:
    """What a reader sees under the pointer: names, kinds and corners of rectangles, names of steps."""
    return {
        "steps": list(arena.steps),
        "top": arena.nbytes,
        "blocks": [[b.name, b.kind, b.nbytes, b.offset, b.start, b.end] for b in blocks],
    }
