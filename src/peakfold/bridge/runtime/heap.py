"""Keep the C library from giving pages back to the system while seconds are measured.

glibc returns the top of its heap whenever that much is free, and maps large blocks afresh each time.
What is returned must be faulted in again, page by page, and how much that is depends on where blocks
happen to lie: one and the same step was seen to take from none to 90,000 faults, up to a third of its
time, from run to run. No plan decides that, and no forecast can know it. A heap that keeps its pages, as
jemalloc and tcmalloc do, makes a step repeat within a per cent, and takes nothing from any variant.
"""

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

TRIM_THRESHOLD, MMAP_THRESHOLD, MMAP_MAX = -1, -3, -4
"""What ``mallopt`` calls its parameters."""
NEVER = -1
USUAL = {MMAP_MAX: 65536, MMAP_THRESHOLD: 32 << 20, TRIM_THRESHOLD: 64 << 20}
"""glibc's own, as its thresholds stand once a tensor of 32 MB was freed."""


@contextmanager
def kept() -> Iterator[None]:
    """Keep freed pages meanwhile, and give them back afterwards; without glibc nothing is done."""
    library = _glibc()
    if library is None:
        yield
        return
    library.mallopt(MMAP_MAX, 0)
    library.mallopt(TRIM_THRESHOLD, NEVER)
    try:
        yield
    finally:
        for parameter, value in USUAL.items():
            library.mallopt(parameter, value)
        library.malloc_trim(0)


@cache
def _glibc() -> ctypes.CDLL | None:
    try:
        library = ctypes.CDLL(None)
    except (OSError, TypeError):
        return None
    return library if hasattr(library, "gnu_get_libc_version") else None
