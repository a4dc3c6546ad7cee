"""Thirty published fragments: what rewriting makes of each, against eager and torch.compile in one run.

``python -m benchmarks.fragments [--compile] [--only WORD] [--repeats N]`` prints JSON.
``python -m benchmarks.searches`` compares the searches on them, nothing run.

Shapes are fixed, operands are 512 a side or what makes eager take 5 ms on one core, whichever is more. Each
result is compared as everywhere: in float64 within 1e-9 of its scale, and in float32 with an error against
float64 of at most twice the original's own. A result's scale counts as at least a part of what the piece
makes of the operands' magnitudes: the sum of numbers that cancel is as far off as their magnitudes say.
"""

import argparse
import json
import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F

from peakfold.bridge.runtime.compare import BOUND, FLOOR, error_of
from peakfold.bridge.runtime.interpret import interpret
from peakfold.bridge.runtime.measure import interleaved_cpu_seconds
from peakfold.bridge.runtime.profile import profile
from peakfold.bridge.runtime.retype import retyped
from peakfold.cost.cache import FILE_NAME, CostCache
from peakfold.cost.costs import Costs
from peakfold.graph.rewrite.cheapest import by_rules
from peakfold.graph.rewrite.driver import Found, Limits
from peakfold.graph.rewrite.passes.lift import LiftedViews
from peakfold.graph.rewrite.passes.views import CanonicalViews
from peakfold.graph.rewrite.simplify import PASSES, simplify
from peakfold.ir.graph import Graph, Symbol
from peakfold.ir.plan import Plan
from peakfold.options import from_environment, quiet_profiler
from peakfold.pipeline.machine import environment
from peakfold.pipeline.program import emit_plan
from peakfold.pipeline.prove import eager_call, planned_call
from peakfold.pipeline.task import Task

Shape = tuple[int, ...]
Function = Callable[..., torch.Tensor]
CAP = 3.0
DRAWS = 8
ROUNDING = 2.0
"""What the error in float32 may be, over the original's own."""
GOALS = {"eager": 1.5, "compiled": 1.25}


@dataclass(frozen=True)
class Fragment:
    """A piece of a program.

    Attributes:
        name: family and what it does.
        function: the piece.
        shapes: of its operands.
    """

    name: str
    function: Function
    shapes: tuple[Shape, ...]


class Piece(torch.nn.Module):
    """A function as a module."""

    def __init__(self, function: Function) -> None:
        super().__init__()
        self.function = function

    def forward(self, *operands: torch.Tensor) -> torch.Tensor:
        """Return the function of the operands."""
        return self.function(*operands)


