"""What is asked of one optimization."""

from dataclasses import dataclass
from numbers import Integral, Real
from typing import Literal

from peakfold.budget import ARENA, MemoryBudget, parse_budget, parse_latency, parse_memory, require_seed
from peakfold.errors import UsageError
from peakfold.report.model import Limits

Rng = Literal["eager", "counter"]
ArenaHolds = Literal["step", "all"]
ONCE, AGAIN = "once", "again"
HOST_FORMS = "bytes, or a size such as 64GiB"
NO_OFFLOAD = "to leave everything on the device, --offload none"


@dataclass(frozen=True)
class Request:
    """The limits of one optimization and how it is searched and proved.

    Attributes:
        memory: budget of the peak, None for free.
        latency: most seconds over eager's, None for free.
        time_budget: wall seconds of the search.
        iterations: steps of the search; with it, the seed and the costs decide the plan alone, and
            the time budget no longer ends it.
        seed: of the search.
        rng: whose random numbers: ``"eager"`` draws exactly what eager draws, ``"counter"`` makes them from
            a key of the step, the operator and the element.
        verify: prove equality and measure, by running both.
        again: do so also where the very same program was proved before.
        device: ``"cpu"``, ``"cuda"`` or a simulated one, ``"sim:rtx3090"``.
        plan: text of a plan to apply instead of searching.
        source: a program that was emitted for that plan, to run instead of emitting one.
        name: what reports call the program.
        rewrite: rewrite the graph first, where that raises neither peak nor time and keeps every bit.
        offload: where values may wait outside the device: ``"none"``, ``"host"`` for its memory, or a
            folder; None for none on a CPU, where a copy on the same memory saves nothing, and else the host.
        host_memory: most bytes there; None for what is free.
        rounding: also rewrite where sums are rounded in another order, and that is faster.
        fission: split regions into parts where that pays; sums over parts round otherwise than whole ones.
        resume: file of a search with ``fission`` that is gone on with; None for none.
        save_search: file that such a search is saved to.
        keep_constants: compute once what no input has a part in, and keep it, where that raises the peak too.
        arena_holds: what lies in an arena: ``"step"``, what the step allocates; ``"all"``, weights, buffers,
            optimizer state and the batch too.
    """

    memory: MemoryBudget | None = None
    latency: float | None = None
    time_budget: float = 60.0
    iterations: int | None = None
    seed: int = 0
    rng: Rng = "eager"
    verify: bool = True
    device: str = "cpu"
    plan: str | None = None
    source: str | None = None
    name: str = ""
    rewrite: bool = True
    offload: str | None = None
    host_memory: int | None = None
    fission: bool = False
    resume: str | None = None
    save_search: str | None = None
    rounding: bool = False
    keep_constants: bool = False
    arena_holds: ArenaHolds = "step"
    again: bool = False

    @property
    def limits(self) -> Limits:
        """What a report says of the limits before the budget is known in bytes."""
        words = [self.memory.text] if self.memory else []
        words += [f"{self.latency:g}x time"] if self.latency else []
        return Limits(latency=self.latency, text=", ".join(words))

    @property
    def is_keyed(self) -> bool:
        """Whether random numbers are made from a key."""
        return self.rng == "counter"

    @property
    def simulated(self) -> bool:
        """Whether the device is a description: nothing is run on it."""
        return self.device.startswith("sim:")


def request(
    memory: str | float | None,
    latency: str | float | None,
    time_budget: float,
    iterations: int | None,
    seed: int,
    rng: str,
    verify: bool | str,
    device: str = "cpu",
    plan: str | None = None,
    name: str = "",
    rewrite: bool = True,
    offload: str | None = None,
    host_memory: str | float | None = None,
    fission: bool = False,
    rounding: bool = False,
    arena_holds: str = "step",
    resume: str | None = None,
    save_search: str | None = None,
    keep_constants: bool = False,
) -> Request:
    """Return the request that a user's arguments make.

    Raises:
        UsageError: an argument cannot be read.

    Example:
        >>> request("4GiB", 1.1, 60, None, 0, "eager", True).memory.nbytes
        4294967296
    """
    if rng not in ("eager", "counter"):
        raise UsageError(
            stage="options",
            what="the random numbers cannot be had in this way",
            expected="rng='eager', eager's exact stream, or rng='counter', numbers from a key and a counter",
            got=repr(rng),
            hint="leave it out for eager's stream",
        )
    _require_number("time budget", time_budget, Real)
    _require_number("iteration count", 0 if iterations is None else iterations, Integral)
    _require_number("seed", seed, Integral)
    if not time_budget >= 0:
        raise UsageError(
            stage="options",
            what="the time budget is negative",
            expected="seconds >= 0",
            got=str(time_budget),
            hint="write 0 for no search at all, or leave it out",
        )
    if iterations is not None and iterations < 0:
        raise UsageError(
            stage="options",
            what="the iteration count is negative",
            expected=">= 0",
            got=str(iterations),
            hint="leave it out for a search by time",
        )
    require_seed(seed)
    _require_host(host_memory, offload, device, plan)
    _require_file("--resume", resume)
    _require_file("--save-search", save_search)
    if (resume or save_search) and not fission:
        raise UsageError(
            stage="options",
            what="only a search with --fission is saved and gone on with",
            expected="--fission with --resume and --save-search",
            got="a search without it",
            hint="add --fission, or leave these out",
        )
    return Request(
        memory=None if memory is None else parse_budget(memory),
        latency=None if latency is None else parse_latency(latency),
        time_budget=float(time_budget),
        iterations=iterations,
        seed=seed,
        rng="counter" if rng == "counter" else "eager",
        verify=_verify(verify),
        again=verify == AGAIN,
        device=device,
        plan=plan,
        name=name,
        rewrite=rewrite,
        offload=offload,
        host_memory=None if host_memory is None else _host_bytes(host_memory),
        fission=fission,
        resume=resume,
        save_search=save_search,
        rounding=rounding,
        keep_constants=keep_constants,
        arena_holds=_arena_holds(arena_holds, memory, offload),
    )


