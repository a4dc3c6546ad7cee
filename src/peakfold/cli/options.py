"""What the commands take: one type a kind of argument, with its name and its help."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer


class Size(StrEnum):
    """Sizes of the named workloads."""

    tiny = "tiny"
    cpu = "cpu"
    paper = "paper"


class Optimizer(StrEnum):
    """Optimizers of the named workloads."""

    sgd = "sgd"
    momentum = "momentum"
    adam = "adam"
    adamw = "adamw"


class Verify(StrEnum):
    """Whether a proof that was made before, of the very same program, holds."""

    once = "once"
    again = "again"


TargetOf = Annotated[
    str, typer.Argument(metavar="TARGET", help="A workload's name, or path/to/file.py:function.")
]
SizeOf = Annotated[Size | None, typer.Option("--size", help="Size of a workload.", show_default="cpu")]
OptimizerOf = Annotated[Optimizer | None, typer.Option("--optimizer", help="Optimizer of a workload.")]
DeviceOf = Annotated[str, typer.Option("--device", metavar="cpu|cuda|sim:NAME", help="Where it is to run.")]
MemoryOf = Annotated[
    str | None,
    typer.Option("--memory", metavar="M", help="Budget: bytes, 4GiB, 40%, fit; arena:4GiB for an arena."),
]
LatencyOf = Annotated[
    str | None, typer.Option("--latency", metavar="L", help="Most time over eager's, e.g. 1.10.")
]
TimeBudgetOf = Annotated[float, typer.Option("--time-budget", metavar="S", help="Seconds of searching.")]
IterationsOf = Annotated[
    int | None, typer.Option("--iterations", metavar="N", help="Steps of searching; makes it repeatable.")
]
RngOf = Annotated[str, typer.Option("--rng", metavar="eager|counter", help="Whose random numbers.")]
SeedOf = Annotated[
    int, typer.Option("--seed", help="Of weights, batch and search.", min=0, max=2**63 - 1, clamp=False)
]
VerifyOf = Annotated[
    Verify,
    typer.Option("--verify", help="again: also prove a program that was proved on this machine before."),
]
PlanOf = Annotated[
    Path | None, typer.Option("--plan", metavar="FILE", help="Apply this plan, do not search.")
]
RewriteOf = Annotated[
    bool, typer.Option("--rewrite/--no-rewrite", help="Rewrite the graph first, where every bit stays.")
]
OffloadOf = Annotated[
    str | None,
    typer.Option(
        "--offload",
        metavar="none|host|PATH",
        help="Where values may wait outside the device: its host's memory, or files in a folder.",
        show_default="none on cpu, else host",
    ),
]
HostMemoryOf = Annotated[
    str | None, typer.Option("--host-memory", metavar="M", help="Most bytes there, e.g. 64GiB.")
]
FissionOf = Annotated[
    bool,
    typer.Option("--fission/--no-fission", help="Do regions in parts where that pays; sums round otherwise."),
]
InferenceOf = Annotated[
    bool, typer.Option("--inference", help="The model alone, without loss, gradients and update.")
]
RoundingOf = Annotated[
    bool,
    typer.Option(
        "--rounding/--no-rounding", help="Also rewrite where that is faster and sums round otherwise."
    ),
]
FrontRewriteOf = Annotated[
    bool,
    typer.Option(
        "--rewrite/--no-rewrite",
        help="Also choose among rewritten graphs; with --fission among those that round otherwise too.",
    ),
]
KeepConstantsOf = Annotated[
    bool,
    typer.Option(
        "--keep-constants",
        help="Compute once what no input has a part in, and keep it, also where that raises the peak.",
    ),
]
ArenaOf = Annotated[
    bool,
    typer.Option("--arena", help="Run and measure peakfold's programs in arenas, which count whole."),
]
HoldsOf = Annotated[
    str,
    typer.Option(
        "--arena-holds",
        metavar="step|all",
        help="With arena:4GiB: what lies there, the step's own allocations or weights and batch too.",
    ),
]
ResumeOf = Annotated[
    str | None, typer.Option("--resume", metavar="FILE", help="Go on with a search that was saved.")
]
SaveSearchOf = Annotated[
    str | None, typer.Option("--save-search", metavar="FILE", help="Save the search, to go on with it.")
]
OutOf = Annotated[
    Path | None, typer.Option("--out", metavar="DIR", help="Write report, plan and program here.")
]
FrontOutOf = Annotated[
    Path | None,
    typer.Option("--out", metavar="DIR", help="Write front.html, its curve, and front.json here."),
]
PeersOf = Annotated[
    bool | None,
    typer.Option(
        "--peers/--no-peers",
        help="With --measure: also run gradient accumulation and checkpoints, as users write them.",
        show_default="on for training steps of the seven workloads",
    ),
]
JsonOf = Annotated[
    str | None, typer.Option("--json", metavar="FILE|-", help="Write the figures as JSON; - is stdout.")
]
FolderOf = Annotated[Path, typer.Argument(metavar="DIR", help="What --out wrote.")]
