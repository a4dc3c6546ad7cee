"""Markdown tables of docs/benchmarks.md, made of the JSON that the commands print."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from typing import Any

from benchmarks import comparison

Found = Mapping[str, Any]
Cells = Sequence[str]

BEGIN, END = "<!-- tables: begin -->", "<!-- tables: end -->"
FIGURES = "python -m benchmarks.figures"
BENCH, IN_ARENAS = "bench", "bench-arena"
"""The comparison with peers; the same with programs of peakfold in arenas."""


@dataclass(frozen=True)
class Section:
    """One table.

    Attributes:
        title: its heading.
        figure: the command whose rows it shows.
        bar: what the figures are to be.
        columns: of the table.
        cells: rows of JSON to rows of the table.
    """

    title: str
    figure: str
    bar: str
    columns: Cells
    cells: Callable[[Sequence[Found]], Iterable[Cells]]


@dataclass(frozen=True)
class Command:
    """How a figure is measured.

    Attributes:
        line: of the shell.
        minutes: that it takes on a quiet machine of two cores; None where that was not measured.
    """

    line: str
    minutes: float | None


COMMANDS = {
    "bench": Command(
        "peakfold bench --peers checkpoint,selective --memory 50% --latency 1.10 --time-budget 5 --repeats 8"
        " --json benchmarks/results/bench.json",
        26,
    ),
    "bench-arena": Command(
        "peakfold bench --arena --peers checkpoint,selective --memory 50% --latency 1.10 --time-budget 5"
        " --json benchmarks/results/bench-arena.json",
        None,
    ),
    "budgets": Command(f"{FIGURES} budgets --json benchmarks/results/budgets.json", 6),
    "capture": Command(f"{FIGURES} capture --json benchmarks/results/capture.json", 1.5),
    "planning": Command(f"{FIGURES} planning --json benchmarks/results/planning.json", 4.5),
    "overhead": Command(f"{FIGURES} overhead --json benchmarks/results/overhead.json", 2.5),
    "arena": Command(f"{FIGURES} arena --sizes cpu --json benchmarks/results/arena.json", 6),
    "packing": Command(f"{FIGURES} packing --json benchmarks/results/packing.json", 0.5),
    "simulations": Command(f"{FIGURES} simulations --json benchmarks/results/simulations.json", 0.2),
    "equality": Command(f"{FIGURES} equality --json benchmarks/results/equality.json", 3.5),
    "demo": Command(f"{FIGURES} demo --json benchmarks/results/demo.json", 3),
}


def page(files: Sequence[Found]) -> str:
    """Return all tables; one whose figure was not measured says so."""
    by_figure: dict[str, list[Found]] = {}
    for file in files:
        by_figure.setdefault(_figure(file), []).extend(file["rows"])
    sections = (_section(section, by_figure.get(section.figure)) for section in SECTIONS)
    parts = [_machine(files), _commands(), *sections]
    return "\n\n".join(part for part in parts if part)


def _figure(file: Found) -> str:
    """Return the figure that a file has the rows of; a benchmark does not name itself."""
    in_arenas = file.get("settings", {}).get("arena", False)
    return str(file.get("figure", IN_ARENAS if in_arenas else BENCH))


def placed(text: str, tables: str) -> str:
    """Return a page with the tables between its two marks.

    Example:
        >>> placed("a <!-- tables: begin --> old <!-- tables: end --> b", "new").split()
        ['a', '<!--', 'tables:', 'begin', '-->', 'new', '<!--', 'tables:', 'end', '-->', 'b']
    """
    before, rest = text.split(BEGIN)
    _, after = rest.split(END)
    return f"{before}{BEGIN}\n\n{tables}\n\n{END}{after}"


def _machine(files: Sequence[Found]) -> str:
    """Return the machines that were measured on."""
    named = [file["environment"] for file in files if file.get("environment")]
    keys = ("cpu", "cores", "threads", "torch", "python", "peakfold")
    kinds = dict.fromkeys(", ".join(f"{key} {one[key]}" for key in keys if key in one) for one in named)
    return "\n".join(f"Measured on: {kind}." for kind in kinds)


def _commands() -> str:
    """Return how each figure is measured; the minutes are those of a quiet machine of two cores."""
    taken = {name: "-" if one.minutes is None else f"{one.minutes:g}" for name, one in COMMANDS.items()}
    lines = [f"| {name} | `{one.line}` | {taken[name]} |" for name, one in COMMANDS.items()]
    return "\n".join(["| figures | command | minutes |", "|---|---|---|", *lines])


def _section(section: Section, rows: Sequence[Found] | None) -> str:
    head = f"### {section.title}\n\nFrom {section.figure}; to be: {section.bar}."
    if rows is None:
        return f"{head}\n\nNot measured yet."
    good = [row for row in rows if not (row.get("error") and section.figure not in (BENCH, IN_ARENAS))]
    failed = [f"- {row.get('workload')}: {row['error']}" for row in rows if row not in good]
    lines = ["| " + " | ".join(section.columns) + " |", "|" + "---|" * len(section.columns)]
    lines += ["| " + " | ".join(cells) + " |" for cells in section.cells(good)]
    return "\n".join([head, "", *lines, *(["", "Failed:", "", *failed] if failed else [])])


def _capture(rows: Sequence[Found]) -> Iterator[Cells]:
    for row in rows:
        yield (
            row["workload"],
            f"{row['cpu_seconds']:.1f}",
            f"{row['nodes']:,}",
            ", ".join(row["unsupported"]) or "none",
            f"{row['parameters'] / 1e6:,.0f} M, {row['materialised']} materialised",
        )


def _by_workload(rows: Sequence[Found]) -> Iterator[tuple[str, list[Found]]]:
    for workload, group in groupby(rows, lambda row: str(row["workload"])):
        yield workload, list(group)


def _steps(rows: Sequence[Found]) -> Iterator[Cells]:
    for workload, group in _by_workload(rows):
        compared = [row for row in group if "steps" in row]
        equal, steps = sum(row["equal_steps"] for row in compared), sum(row["steps"] for row in compared)
        marks = sum(row["marks"] for row in compared)
        word = "all equal" if equal == steps == marks else f"NO, {steps - equal} differ"
        yield workload, str(len(compared)), f"{equal:,} of {steps:,}", word


def _peaks(rows: Sequence[Found]) -> Iterator[Cells]:
    for workload, group in _by_workload(rows):
        ratios = [row["predicted_peak_bytes"] / row["peak_bytes"] for row in group if row.get("peak_bytes")]
        yield workload, str(len(ratios)), f"{min(ratios):.4f}", f"{max(ratios):.4f}"


def _budgets(rows: Sequence[Found]) -> Iterator[Cells]:
    for workload, group in _by_workload(rows):
        ran = [row for row in group if not row["refused"]]
        over = sum(not row["within"] for row in ran)
        times = [row["predicted_latency_ratio"] for row in ran]
        monotone = all(a <= b for a, b in pairwise(times))
        bound = group[0]["lower_bound_bytes"]
        yield (
            workload,
            f"{len(ran)} / {len(group) - len(ran)}",
            str(over),
            "yes" if monotone else "NO",
            f"{bound / group[0]['eager_peak_bytes']:.3f}",
            f"{min(row['budget_bytes'] for row in ran) / bound:.3f}",
            f"{min(row['peak_bytes'] for row in ran) / bound:.3f}",
        )


def _overhead(rows: Sequence[Found]) -> Iterator[Cells]:
    for row in rows:
        yield (
            row["workload"],
            f"{row['nodes']:,}",
            f"{row['eager_cpu_seconds'] * 1e3:.1f} ms",
            f"{row['untouched_ratio']:.3f}",
            f"{row['plain_ratio']:.3f}",
        )


def _simulations(rows: Sequence[Found]) -> Iterator[Cells]:
    for row in rows:
        yield f"{row['nodes']:,}", f"{row['rows']:,}", f"{row['per_second']:,.0f}"


def _arena(rows: Sequence[Found]) -> Iterator[Cells]:
    for row in rows:
        asked = row.get("served", 0) + row.get("ordinary", 0)
        yield (
            row["workload"],
            row["size"],
            f"{row['buffers']:,}",
            f"{row['arena_bytes'] / 1e6:.2f}",
            f"{row['gap']:.2%}",
            f"{row['plan_seconds']:.2f} s",
            f"{row['served']:,} of {asked:,}" if "served" in row else "-",
            f"{row['caching'] / 1e6:.1f}" if "caching" in row else "-",
            comparison.ratio(row.get("ratio")),
        )


def _packing(rows: Sequence[Found]) -> Iterator[Cells]:
    for row in rows:
        taken = row["cpu_seconds"]
        yield (
            row["problem"],
            str(row["buffers"]),
            f"{row['fits']} of {row['seeds']}",
            f"{sum(taken) / len(taken):.2f}" if taken else "-",
            f"{max(taken):.2f}" if taken else "-",
            f"{row['gap_after_1_s']:.2%}",
        )


def _planning(rows: Sequence[Found]) -> Iterator[Cells]:
    for row in rows:
        stages = (row["stages"][name] for name in ("capture", "profile", "search", "codegen"))
        yield (
            row["workload"],
            row["size"],
            f"{row['seconds']:.1f}",
            *("-" if seconds is None else f"{seconds:.1f}" for seconds in stages),
            row["stop_reason"],
        )


def _equality(rows: Sequence[Found]) -> Iterator[Cells]:
    for row in rows:
        yield (
            row["workload"],
            row["optimizer"],
            f"{row['dropout']:g}",
            str(row["steps"]),
            str(row["recomputed"]),
            "every bit" if row["bit_equal"] else f"NO: {row['worst']} {row['max_error']:.1e}",
        )


def _demo(rows: Sequence[Found]) -> Iterator[Cells]:
    for row in rows:
        share = row["warm_seconds"] / row["cold_seconds"]
        memory = ", ".join(f"{ratio:.3f}" for ratio in row["memory_ratios"])
        yield f"{row['cold_seconds']:.0f} s", f"{row['warm_seconds']:.0f} s", f"{share:.2f}", memory


def _within(figure: str, where: str) -> tuple[Section, ...]:
    """Return what is to be seen of a comparison with peers."""
    peers = "max(0.85 x the checkpointing peers' memory, the lower bound)"
    return (
        Section(
            f"Memory within a time{where}",
            figure,
            f"at 1.10 the bar; everywhere at most {peers}",
            ("workload", "time", "peakfold", "bar", "best checkpointing peer", "lower bound", "ahead"),
            comparison.limits,
        ),
        Section(
            f"Memory within the time of each checkpointing peer{where}",
            figure,
            f"at most {peers}",
            ("workload", "time", "peakfold", "best checkpointing peer", "lower bound", "ahead"),
            comparison.at_peers,
        ),
        Section(
            f"Predicted time against measured{where}",
            figure,
            "within 10 % before and 3 % after correction by what operators take in other programs",
            ("workload", "programs", "worst before", "worst after"),
            comparison.times,
        ),
    )


def _variants(figure: str, where: str) -> Section:
    return Section(
        f"All variants{where}",
        figure,
        "what the comparisons above are made of",
        ("workload", "variant", "peak, MB", "memory", "time", "equal"),
        comparison.variants,
    )


SECTIONS = (
    *_within(BENCH, ""),
    *_within(IN_ARENAS, ", in arenas"),
    Section(
        "Twenty budgets from eager's peak to the proven lower bound",
        "budgets",
        "every run within its budget or refused; time monotone; lowest budget met / bound at most 1.15",
        (
            "workload",
            "met / refused",
            "over",
            "monotone",
            "bound / eager",
            "lowest budget / bound",
            "lowest peak / bound",
        ),
        _budgets,
    ),
    Section(
        "Simulated live bytes against measured, after each step",
        "budgets",
        "exactly equal",
        ("workload", "programs", "equal steps", ""),
        _steps,
    ),
    Section(
        "Predicted peak over the allocator's",
        "budgets",
        "0.99 to 1.01",
        ("workload", "runs", "least", "most"),
        _peaks,
    ),
    Section(
        "Capture at paper size, no weights",
        "capture",
        "at most 15 CPU seconds, no unsupported operator",
        ("workload", "CPU s", "nodes", "unsupported", "parameters"),
        _capture,
    ),
    Section(
        "Arenas of the workloads' steps, and of many steps in a row",
        "arena",
        "at most 0.5 % above the bound; 1 s for 2,000 buffers, 10 s for 20,000; time at most 1",
        (
            "workload",
            "size",
            "buffers",
            "arena MB",
            "above the bound",
            "planned in",
            "served",
            "caching allocator MB",
            "time / allocator's",
        ),
        _arena,
    ),
    Section(
        "Hard public problems of placing buffers: CPU seconds until they fit",
        "packing",
        "all fit, in 60 s together with the six others of their kind; a placement within 1 s",
        ("problem", "buffers", "fits", "mean", "most", "gap after 1 s, no capacity"),
        _packing,
    ),
    Section(
        "Planning, wall seconds with empty caches",
        "planning",
        "at most 60 s for cpu sizes, 180 s for paper sizes",
        ("workload", "size", "all", "capture", "profile", "search", "codegen", "search ended by"),
        _planning,
    ),
    Section(
        "Emitted code with nothing optimized, over eager",
        "overhead",
        "at most 1.05",
        ("workload", "nodes", "eager", "untouched", "without recomputation"),
        _overhead,
    ),
    Section(
        "Full simulations a second",
        "simulations",
        "at least 20,000",
        ("nodes", "rows", "a second"),
        _simulations,
    ),
    Section(
        "Equality",
        "equality",
        "every bit",
        ("workload", "optimizer", "dropout", "steps", "recomputed", ""),
        _equality,
    ),
    Section(
        "The demo",
        "demo",
        "under 300 s; a second run under a third",
        ("cold", "warm", "warm / cold", "memory over eager"),
        _demo,
    ),
    _variants(BENCH, ""),
    _variants(IN_ARENAS, ", in arenas"),
)
"""The tables, in the order of the page."""
