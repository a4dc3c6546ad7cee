"""The command line: reads options, calls the pipeline, shows the report."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from peakfold import __version__
from peakfold.cli import calls
from peakfold.cli import memory as memory_commands
from peakfold.cli import rules as rules_commands
from peakfold.cli.bench import run_bench, run_figure
from peakfold.cli.check import check_command
from peakfold.cli.demo import run_demo
from peakfold.cli.dims import dims as run_dims
from peakfold.cli.failures import guarded
from peakfold.cli.optimize import AFTER_EDITS, optimize_and_tell, require_equal, run
from peakfold.cli.options import (
    ArenaOf,
    DeviceOf,
    FissionOf,
    FolderOf,
    FrontOutOf,
    FrontRewriteOf,
    HoldsOf,
    HostMemoryOf,
    InferenceOf,
    IterationsOf,
    JsonOf,
    KeepConstantsOf,
    LatencyOf,
    MemoryOf,
    OffloadOf,
    Optimizer,
    OptimizerOf,
    OutOf,
    PeersOf,
    PlanOf,
    ResumeOf,
    RewriteOf,
    RngOf,
    RoundingOf,
    SaveSearchOf,
    SeedOf,
    Size,
    SizeOf,
    TargetOf,
    TimeBudgetOf,
    Verify,
    VerifyOf,
)
from peakfold.cli.output import Output
from peakfold.cli.pareto import pareto as run_pareto
from peakfold.cli.progress import Reporter
from peakfold.cost.roofline import described
from peakfold.errors import CaptureError, UsageError
from peakfold.options import quiet_profiler
from peakfold.report.folder import read_folder
from peakfold.report.model import Report
from peakfold.report.terminal import render_estimate, render_live, verdict_line
from peakfold.report.words import equality, peak_words

app = typer.Typer(
    name="peakfold",
    help="Fit a PyTorch step into a budget of bytes or seconds, and prove that it computes the same.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


@app.callback(invoke_without_command=True)
def top(
    version: Annotated[bool, typer.Option("--version", help="Print the version and stop.")] = False,
) -> None:
    """Options of every command."""
    if version:
        print(f"peakfold {__version__}")
        raise typer.Exit


@app.command()
def optimize(
    target: TargetOf,
    size: SizeOf = None,
    memory: MemoryOf = None,
    latency: LatencyOf = None,
    time_budget: TimeBudgetOf = 60.0,
    iterations: IterationsOf = None,
    device: DeviceOf = "cpu",
    optimizer: OptimizerOf = None,
    inference: InferenceOf = False,
    rng: RngOf = "eager",
    seed: SeedOf = 0,
    plan: PlanOf = None,
    rewrite: RewriteOf = True,
    offload: OffloadOf = None,
    host_memory: HostMemoryOf = None,
    fission: FissionOf = False,
    rounding: RoundingOf = False,
    keep_constants: KeepConstantsOf = False,
    arena_holds: HoldsOf = "step",
    resume: ResumeOf = None,
    save_search: SaveSearchOf = None,
    verify: VerifyOf = Verify.once,
    out: OutOf = None,
    json: JsonOf = None,
) -> None:
    """Fit a step into a budget, prove it equal, and show where the memory went."""
    chosen = _chosen(target, size, optimizer, device, seed, rng, inference)
    chosen |= {} if rewrite else {"rewrite": "no"}
    chosen |= _host(offload, host_memory) | ({"fission": "yes"} if fission else {})
    chosen |= {"rounding": "yes"} if rounding else {}
    chosen |= {"keep_constants": "yes"} if keep_constants else {}
    chosen |= {} if arena_holds == "step" else {"arena_holds": arena_holds}
    files = {"resume": resume, "save_search": save_search}
    text = None if plan is None else calls.read_plan(plan)
    limits = (memory, latency, time_budget, iterations)
    optimize_and_tell(chosen, limits, text, Output(json, out), files, verify)


@app.command()
def estimate(
    target: TargetOf,
    size: SizeOf = None,
    device: DeviceOf = "cpu",
    optimizer: OptimizerOf = None,
    inference: InferenceOf = False,
    seed: SeedOf = 0,
    json: JsonOf = None,
) -> None:
    """Say what a step will take; nothing is run or allocated."""
    output = Output(json)
    output.check()
    with Reporter(output.progress) as progress, output.alone():
        found = calls.estimate(_chosen(target, size, optimizer, device, seed, "eager", inference), progress)
    output.write(found)
    render_estimate(found, output.tables)


@app.command()
def explain(
    folder: FolderOf,
    rows: Annotated[int, typer.Option("--rows", help="How many tensors to list.", min=1)] = 20,
) -> None:
    """Say what is live at the peak, why it is kept, and what freeing it would cost."""
    report = read_folder(folder)
    console = Output().tables
    console.print(Text(peak_words(report)))
    render_live(report.live_at_peak, console, rows)


@app.command()
def verify(folder: FolderOf, json: JsonOf = None) -> None:
    """Run the saved program against the original again, from the same state."""
    saved = read_folder(folder)
    chosen = calls.saved_options(saved, folder)
    output = Output(json)
    output.check()
    limits, texts = (_memory_of(saved), None, 0.0, 0), saved.texts
    with _after_edits(folder):
        report = run(chosen, limits, texts.plan, output, source=texts.source)
    output.write(report)
    output.tables.print(verdict_line(equality(report.equal)))
    require_equal(report, AFTER_EDITS.format(folder))


@contextmanager
def _after_edits(folder: Path) -> Iterator[None]:
    """Have a program that fails as it runs say that its file, or its target, may have been changed."""
    try:
        yield
    except CaptureError as error:
        if error.stage == "step":
            error.expected = "the program that was written there, and the target that it was written for"
            error.hint = AFTER_EDITS.format(folder)
        raise


def _memory_of(saved: Report) -> str | int | None:
    """Return the budget of a report, as one that asks for the same."""
    budget = None if saved.arena is None else saved.arena.budget_bytes
    return saved.limits.memory_bytes if budget is None else f"arena:{budget}"


@app.command()
def apply(
    target: TargetOf,
    plan: Annotated[Path, typer.Argument(metavar="PLAN", help="A plan's text file.")],
    size: SizeOf = None,
    device: DeviceOf = "cpu",
    optimizer: OptimizerOf = None,
    inference: InferenceOf = False,
    rng: RngOf = "eager",
    seed: SeedOf = 0,
    offload: OffloadOf = None,
    host_memory: HostMemoryOf = None,
    out: OutOf = None,
    json: JsonOf = None,
) -> None:
    """Apply a plan that was written or edited by hand, and prove it equal."""
    chosen = _chosen(target, size, optimizer, device, seed, rng, inference) | _host(offload, host_memory)
    optimize_and_tell(chosen, (None, None, 0.0, 0), calls.read_plan(plan), Output(json, out))


@app.command()
def dims(
    target: TargetOf,
    size: SizeOf = None,
    device: DeviceOf = "cpu",
    optimizer: OptimizerOf = None,
    inference: InferenceOf = False,
    seed: SeedOf = 0,
    rows: Annotated[int, typer.Option("--rows", help="How many axes to list.", min=1)] = 20,
    json: JsonOf = None,
) -> None:
    """Say which axes a step can be split along: batch, sequence, heads, vocabulary, channels and others."""
    run_dims(_chosen(target, size, optimizer, device, seed, "eager", inference), rows, Output(json))


@app.command()
def pareto(
    target: TargetOf,
    size: SizeOf = None,
    time_budget: TimeBudgetOf = 60.0,
    iterations: IterationsOf = None,
    device: DeviceOf = "cpu",
    optimizer: OptimizerOf = None,
    inference: InferenceOf = False,
    seed: SeedOf = 0,
    fission: FissionOf = True,
    rewrite: FrontRewriteOf = False,
    measure: Annotated[bool, typer.Option("--measure", help="Run points of the front too.")] = False,
    arena: ArenaOf = False,
    peers: PeersOf = None,
    out: FrontOutOf = None,
    json: JsonOf = None,
) -> None:
    """Search the least memory at every time, and print the front."""
    from peakfold.pipeline.request import request

    chosen = _chosen(target, size, optimizer, device, seed, "eager", inference)
    limits = (None, None, time_budget, iterations, seed, "eager", measure)
    asked = request(*limits, device=device, name=target, rewrite=rewrite, offload="none", fission=fission)
    run_pareto(chosen, asked, measure, arena, peers, Output(json, out))


@app.command()
def demo(
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="Where the report goes.")] = Path("demo"),
    size: Annotated[Size, typer.Option("--size", help="Size of the workloads.")] = Size.cpu,
    memory: Annotated[str, typer.Option("--memory", metavar="M", help="Budget of the peak.")] = "50%",
    time_budget: TimeBudgetOf = 30.0,
    json: JsonOf = None,
) -> None:
    """Fit a U-Net and a BERT training step into half of their memory, and show it."""
    reports = run_demo(Output(json, out), size.value, memory, time_budget)
    for report in reports:
        require_equal(report)


@app.command()
def bench(
    workloads: Annotated[
        str, typer.Option("--workloads", metavar="A,B", help="Names; all seven when left out.")
    ] = "",
    size: Annotated[Size, typer.Option("--size", help="Size of the workloads.")] = Size.cpu,
    peers: Annotated[
        str,
        typer.Option(
            "--peers", metavar="A,B", help="Groups, or names such as accumulate-4; eager always runs."
        ),
    ] = "checkpoint,selective,accumulate,both",
    compiled: Annotated[
        bool, typer.Option("--compile", help="Also torch.compile with budgets; a minute each to compile.")
    ] = False,
    memory: Annotated[
        str, typer.Option("--memory", metavar="M,M", help="Budgets of the peak; time is minimized.")
    ] = "80%,60%,50%",
    latency: Annotated[
        str, typer.Option("--latency", metavar="L,L", help="Limits of the time; memory is minimized.")
    ] = "1.05,1.10,1.35",
    time_budget: Annotated[
        float, typer.Option("--time-budget", metavar="S", help="Seconds of searching for each constraint.")
    ] = 10.0,
    repeats: Annotated[int, typer.Option("--repeats", help="Timed runs of each variant.")] = 5,
    rewrite: RewriteOf = True,
    arena: ArenaOf = False,
    figure: Annotated[
        int | None,
        typer.Option(
            "--figure", metavar="N", help="A figure of the MAGIS paper, 9 to 16: predicted, as JSON."
        ),
    ] = None,
    device: Annotated[
        str, typer.Option("--device", metavar="cpu|sim:NAME", help="Of --figure: where operators run.")
    ] = "cpu",
    out: OutOf = None,
    json: JsonOf = None,
) -> None:
    """Measure eager, what users do today, and peakfold at given constraints, all in one run a workload."""
    if figure is not None:
        run_figure(figure, workloads, size.value, _device(device), time_budget, arena, Output(json, out))
        return
    from peakfold.bench import settings
    from peakfold.workloads import NAMES

    lists = (workloads, size.value, peers, memory, latency)
    asked = settings.read(*lists, time_budget, repeats, NAMES, compiled, rewrite, arena)
    run_bench(asked, Output(json, out))


app.command("plan")(memory_commands.plan_command)
app.add_typer(rules_commands.app, name="rules")
app.command("check")(check_command)


def _chosen(
    target: str,
    size: Size | None,
    optimizer: Optimizer | None,
    device: str,
    seed: int,
    rng: str,
    inference: bool,
) -> dict[str, str]:
    chosen = {"target": target, "device": _device(device), "seed": str(seed), "rng": rng}
    if size is not None:
        chosen["size"] = size.value
    if optimizer is not None:
        chosen["optimizer"] = optimizer.value
    return chosen | ({"inference": "yes"} if inference else {})


def _host(offload: str | None, host_memory: str | None) -> dict[str, str]:
    """Return what was said of the host."""
    said = {"offload": offload, "host_memory": host_memory}
    return {name: text for name, text in said.items() if text is not None}


def _device(name: str) -> str:
    if name.startswith("sim:"):
        described(name.removeprefix("sim:"))
        return name
    if name in ("cpu", "cuda") or name.startswith("cuda:"):
        return name
    raise UsageError(
        stage="options",
        what="there is no such device",
        expected="cpu, cuda, or a simulated one such as sim:rtx3090",
        got=repr(name),
    )


def main(arguments: list[str] | None = None) -> None:
    """Run the command line and end the process with its exit code."""
    quiet_profiler()
    raise SystemExit(guarded(app, arguments))