def heads(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Attention without softmax, as in linear transformers (Katharopoulos et al., 2020)."""
    return q @ k.transpose(-2, -1) @ v


def scaled_heads(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """The same with scaled scores."""
    return (q @ k.transpose(-2, -1) * 0.125) @ v


M, BATCH = (768, 768), (16, 320, 320)
HEADS = (2, 4, 768, 64)
IMAGE = (8, 64, 56, 56)

FRAGMENTS: tuple[Fragment, ...] = (
    Fragment("reassociation: (A B) v", lambda a, b, v: a @ b @ v, (M, M, (768,))),
    Fragment("reassociation: (A B) C, thin C", lambda a, b, c: a @ b @ c, (M, M, (768, 16))),
    Fragment(
        "reassociation: (u v') X", lambda u, v, x: (u[:, None] * v[None, :]) @ x, ((768,), (768,), (768, 768))
    ),
    Fragment("linear attention: one head", lambda q, k, v: q @ k.t() @ v, ((1536, 64),) * 3),
    Fragment("linear attention: heads", heads, (HEADS,) * 3),
    Fragment("linear attention: scaled", scaled_heads, (HEADS,) * 3),
    Fragment(
        "pooling: pool(x) + pool(y)",
        lambda x, y: F.avg_pool2d(x, 3, 1, 1) + F.avg_pool2d(y, 3, 1, 1),
        (IMAGE,) * 2,
    ),
    Fragment(
        "pooling: pool(x) - pool(y)",
        lambda x, y: F.avg_pool2d(x, 5, 1, 2) - F.avg_pool2d(y, 5, 1, 2),
        (IMAGE,) * 2,
    ),
    Fragment(
        "pooling: pool(conv1x1(x))", lambda x, k: F.avg_pool2d(F.conv2d(x, k), 2), (IMAGE, (128, 64, 1, 1))
    ),
    Fragment("shared operand: A C + B C", lambda a, b, c: a @ c + b @ c, (M, M, M)),
    Fragment("shared operand: C A - C B", lambda c, a, b: c @ a - c @ b, (M, M, M)),
    Fragment("shared operand: X[i] W", lambda x, w: torch.bmm(x, w.expand(64, 768, 768)), ((64, 16, 768), M)),
    Fragment("low rank: (U V) X", lambda u, v, x: u @ v @ x, ((768, 16), (16, 768), M)),
    Fragment("low rank: X (U V)", lambda x, u, v: x @ (u @ v), (M, (768, 16), (16, 768))),
    Fragment(
        "low rank: A X + B X, rank 1 each",
        lambda a, b, c, x: a @ b @ x + c @ b @ x,
        ((768, 1), (1, 768), (768, 1), (768, 768)),
    ),
    Fragment("Kronecker: (A x B) v", lambda a, b, v: torch.kron(a, b) @ v, ((80, 80), (64, 64), (5120,))),
    Fragment("Kronecker: (A x B) X", lambda a, b, x: torch.kron(a, b) @ x, ((40, 40), (40, 40), (1600, 64))),
    Fragment(
        "Kronecker: (A x B)(C x D)",
        lambda a, b, c, d: torch.kron(a, b) @ torch.kron(c, d),
        ((32, 32), (24, 24)) * 2,
    ),
    Fragment("trace: tr(A B)", lambda a, b: torch.trace(a @ b), (M, M)),
    Fragment("trace: tr(A x B)", lambda a, b: torch.trace(torch.kron(a, b)), ((80, 80), (80, 80))),
    Fragment("diagonal: diag(A B)", lambda a, b, v: torch.diagonal(a @ b) * v, (M, M, (768,))),
    Fragment("sums of products: sum(A B)", lambda a, b: (a @ b).sum(), (M, M)),
    Fragment("sums of products: rows of A B", lambda a, b: (a @ b).sum(1), (M, M)),
    Fragment("sums of products: mean of X W", lambda x, w: (x @ w).mean(0), ((1024, 768), M)),
    Fragment(
        "convolution: conv(x, k) + conv(y, k)",
        lambda x, y, k: F.conv2d(x, k, padding=1) + F.conv2d(y, k, padding=1),
        (IMAGE, IMAGE, (64, 64, 3, 3)),
    ),
    Fragment(
        "convolution: conv(x, k) + conv(x, l)",
        lambda x, k, m: F.conv2d(x, k, padding=1) + F.conv2d(x, m, padding=1),
        (IMAGE, (64, 64, 3, 3), (64, 64, 3, 3)),
    ),
    Fragment(
        "convolution: 1x1 after 1x1",
        lambda x, k, m: F.conv2d(F.conv2d(x, k), m),
        (IMAGE, (256, 64, 1, 1), (64, 256, 1, 1)),
    ),
    Fragment("batched: A C + B C", lambda a, b, c: torch.bmm(a, c) + torch.bmm(b, c), (BATCH,) * 3),
    Fragment(
        "batched: (A B) C, thin C",
        lambda a, b, c: torch.bmm(torch.bmm(a, b), c),
        (BATCH, BATCH, (16, 320, 8)),
    ),
    Fragment("batched: rows of A B", lambda a, b: torch.bmm(a, b).sum(2, keepdim=True), (BATCH, BATCH)),
)


def operands(fragment: Fragment, seed: int = 0) -> tuple[torch.Tensor, ...]:
    """Return operands of a fragment, drawn from a normal distribution."""
    generator = torch.Generator().manual_seed(seed)
    return tuple(torch.randn(shape, generator=generator) for shape in fragment.shapes)


def rewritten(graph: Graph, cache: CostCache, accept: Callable[[Graph], bool]) -> Found:
    """Return the cheapest graph by measured seconds, one thread."""

    def price(part: Graph) -> Mapping[int, float]:
        return profile(part, cache, 1).seconds

    return by_rules(graph, price, retyped, limits=Limits(states=60, seconds=40), accept=accept)


def made_in(graph: Graph, dtype: torch.dtype) -> Graph:
    """Return a graph whose operators make what they make of nothing, weights say, in another dtype."""
    name = str(dtype).removeprefix("torch.")
    nodes = tuple(
        replace(
            node,
            kwargs=tuple((k, Symbol("dtype", name) if k == "dtype" and v else v) for k, v in node.kwargs),
        )
        for node in graph.nodes
    )
    return replace(graph, nodes=nodes)


def is_equal(
    original: Graph, other: Graph, draws: Sequence[Sequence[torch.Tensor]]
) -> tuple[bool, float, float]:
    """Return whether a graph is equal, its error in float64, and its float32 error over the original's.

    Each error is the largest over all draws of operands.
    """

    def run(graph: Graph, given: Sequence[torch.Tensor], dtype: torch.dtype) -> torch.Tensor:
        tensors = {one.id: tensor.to(dtype) for one, tensor in zip(graph.inputs, given, strict=True)}
        found = interpret(made_in(graph, dtype), tensors, {})[graph.outputs[0].value]
        assert isinstance(found, torch.Tensor)
        return found.double()

    double = own = new = 0.0
    for given in draws:
        exact = run(original, given, torch.float64)
        summed = run(original, [tensor.abs() for tensor in given], torch.float64)
        floor = FLOOR * float(summed.abs().max())
        double = max(double, error_of(exact, run(other, given, torch.float64), floor))
        own = max(own, error_of(exact, run(original, given, torch.float32), floor))
        new = max(new, error_of(exact, run(other, given, torch.float32), floor))
    ratio = new / own if own else (0.0 if new == 0 else math.inf)
    return double <= BOUND and ratio <= ROUNDING, double, ratio


def measure(fragment: Fragment, cache: CostCache, repeats: int, compiled: bool) -> dict[str, object]:
    """Return the figures of a fragment."""
    given = operands(fragment)
    task = Task(Piece(fragment.function), None, None, given)
    captured = task.capture()
    start = simplify(captured.graph, (*PASSES, LiftedViews(), CanonicalViews())).graph
    draws = [operands(fragment, seed) for seed in range(DRAWS)]
    found = rewritten(start, cache, lambda graph: is_equal(captured.graph, graph, draws)[0])
    ok, double, ratio = is_equal(captured.graph, found.graph, draws)
    after = Task(task.model, None, None, given, rewriter=lambda graph: found.graph)
    program = emit_plan(after.capture(), Plan(found.graph.digest), Costs({}, {}))
    variants = {"eager": eager_call(task), "rewritten": planned_call(after, program)}
    if compiled:
        variants["compiled"] = compiled_call(fragment.function, given)
    seconds = interleaved_cpu_seconds(variants, repeats, threads=1, budget_seconds=30)
    taken = {f"{name}_seconds": seconds[name] for name in variants}
    over = {f"over_{name}": seconds[name] / seconds["rewritten"] for name in variants if name != "rewritten"}
    rules = [step.rule for step in found.steps]
    return {"fragment": fragment.name, "shapes": fragment.shapes, "rules": rules, **taken, **over,
            "equal": ok, "float64_error": double, "float32_error_over_eager": ratio}  # fmt: skip


def compiled_call(function: Function, given: tuple[torch.Tensor, ...]) -> Callable[[], object]:
    """Return a fragment under torch.compile, compiled already."""
    fast: Callable[..., Any] = torch.compile(function)
    with torch.no_grad():
        fast(*given)

    def call() -> object:
        with torch.no_grad():
            return fast(*given)

    return call


def summary(rows: Sequence[Mapping[str, object]]) -> dict[str, object]:
    """Return the geometric means, each ratio capped, and what the goals say."""

    def mean(key: str) -> float | None:
        ratios = [min(float(str(row[key])), CAP) for row in rows if key in row]
        return math.exp(sum(map(math.log, ratios)) / len(ratios)) if ratios else None

    return {
        "fragments": len(rows),
        "cap": CAP,
        "geomean_over_eager": mean("over_eager"),
        "geomean_over_compiled": mean("over_compiled"),
        "goals": GOALS,
        "all_equal": all(bool(row["equal"]) for row in rows),
        "slower_than_eager": [row["fragment"] for row in rows if float(str(row["over_eager"])) < 0.97],
    }


def measured(only: str, repeats: int, compiled: bool) -> Iterator[dict[str, object]]:
    """Yield the rows of the fragments whose names have a word in them."""
    quiet_profiler()
    torch.set_num_threads(1)
    cache = CostCache(from_environment().cache / FILE_NAME)
    for fragment in FRAGMENTS:
        if only in fragment.name:
            yield measure(fragment, cache, repeats, compiled)


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the figures as JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--compile", action="store_true", help="also measure torch.compile")
    parser.add_argument("--only", default="", help="fragments whose names have this in them")
    parser.add_argument("--repeats", type=int, default=9)
    chosen = parser.parse_args(arguments)
    rows = list(measured(chosen.only, chosen.repeats, chosen.compile))
    result = {"environment": environment(0), "summary": summary(rows), "rows": rows}
    json.dump(result, sys.stdout, indent=1)
    print()


if __name__ == "__main__":
    main()
