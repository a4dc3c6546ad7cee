"""Partial equivalence: every box of random mutants checked, corrected, and compared; what fusing saves.

``python -m benchmarks.partial [--mutants N] [--seed S]`` prints JSON.
"""

import argparse
import json
import sys
import time
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch

from peakfold.bridge.runtime.measure import interleaved_cpu_seconds
from peakfold.graph.partial.boxes import TESTS, boxes, failing
from peakfold.graph.partial.correct import corrected
from peakfold.graph.partial.mutants import mutants, random_pair
from peakfold.graph.partial.program import PRIME, Program, apply, drawn, evaluate, given
from peakfold.pipeline.machine import environment

Tensors = dict[Program, torch.Tensor]


def exactness(count: int, seed: int) -> dict[str, object]:
    """Return how many random mutants, corrected, compute what the original does, over a field."""
    generator = np.random.default_rng(seed)
    exact = tested = 0
    kinds = {"equal everywhere": 0, "equal in part": 0, "equal nowhere": 0}
    start = time.perf_counter()
    for number in range(count):
        original, mutant = random_pair(generator)
        wrong, every = failing(original, mutant), len(list(boxes(original, mutant)))
        tested += every
        kinds[list(kinds)[0 if not wrong else 2 if len(wrong) == every else 1]] += 1
        values = drawn((original,), 10_000 + number)
        result = evaluate(original, values)
        both = (evaluate(corrected(original, mutant, fuse=fuse), values) for fuse in (True, False))
        exact += all(np.array_equal(result, each) for each in both)
    return {"mutants": count, "exact": exact, "boxes_tested": tested, "kinds": kinds, "field": PRIME,
            "tests": TESTS, "seconds": time.perf_counter() - start}  # fmt: skip


def run(program: Program, tensors: Tensors) -> torch.Tensor:
    """Return the result of a program on tensors."""
    memo = dict(tensors)
    stack = [program]
    while stack:
        one = stack[-1]
        missing = [arg for arg in one.args if arg not in memo]
        stack.extend(missing)
        if not missing:
            stack.pop()
            if one not in memo:
                memo[one] = MEANING[one.op](one, *(memo[arg] for arg in one.args))
    return memo[program]


def _conv(term: Program, x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    top, bottom, first, last = term.numbers("pad")
    stride, dilation = term.numbers("stride"), term.numbers("dilation")
    if (top, first) == (bottom, last):
        return torch.nn.functional.conv2d(x, w, None, stride, (top, first), dilation)
    wide = torch.nn.functional.pad(x, (first, last, top, bottom))
    return torch.nn.functional.conv2d(wide, w, None, stride, 0, dilation)


def _fold(term: Program, x: torch.Tensor) -> torch.Tensor:
    return x.movedim(0, term.number("axis") - 1).reshape(term.shape)


def _unfold(term: Program, x: torch.Tensor) -> torch.Tensor:
    axis, parts = term.number("axis"), term.number("parts")
    shape = (*x.shape[1:axis], parts, x.shape[axis] // parts, *x.shape[axis + 1 :])
    return x.reshape(shape).movedim(axis - 1, 0)


def _slice(term: Program, x: torch.Tensor) -> torch.Tensor:
    start = term.number("start")
    return x.narrow(term.number("axis"), start, term.number("stop") - start)


def _place(term: Program, whole: torch.Tensor, *parts: torch.Tensor) -> torch.Tensor:
    result, corners = whole.contiguous(), term.numbers("corners")
    for i, part in enumerate(parts):
        corner = corners[i * whole.dim() : (i + 1) * whole.dim()]
        result[tuple(slice(c, c + n) for c, n in zip(corner, part.shape, strict=True))] = part
    return result


MEANING: Mapping[str, Callable[..., torch.Tensor]] = {
    "conv": _conv,
    "fold": _fold,
    "unfold": _unfold,
    "slice": _slice,
    "place": _place,
    "concat": lambda term, *parts: torch.cat(parts, term.number("axis")),
}


def fusion(repeats: int) -> dict[str, object]:
    """Return seconds of batch into width: the original, and corrected with and without fusing."""
    x, w = given("x", 32, 16, 14, 14), given("w", 32, 16, 3, 3)
    original = apply("conv", x, w, pad=(1, 1, 1, 1), stride=(1, 1), dilation=(1, 1))
    wide = apply("conv", apply("fold", x, axis=3), w, pad=(1, 1, 1, 1), stride=(1, 1), dilation=(1, 1))
    mutant = apply("unfold", wide, axis=3, parts=32)
    programs = {"original": original, "mutant": mutant, "fused": corrected(original, mutant),
                "unfused": corrected(original, mutant, fuse=False)}  # fmt: skip
    tensors = {one: torch.randn(one.shape) for one in (x, w)}
    expected = run(original, tensors)
    for name in ("fused", "unfused"):
        torch.testing.assert_close(run(programs[name], tensors), expected, rtol=1e-4, atol=1e-4)
    calls = {name: (lambda program=program: run(program, tensors)) for name, program in programs.items()}
    seconds = interleaved_cpu_seconds(calls, repeats, threads=1)
    return {
        "seconds": seconds,
        "operators": {name: program.steps for name, program in programs.items()},
        "fused_over_unfused": seconds["unfused"] / seconds["fused"],
        "original_over_fused": seconds["original"] / seconds["fused"],
        "applied": seconds["fused"] < seconds["original"],
    }


def enumerated(depth: int, limit: int) -> dict[str, object]:
    """Return what the enumeration of mutants of a small convolution comes to."""
    x, w = given("x", 2, 2, 4, 4), given("w", 2, 2, 3, 3)
    original = apply("conv", x, w, pad=(1, 1, 1, 1), stride=(1, 1), dilation=(1, 1))
    start = time.perf_counter()
    found = list(mutants(original, depth, limit))
    every = len(original.shape) and int(np.prod(original.shape))
    partly = [one for one in found if sum(_size(box) for box in failing(original, one)) < every]
    return {"depth": depth, "mutants": len(found), "equal_in_part": len(partly),
            "seconds": time.perf_counter() - start}  # fmt: skip


def _size(box: Sequence[tuple[int, int]]) -> int:
    return int(np.prod([high - low for low, high in box]))


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the figures as JSON."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--mutants", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--depth", type=int, default=4)
    parser.add_argument("--limit", type=int, default=60, help="programs a level that are gone on from")
    chosen = parser.parse_args(arguments)
    torch.set_num_threads(1)
    with torch.no_grad():
        result = {
            "environment": environment(chosen.seed),
            "exactness": exactness(chosen.mutants, chosen.seed),
            "fusion": fusion(chosen.repeats),
            "enumeration": enumerated(chosen.depth, chosen.limit),
        }
    json.dump(result, sys.stdout, indent=1)
    print()


if __name__ == "__main__":
    main()
