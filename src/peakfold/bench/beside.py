"""The simple peers of a workload, run once each: gradients of chunks summed, blocks in checkpoints, both."""

import time
from collections.abc import Sequence

from peakfold.bench.observe import Call, Observed, is_equal, message, observe
from peakfold.bench.peers import Peer, catalog
from peakfold.bench.rows import EAGER
from peakfold.bench.settings import Settings
from peakfold.bridge.runtime.compare import Role
from peakfold.pipeline.batch import rows_of
from peakfold.pipeline.peers import Peers, Seen
from peakfold.pipeline.task import Task
from peakfold.report.progress import Progress
from peakfold.workloads import Target, block_classes

BUFFERS: tuple[Role, ...] = ("buffer",)
SIMPLE = Settings(peers=("accumulate", "checkpoint", "both"))


def simple_peers(workload: str, seed: int = 0) -> Peers:
    """Return what runs eager and the simple peers of a workload.

    Args:
        workload: its name, which says the blocks that users wrap.
        seed: of the random stream.
    """

    def run(task: Task, progress: Progress) -> Sequence[Seen]:
        known = catalog(block_classes(workload), rows_of(task.batch))
        names = [EAGER, *SIMPLE.chosen(known)]
        found: list[Seen] = []
        original: Observed | None = None
        for count, name in enumerate(names):
            progress("verify", count / len(names), f"peer {name}")
            seen, own = _seen(name, known[name], task, seed, original)
            original = original or own
            found.append(seen)
        return found

    return run


def as_call(peer: Peer, task: Task) -> Call:
    """Return a step of a peer on the objects of a task."""
    assert task.loss_fn is not None
    assert isinstance(task.batch, tuple)
    return peer(Target(task.model, task.loss_fn, task.optimizer, task.batch))


def _seen(
    name: str, peer: Peer, task: Task, seed: int, original: Observed | None
) -> tuple[Seen, Observed | None]:
    """Run a peer: a step that is timed and compared, and one whose bytes are counted."""
    taken: list[float] = []

    def make(mine: Task) -> Call:
        call = as_call(peer, mine)

        def clocked() -> object:
            begin = time.process_time()
            result = call()
            taken.append(time.process_time() - begin)
            return result

        return clocked

    try:
        seen, difference = observe(make, task, seed, original, ignored=BUFFERS, steps=1)
    except Exception as error:
        return Seen(name, None, error=message(error)), None
    return Seen(name, seen.call, seen.peak_bytes, taken[0], is_equal(difference)), seen
