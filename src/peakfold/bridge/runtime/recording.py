"""torch's profiler, as a recorder of allocations that writes nothing to the terminal."""

from torch.profiler import ProfilerActivity, profile

from peakfold.options import quiet_profiler


def recording() -> profile:
    """Return a profiler that records what is allocated and released on the CPU, and marks.

    Example:
        >>> import torch
        >>> with recording() as profiler:
        ...     _ = torch.empty(4)
        >>> [e.nbytes() for e in profiler.profiler.kineto_results.events() if e.name() == "[memory]"][0]
        16
    """
    quiet_profiler()
    return profile(activities=[ProfilerActivity.CPU], profile_memory=True)
