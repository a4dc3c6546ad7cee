"""Random operators that run again: the same numbers, and the stream where eager leaves it.

First runs stand in program order and draw from torch's own generator. The generator is copied before
the first draw of a node that runs again; a later run draws from that copy. A copy of a generator is no
tensor and takes no device memory. An operator that cannot be told its generator draws from torch's own,
set to the copy's state for as long; that moves the state through a tensor of some kilobytes.
"""

from collections.abc import Iterator

from peakfold.bridge.codegen.names import Namer
from peakfold.bridge.codegen.operators import takes_generator
from peakfold.bridge.codegen.writer import INDENT
from peakfold.ir.graph import Graph, Node
from peakfold.ir.plan import Compute, Run, Schedule

REDRAW = (
    "",
    "",
    "def redraw(rng, before, operator, *args, **kwargs):",
    '    """Run an operator on the numbers that it drew at first, and leave the stream as it is."""',
    "    now = rng.clone_state()",
    "    rng.set_state(before.get_state())",
    "    try:",
    "        return operator(*args, **kwargs)",
    "    finally:",
    "        rng.set_state(now.get_state())",
)
"""Lines of the function that an emitted file defines where a random operator runs again."""


class Streams:
    """Which random nodes of a schedule run again, and the text that makes them draw the same.

    Attributes:
        repeats: last run of each random node that runs more than once, by node id.
    """

    def __init__(self, graph: Graph, schedule: Schedule, namer: Namer) -> None:
        runs = [step.run for step in schedule.steps if isinstance(step, Compute)]
        self.repeats = {run.node: run.k for run in runs if run.k and graph.node[run.node].op.random}
        self._graph = graph
        self._states = {node: namer.stream(graph.node[node]) for node in self.repeats}

    @property
    def needs_redraw(self) -> bool:
        """Whether some node that runs again cannot be told its generator."""
        return any(not takes_generator(self._graph.node[node].op.name) for node in self.repeats)

    def prologue(self) -> Iterator[str]:
        """Yield a line for each generator that is drawn from again."""
        nodes = [self._graph.node[node] for node in self.repeats]
        for device in sorted({_device(node) for node in nodes}):
            yield f"{INDENT}{_generator(device)} = {_torch_generator(device)}"

    def before(self, run: Run) -> Iterator[str]:
        """Yield the line that copies the generator before the first draw of a node that runs again."""
        if run.k == 0 and run.node in self.repeats:
            generator = _generator(_device(self._graph.node[run.node]))
            yield f"{INDENT}{self._states[run.node]} = {generator}.clone_state()"

    def call(self, run: Run, function: str, arguments: list[str]) -> tuple[str, list[str]]:
        """Return the function and the arguments with which a run is called."""
        if run.k == 0 or run.node not in self.repeats:
            return function, arguments
        state = self._states[run.node]
        if takes_generator(self._graph.node[run.node].op.name):
            copy = state if run.k == self.repeats[run.node] else f"{state}.clone_state()"
            kept = [argument for argument in arguments if not argument.startswith("generator=")]
            return function, [*kept, f"generator={copy}"]
        generator = _generator(_device(self._graph.node[run.node]))
        return "redraw", [generator, state, function, *arguments]

    def after(self, run: Run) -> Iterator[str]:
        """Yield the line that drops the copy after the last run."""
        if run.k and self.repeats.get(run.node) == run.k:
            yield f"{INDENT}del {self._states[run.node]}"


def _device(node: Node) -> str:
    return next((kind.device for kind in node.types if hasattr(kind, "device")), "cpu")


def _generator(device: str) -> str:
    return "rng" if device == "cpu" else f"rng_{device.replace(':', '_')}"


def _torch_generator(device: str) -> str:
    if device == "cpu":
        return "torch.default_generator"
    return f"torch.cuda.default_generators[{device.partition(':')[2] or 0}]"
