"""What the head of an emitted file says."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from peakfold.bridge.codegen.literals import bytes_text


@dataclass(frozen=True)
class Header:
    """Figures for the docstring of an emitted file; None is left out.

    Attributes:
        model: name of the model.
        budget_bytes: the budget that the program was made for.
        predicted_peak_bytes: most bytes at once, resident ones and workspace included.
        eager_peak_bytes: the same of the original.
        predicted_seconds: seconds of a step.
        versions: versions of what made it, by name.
    """

    model: str = ""
    budget_bytes: int | None = None
    predicted_peak_bytes: int | None = None
    eager_peak_bytes: int | None = None
    predicted_seconds: float | None = None
    versions: Mapping[str, str] = field(default_factory=dict)


def docstring(header: Header) -> str:
    """Return the docstring of an emitted file, quotes included.

    Example:
        >>> docstring(Header("UNet", predicted_peak_bytes=2_500_000)).splitlines()[2]
        'predicted peak  2.50 MB'
    """
    figures = [
        ("budget", _size(header.budget_bytes)),
        ("predicted peak", _size(header.predicted_peak_bytes)),
        ("peak of eager", _size(header.eager_peak_bytes)),
        ("predicted time", _seconds(header.predicted_seconds)),
        ("made with", ", ".join(f"{name} {version}" for name, version in header.versions.items())),
    ]
    rows = [f"{label:<15} {text}" for label, text in figures if text]
    title = f"One step of {_plain(header.model) or 'a model'}, emitted by peakfold."
    return "\n".join(['"""' + title, "", *rows, '"""'])


def _plain(text: str) -> str:
    return text.replace("\\", "/").replace('"', "'").replace("\n", " ")


def _size(count: int | None) -> str:
    return "" if count is None else bytes_text(count)


def _seconds(seconds: float | None) -> str:
    return "" if seconds is None else f"{seconds * 1e3:.1f} ms"
