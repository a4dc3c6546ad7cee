"""The Report as one self-contained HTML page: it loads nothing and works from a file."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from peakfold.report.arena_chart import Drawing, drawing_of
from peakfold.report.chart import STACK, Picture, picture_of
from peakfold.report.model import BlockKind, Decision, LiveTensor, Report
from peakfold.report.terminal import equal_word
from peakfold.report.units import bytes_text, error_text, ratio_text, seconds_text
from peakfold.report.words import Verdict, asked, first_decisions, verdicts

FIRST = 10


@dataclass(frozen=True)
class Share:
    """One kind's part of the peak, before and after; widths in percent of the larger peak."""

    kind: BlockKind
    before: str
    after: str
    before_width: float
    after_width: float


@dataclass(frozen=True)
class Page:
    """What the template needs for one report."""

    report: Report
    asked: str
    verdicts: tuple[Verdict, ...]
    equal: str
    picture: Picture
    drawing: Drawing | None
    shares: tuple[Share, ...]
    first: tuple[LiveTensor, ...]
    rest: tuple[LiveTensor, ...]
    decisions: tuple[Decision, ...]
    more: tuple[Decision, ...]


def render_html(reports: Report | Sequence[Report], title: str = "") -> str:
    """Return one HTML page with one report, or with several and a table of all of them.

    Args:
        reports: what to show.
        title: of the page; the target's name when empty.
    """
    shown = (reports,) if isinstance(reports, Report) else tuple(reports)
    pages = [_page(report) for report in shown]
    name = title or " and ".join(report.target for report in shown)
    return environment().get_template("report.html.j2").render(pages=pages, title=name)


@cache
def environment() -> Environment:
    """Return what fills in the templates of this room."""
    made = Environment(
        loader=PackageLoader("peakfold.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters["breaks"] = breaks
    made.filters["bytes"] = bytes_text
    made.filters["seconds"] = seconds_text
    made.filters["ratio"] = ratio_text
    made.filters["error"] = error_text
    return made


def breaks(name: str) -> Markup:
    """Return a dotted name that may be broken after its dots and underlines.

    Example:
        >>> str(breaks("layer.0.act_fn"))
        'layer.<wbr>0.<wbr>act_<wbr>fn'
    """
    return Markup(str(escape(name)).replace(".", ".<wbr>").replace("_", "_<wbr>"))


def _page(report: Report) -> Page:
    decisions = first_decisions(report.decisions, FIRST)
    return Page(
        report=report,
        asked=asked(report.limits),
        verdicts=verdicts(report),
        equal=equal_word(report),
        picture=picture_of(report),
        drawing=None if report.arena is None else drawing_of(report.arena),
        shares=_shares(report),
        first=report.live_at_peak[:FIRST],
        rest=report.live_at_peak[FIRST:],
        decisions=decisions,
        more=tuple(item for item in report.decisions if item not in decisions),
    )


def _shares(report: Report) -> tuple[Share, ...]:
    was, now = (
        dict(line.at_peak) if line else {} for line in (report.timelines.before, report.timelines.after)
    )
    most = max([*was.values(), *now.values()], default=1)
    return tuple(
        Share(
            kind,
            bytes_text(was.get(kind, 0)),
            bytes_text(now.get(kind, 0)),
            round(100 * was.get(kind, 0) / most, 1),
            round(100 * now.get(kind, 0) / most, 1),
        )
        for kind in STACK
        if kind in was or kind in now
    )