def _verify(given: bool | str) -> bool:
    """Return whether to verify.

    Raises:
        UsageError: it is none of the ways.
    """
    if isinstance(given, bool) or given in (ONCE, AGAIN):
        return bool(given)
    raise UsageError(
        stage="options",
        what="there is no such way to verify",
        expected=f"{ONCE} (a proof of the very same program that was made before holds) or {AGAIN}",
        got=repr(given),
        hint=f"leave it out, or give verify={AGAIN!r}",
    )


def _arena_holds(given: str, memory: str | float | None, offload: str | None) -> ArenaHolds:
    if given == "step":
        return "step"
    if given != "all":
        raise UsageError(
            stage="options",
            what="there is no such content of an arena",
            expected="step (what the step allocates) or all (weights, state and batch too)",
            got=repr(given),
            hint="leave it out for what the step allocates",
        )
    if not str(memory).strip().lower().startswith(ARENA):
        raise UsageError(
            stage="options",
            what="the weights can lie in an arena only where the step has one",
            expected="a budget such as arena:4GiB beside --arena-holds all",
            got="no budget" if memory is None else repr(memory),
            hint="add --memory arena:SIZE, or leave out --arena-holds",
        )
    if offload not in (None, "none"):
        raise UsageError(
            stage="options",
            what="what lies in the arena for good cannot be offloaded",
            expected="--offload none beside --arena-holds all",
            got=repr(offload),
            hint="leave one of the two out",
        )
    return "all"


def _require_host(
    host_memory: str | float | None, offload: str | None, device: str, plan: str | None
) -> None:
    """Refuse a limit of the host's memory where nothing may wait there; a plan may say that it does."""
    waits = offload != "none" if offload is not None else not device.startswith("cpu")
    if host_memory is None or waits or plan is not None:
        return
    raise UsageError(
        stage="options",
        what="the host's memory is limited, and nothing may wait there",
        expected="--offload host, or a folder, beside --host-memory on a CPU",
        got=f"--host-memory {host_memory} with --offload {offload or 'left out: none, on a CPU'}",
        hint="add --offload host, or leave out --host-memory",
    )


def _require_file(option: str, given: str | None) -> None:
    if given == "-":
        raise UsageError(
            stage="options",
            what="a search is saved to and read from a file, not a stream",
            where=option,
            expected="the name of a file",
            got="-",
            hint="write ./- for a file of that name",
        )


def _require_number(name: str, given: object, kind: type) -> None:
    if isinstance(given, kind) and not isinstance(given, bool):
        return
    raise UsageError(
        stage="options",
        what=f"the {name} is no {'number' if kind is Real else 'whole number'}",
        expected="seconds" if kind is Real else "an int",
        got=repr(given),
        hint=f"give the {name} as a number, not as {type(given).__name__}",
    )


def _host_bytes(given: str | float) -> int:
    try:
        budget = parse_memory(given)
    except UsageError as error:
        error.what = error.what.replace("the memory budget", "the limit of the host's memory")
        error.expected = HOST_FORMS
        error.hint += f"; {NO_OFFLOAD}"
        raise
    if budget.nbytes is None:
        raise UsageError(
            stage="options",
            what="the limit of the host's memory cannot be a share",
            expected=HOST_FORMS,
            got=repr(budget.text),
            hint=NO_OFFLOAD,
        )
    return budget.nbytes
