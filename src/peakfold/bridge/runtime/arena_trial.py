"""The first run of the allocator of arenas on a device: a small program, against torch's own allocator."""

from dataclasses import replace

import torch

from peakfold.bridge.runtime.arena import Arena, Recorder
from peakfold.bridge.runtime.arena_cuda import WORKS
from peakfold.bridge.runtime.devices import current
from peakfold.plan.memory.layout import Layout, lay_out
from peakfold.plan.memory.recorded import requests_of
from peakfold.plan.memory.trace import Trace, in_lines


class Program:
    """Convolution, matrix products and what passes between them."""

    def __init__(self, device: str) -> None:
        torch.manual_seed(0)
        self.image = torch.randn(4, 3, 16, 16, device=device)
        self.kernel = torch.randn(8, 3, 3, 3, device=device)
        self.weight = torch.randn(8 * 16 * 16, 10, device=device)

    def __call__(self, mark: object = None) -> tuple[torch.Tensor, ...]:
        """Run it; with whatever marks the ends of steps."""
        found = torch.nn.functional.conv2d(self.image, self.kernel, padding=1)
        found = torch.relu(found)
        found = found.flatten(1) @ self.weight
        return (found.softmax(1),)


def main(device: str) -> None:
    """Print `WORKS`, or what went wrong."""
    print(trial(device))


def trial(device: str) -> str:
    """Return `WORKS` where results are the same in an arena, poisoned too, and all is served from there.

    Example:
        >>> trial("cpu")
        'works'
    """
    with current(device), torch.no_grad():
        program = Program(device)
        for _ in range(2):
            (expected,) = program()
        arena = Arena(_laid_out(program, device))
        for poison in (False, True, False):
            arena.poison = poison
            (found,) = arena.run(program)
            if not torch.equal(found, expected):
                return "other results than with torch's allocator" + (", poisoned" if poison else "")
            use = arena.use
            del found
            if (use.served, use.elsewhere, use.spares) != (use.requests, 0, 0):
                return (
                    f"{use.requests - use.served} of {use.requests} requests, and {use.elsewhere} beside them"
                )
            if use.high_water != arena.layout.arena:
                return f"{use.high_water} bytes of {arena.layout.arena} that were planned"
    return WORKS


def _laid_out(program: Program, device: str) -> Layout:
    recorder = Recorder(device)
    recorder.run(program)
    requests, length = tuple(requests_of(recorder.events)), len(recorder.events) + 1
    trace = Trace(requests, (), length, recorder.beside)
    return replace(lay_out(in_lines(trace, device)), device=device)
