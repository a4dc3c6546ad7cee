"""What a benchmark is asked to run, read from the command line."""

import difflib
import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from fnmatch import fnmatchcase
from typing import Any

from peakfold.budget import parse_latency, parse_memory
from peakfold.errors import UsageError

WORKLOADS = ("resnet50", "bert", "vit", "unet", "unetpp", "gptneo", "btlm")
GROUPS: dict[str, str] = {
    "checkpoint": "checkpoint-*",
    "selective": "selective",
    "accumulate": "accumulate-*",
    "both": "accumulate-*+checkpoint-*",
    "compile": "compile-*",
}
CHECKPOINTS = ("checkpoint", "selective")
USUAL = ("checkpoint", "selective", "accumulate", "both")


@dataclass(frozen=True)
class Settings:
    """One benchmark.

    Attributes:
        workloads: names, run in this order.
        size: of each.
        peers: groups (the keys of `GROUPS`) or single names such as ``"accumulate-4"``; eager always runs.
        memory: budgets of the peak, as a user writes them.
        latency: limits of the time over eager's.
        matched: also search the least memory within the times of eager and of each checkpointing peer.
        time_budget: wall seconds of each search.
        repeats: timed runs of each variant.
        threads: of torch; with one, it is pinned to a core.
        optimizer: ``"sgd"``, ``"momentum"``, ``"adam"`` or ``"adamw"``.
        seed: of weights, batch and search.
        rewrite: plan the graph after rewrites that keep every bit, as ``optimize`` does.
        arena: each program of peakfold runs in an arena of its own, which counts whole in its peak; peers
            run with torch's allocator.
    """

    workloads: tuple[str, ...] = WORKLOADS
    size: str = "cpu"
    peers: tuple[str, ...] = USUAL
    memory: tuple[str, ...] = ("80%", "60%", "50%")
    latency: tuple[float, ...] = (1.05, 1.10, 1.35)
    matched: bool = True
    time_budget: float = 10.0
    repeats: int = 5
    threads: int = 1
    optimizer: str = "sgd"
    seed: int = 0
    rewrite: bool = True
    arena: bool = False

    def chosen(self, peers: Iterable[str]) -> list[str]:
        """Return those of some peers that are to run, in their order.

        Example:
            >>> Settings(peers=("accumulate", "selective")).chosen(
            ...     ["eager", "selective", "accumulate-2", "accumulate-2+checkpoint-1"])
            ['selective', 'accumulate-2']
        """
        return [peer for peer in peers if any(_is_of(peer, group) for group in self.peers)]

    def to_json(self) -> str:
        """Return the settings as one line."""
        return json.dumps(asdict(self))

    @staticmethod
    def from_json(text: str) -> "Settings":
        """Read settings back.

        Example:
            >>> Settings.from_json(Settings().to_json()) == Settings()
            True
        """
        found: dict[str, Any] = json.loads(text)
        given: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value for name, value in found.items()
        }
        return Settings(**given)


def _is_of(peer: str, group: str) -> bool:
    if group == "accumulate" and "+" in peer:
        return False
    return fnmatchcase(peer, GROUPS.get(group, group))


def is_checkpoint(variant: str) -> bool:
    """Whether a peer only computes again, and does not split the batch.

    Example:
        >>> is_checkpoint("selective"), is_checkpoint("accumulate-2+checkpoint-1")
        (True, False)
    """
    return any(_is_of(variant, group) for group in CHECKPOINTS)


def read(
    workloads: str,
    size: str,
    peers: str,
    memory: str,
    latency: str,
    time_budget: float,
    repeats: int,
    known: Sequence[str],
    compiled: bool = False,
    rewrite: bool = True,
    arena: bool = False,
) -> Settings:
    """Return the settings of some options, lists separated by commas.

    Args:
        workloads: names; empty for all seven.
        size: of each.
        peers: groups or names; empty for eager alone.
        memory: budgets; may be empty.
        latency: limits; may be empty.
        time_budget: wall seconds of each search.
        repeats: timed runs of each variant.
        known: names of the workloads that there are.
        compiled: also run ``torch.compile``.
        rewrite: plan the graph after rewrites that keep every bit.
        arena: run programs of peakfold in arenas.

    Raises:
        UsageError: an option cannot be read.

    Example:
        >>> read("bert", "tiny", "", "50%", "1.1", 1, 3, ["bert"]).latency
        (1.1,)
    """
    if repeats < 1:
        raise UsageError("options", "the runs are too few", expected="--repeats 1 or more", got=str(repeats))
    if not time_budget >= 0:
        raise UsageError(
            "options", "the time budget is negative", expected="seconds >= 0", got=str(time_budget)
        )
    names = _items(workloads) or list(WORKLOADS)
    for name in names:
        _require("workload", name, known)
    wanted = _items(peers) + (["compile"] if compiled else [])
    for peer in wanted:
        _require_peer(peer)
    budgets = _items(memory)
    for budget in budgets:
        parse_memory(budget)
    return Settings(
        workloads=tuple(dict.fromkeys(names)),
        size=size,
        peers=tuple(wanted),
        memory=tuple(budgets),
        latency=tuple(parse_latency(limit) for limit in _items(latency)),
        matched=bool(_items(latency)),
        time_budget=time_budget,
        repeats=repeats,
        rewrite=rewrite,
        arena=arena,
    )


def _items(text: str) -> list[str]:
    return [item.strip() for item in text.split(",") if item.strip()]


def _require(kind: str, name: str, options: Sequence[str]) -> None:
    if name in options:
        return
    close = difflib.get_close_matches(name, options, n=1)
    hint = f"did you mean {close[0]!r}?" if close else ""
    raise UsageError("options", f"unknown {kind}", expected=", ".join(options), got=repr(name), hint=hint)


def _require_peer(peer: str) -> None:
    stem = peer.split("+")[0].rpartition("-")[0]
    if peer in GROUPS or stem in GROUPS:
        return
    _require("peer", peer, [*GROUPS, "or a single one such as accumulate-4"])
