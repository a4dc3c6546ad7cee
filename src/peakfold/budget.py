"""What a user may write as a budget, and what it comes to in bytes; what seeds may be."""

import math
import re
from dataclasses import dataclass, replace

from peakfold.errors import UsageError

UNITS: dict[str, int] = {
    "": 1,
    "b": 1,
    "kb": 10**3,
    "mb": 10**6,
    "gb": 10**9,
    "tb": 10**12,
    "kib": 2**10,
    "mib": 2**20,
    "gib": 2**30,
    "tib": 2**40,
}
ARENA = "arena:"
SEEDS = 2**63
FORMS = "bytes (4000000000), a size ('4GiB', '900 MB'), a share of the eager peak ('40%') or 'fit'"
WRITE = "write a size, such as 4GiB"
IN_ARENA = f"{FORMS}; 'arena:' before it for the arena alone"
_NUMBER = re.compile(r"\s*([+-]?(?:\d+\.?\d*|\.\d+)(?:e[+-]?\d+)?)\s*([a-z%]*)\s*", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class MemoryBudget:
    """A budget for the peak. Exactly one of ``nbytes``, ``share`` and ``fit`` is set.

    Attributes:
        text: as the user wrote it.
        nbytes: bytes.
        share: of the eager peak, 0.4 for 40 %.
        fit: what the device has free.
        arena: it is for the arena that the program runs in, and not for the caller's own tensors.
    """

    text: str
    nbytes: int | None = None
    share: float | None = None
    fit: bool = False
    arena: bool = False

    def resolve(self, eager_peak: int, free: int) -> int:
        """Return the budget in bytes, rounded down.

        Args:
            eager_peak: peak of the original, in bytes.
            free: what the device has free, in bytes.

        Example:
            >>> parse_memory("40%").resolve(1000, 0), parse_memory("fit").resolve(1000, 800)
            (400, 800)
        """
        if self.nbytes is not None:
            return self.nbytes
        return free if self.share is None else math.floor(self.share * eager_peak)


def parse_budget(given: str | float) -> MemoryBudget:
    """Read a memory budget, of the peak or of an arena.

    Raises:
        UsageError: it cannot be read, or is not more than nothing.

    Example:
        >>> parse_budget("arena:64MiB")
        MemoryBudget(text='arena:64MiB', nbytes=67108864, share=None, fit=False, arena=True)
    """
    text = str(given).strip()
    inner = text[len(ARENA) :] if text.lower().startswith(ARENA) else given
    try:
        return replace(parse_memory(inner), text=text, arena=inner is not given)
    except UsageError as error:
        error.expected, error.got = IN_ARENA, repr(given)
        raise


def parse_memory(given: str | float) -> MemoryBudget:
    """Read a memory budget of the peak.

    Raises:
        UsageError: it cannot be read, or is not more than nothing.

    Example:
        >>> parse_memory("4GiB").nbytes, parse_memory("40%").share, parse_memory(10).nbytes
        (4294967296, 0.4, 10)
    """
    text = str(given).strip()
    if isinstance(given, bool):
        raise _unreadable(repr(given))
    if text.lower() == "fit":
        return MemoryBudget(text, fit=True)
    match = _NUMBER.fullmatch(text)
    if match is None:
        raise _unreadable(repr(given))
    number, unit = float(match[1]), match[2].lower()
    if unit != "%" and unit not in UNITS:
        raise _unreadable(
            repr(given), f"unit {match[2]!r} is not one of B, kB, MB, GB, TB, KiB, MiB, GiB, TiB; {WRITE}"
        )
    if not math.isfinite(number):
        raise _unreadable(repr(given))
    if number <= 0:
        raise _too_small(text)
    if unit == "%":
        return MemoryBudget(text, share=number / 100)
    nbytes = int(number * UNITS[unit])
    if nbytes < 1:
        raise _too_small(text)
    return MemoryBudget(text, nbytes=nbytes)


def parse_latency(given: str | float) -> float:
    """Read a latency budget: a ratio to eager's time.

    Raises:
        UsageError: it is not a positive number.

    Example:
        >>> parse_latency(1.10), parse_latency("1.25x")
        (1.1, 1.25)
    """
    text = str(given).strip().lower().removesuffix("x")
    try:
        ratio = float(text)
    except ValueError:
        ratio = math.nan
    if isinstance(given, bool) or not math.isfinite(ratio) or ratio <= 0:
        raise UsageError(
            stage="options",
            what="the latency budget cannot be read",
            expected="a positive ratio to eager's time, e.g. 1.10 for at most 10 % slower",
            got=repr(given),
            hint="write a number such as 1.10, or leave it out",
        )
    return ratio


def require_seed(seed: int, stage: str = "options") -> None:
    """Refuse what no random stream begins with.

    Args:
        seed: what the caller gave.
        stage: of the error.

    Raises:
        UsageError: it is negative, or has more than 63 bits.

    Example:
        >>> require_seed(3)
        >>> require_seed(-3)
        Traceback (most recent call last):
        peakfold.errors.UsageError: options: the seed is out of range
          expected: 0 <= seed < 2**63
          got: -3
    """
    if not 0 <= seed < SEEDS:
        raise UsageError(
            stage=stage, what="the seed is out of range", expected="0 <= seed < 2**63", got=str(seed)
        )


def _unreadable(got: str, hint: str = WRITE) -> UsageError:
    return UsageError(
        stage="options", what="the memory budget cannot be read", expected=FORMS, got=got, hint=hint
    )


def _too_small(text: str) -> UsageError:
    return UsageError(
        stage="options",
        what="the memory budget must be more than nothing",
        expected=FORMS,
        got=repr(text),
        hint=WRITE,
    )


def even_ratios(first: int, last: int, count: int) -> list[int]:
    """Return so many bytes from one number to another in even ratios; the ends are exact.

    Args:
        first: the first one, positive.
        last: the last one, positive.
        count: how many, at least 1; of 1, the last alone.

    Example:
        >>> even_ratios(800, 100, 4)
        [800, 400, 200, 100]
    """
    low, high, steps = min(first, last), max(first, last), max(count - 1, 1)
    inner = (int(first * (last / first) ** (step / steps)) for step in range(1, steps))
    return [*(() if count == 1 else (first,)), *(min(max(low, one), high) for one in inner), last]
