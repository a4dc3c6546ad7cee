"""What the commands ask of the pipeline. torch is imported when one of these is called, not before."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from peakfold.errors import CacheError, PlanError, UsageError
from peakfold.report.folder import REPORT
from peakfold.report.model import Estimate, Report
from peakfold.report.progress import Progress

if TYPE_CHECKING:
    from peakfold.pipeline.request import Request
    from peakfold.workloads import Target

PLAN_BYTES = 64_000_000
OPTIONS = {"device", "seed", "rng"}


def optimize(chosen: Mapping[str, str], asked: "Request", progress: Progress) -> Report:
    """Load a target and optimize it.

    Args:
        chosen: what to load: ``target``, and where given ``size``, ``optimizer``, ``device``, ``seed``,
            ``inference``.
        asked: the limits.
        progress: told where it is.
    """
    target = load(chosen)
    from peakfold.pipeline.api import optimize_target

    return optimize_target(target, asked, progress).report


def estimate(chosen: Mapping[str, str], progress: Progress) -> Estimate:
    """Load a target and estimate it."""
    from peakfold.pipeline.api import estimate_target

    return estimate_target(load(chosen), chosen.get("device", "cpu"), progress, name=chosen["target"])


def load(chosen: Mapping[str, str]) -> "Target":
    """Load the target of a command line. For a simulated device a workload takes no memory at all."""
    from peakfold.workloads import BEYOND_NAMES, NAMES, load_target

    device = chosen.get("device", "cpu")
    _require_present(device)
    known = chosen["target"] in (*NAMES, *BEYOND_NAMES)
    placed = "meta" if device.startswith("sim:") else device
    return load_target(
        chosen["target"],
        seed=int(chosen.get("seed", "0")),
        size=chosen.get("size"),
        optimizer=chosen.get("optimizer"),
        device=placed if known and placed != "cpu" else None,
        inference=True if chosen.get("inference") == "yes" else None,
    )


def _require_present(device: str) -> None:
    import torch

    if device.startswith("cuda") and not torch.cuda.is_available():
        raise UsageError(
            stage="options",
            what="there is no CUDA device, or torch is built without CUDA",
            expected="cpu, or a simulated device such as sim:rtx3090",
            got=repr(device),
            hint="leave out --device for the CPU",
        )


def saved_options(saved: Report, folder: Path) -> dict[str, str]:
    """Return the options that build the program of a folder again.

    Raises:
        UsageError: the folder has none, or its program was for a device that is simulated.
        CacheError: they are damaged.
    """
    options = dict(saved.request)
    if "target" not in options:
        raise UsageError(
            stage="verify",
            what="the folder does not say how its program is built",
            where=str(folder),
            expected="a folder that the command line wrote",
            got="a report of a call from Python",
            hint="run `peakfold optimize TARGET --out DIR`; from Python, optimize_step verifies by itself",
        )
    if not options.keys() >= OPTIONS or not options["seed"].isdecimal():
        raise CacheError(
            stage="verify",
            what="the options of the program are damaged",
            where=f"{folder / REPORT}, request",
            expected=f"target, {', '.join(sorted(OPTIONS))}",
            got=", ".join(f"{name}={value}" for name, value in options.items()),
            hint="run `peakfold optimize TARGET --out DIR` again to write a new one",
        )
    if options["device"].startswith("sim:"):
        raise UsageError(
            stage="verify",
            what="the program is for a simulated device, and cannot be run",
            where=str(folder),
            expected="a program for cpu or cuda",
            got=options["device"],
            hint="run `peakfold optimize TARGET --out DIR` without --device",
        )
    return options


def read_plan(path: Path) -> str:
    """Return the text of a plan file.

    Raises:
        UsageError: there is no such file.
        PlanError: it is no text.
    """
    if not path.is_file():
        raise UsageError(
            stage="plan",
            what="there is no such plan",
            where=str(path),
            expected="a file, as --out DIR writes plan.txt",
            got="no such file",
            hint="check the path, or run `peakfold optimize TARGET --out DIR` to have one",
        )
    if path.stat().st_size > PLAN_BYTES:
        raise PlanError(
            stage="plan",
            what="the file is too large for a plan",
            where=str(path),
            expected=f"at most {PLAN_BYTES:,} bytes",
            got=f"{path.stat().st_size:,} bytes",
            hint="give the plan.txt that `peakfold optimize TARGET --out DIR` writes",
        )
    try:
        return path.read_text(encoding="utf-8-sig")
    except (UnicodeDecodeError, OSError) as error:
        raise PlanError(
            stage="plan",
            what="the plan cannot be read",
            where=str(path),
            expected="a text file",
            got=type(error).__name__,
            hint="give the plan.txt that `peakfold optimize TARGET --out DIR` writes",
        ) from None
