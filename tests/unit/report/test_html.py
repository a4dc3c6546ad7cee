import json
import re
import shutil
import subprocess
from html import unescape
from html.parser import HTMLParser
from pathlib import Path

import pytest

import peakfold.report
from peakfold.report.html import render_html

VOID = {"wbr", "meta", "br", "hr", "img", "input", "link"}
CSS = (Path(peakfold.report.__file__).parent / "templates" / "report.css").read_text()
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
]


class Balance(HTMLParser):
    """Checks that every tag is closed, and keeps ids and attributes."""

    def __init__(self):
        super().__init__()
        self.open, self.ids, self.links, self.paths = [], [], [], 0

    def handle_starttag(self, tag, attrs):
        given = dict(attrs)
        self.ids += [given["id"]] if "id" in given else []
        self.links += [given[name] for name in ("href", "src", "action", "poster", "srcset") if name in given]
        self.paths += tag == "path" and "data-kind" in given
        if tag not in VOID and tag != "path":
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert tag == "path" or self.open.pop() == tag


def parsed(page):
    balance = Balance()
    balance.feed(page)
    assert balance.open == []
    return balance


@pytest.mark.parametrize("name", ["report", "bare", "bad"])
def test_every_tag_is_closed_and_ids_are_unique(name, request):
    found = parsed(render_html(request.getfixturevalue(name)))
    assert len(found.ids) == len(set(found.ids))


def test_nothing_is_loaded(report, bad):
    page = render_html([report, bad])
    assert parsed(page).links == ["#report-1", "#report-2"]
    assert not re.search(r"https?:|//[a-z]|url\(|@import", page)
    assert "default-src 'none'" in page


def test_each_kind_of_both_timelines_is_an_area(report):
    kinds = len(report.timelines.before.series) + len(report.timelines.after.series)
    assert parsed(render_html(report)).paths == kinds


def test_texts_of_users_are_escaped(report):
    page = render_html(report)
    assert "&lt;no&gt; effort &amp; nothing else" in page
    assert "<no>" not in page
    assert "a <fast> one" not in page


def test_plan_and_source_are_there(report, bad):
    page = render_html(report)
    assert "def step(tensors, scalars):" in page
    assert "update each parameter early" in page
    assert "The emitted program" not in render_html(bad)


def test_the_same_report_gives_the_same_page(report):
    assert render_html(report) == render_html(report)


def luminance(colour):
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one, other):
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_contrasts_hold_in_both_schemes(scheme):
    light, dark = (dict(re.findall(r"--([a-z-]+): (#[0-9a-f]{6})", part)) for part in CSS.split("@media")[:2])
    colours = light if scheme == "light" else {**light, **dark}
    for ink in ("ink", "soft", "good", "bad", "open", "link"):
        for ground in ("page", "card", "code"):
            assert contrast(colours[ink], colours[ground]) >= 4.5, (ink, ground)
    for kind in (
        "parameters",
        "buffers",
        "optimizer-state",
        "batch",
        "gradients",
        "activations",
        "workspace",
    ):
        assert contrast(colours[kind], colours["card"]) >= 3, kind


PROBE = """
<script>addEventListener("load", () => {
  const wide = [...document.querySelectorAll("body *")].filter(
    (item) => item.getBoundingClientRect().right > innerWidth + 0.5 && !item.closest("pre, svg, thead"));
  const plot = document.querySelector(".plot"), box = plot.getBoundingClientRect();
  plot.dispatchEvent(new PointerEvent("pointermove", { clientX: box.left + 1, clientY: box.top + 9 }));
  parent.postMessage(JSON.stringify({
    width: innerWidth,
    scroll: document.documentElement.scrollWidth,
    wide: wide.map((item) => item.outerHTML.slice(0, 99)),
    dark: matchMedia("(prefers-color-scheme: dark)").matches,
    background: getComputedStyle(document.body).backgroundColor,
    readout: document.querySelector(".readout").textContent }), "*");
});</script>
"""
FRAME = """<!doctype html><title>frame</title><iframe src="page.html" width="{width}" height="800"
  style="border: 0"></iframe><pre id="found"></pre>
<script>addEventListener("message", (event) => {{
  document.getElementById("found").textContent = "found:" + event.data + ":end"; }});</script>
"""


@pytest.fixture(scope="module")
def browse(tmp_path_factory):
    if CHROMIUM is None:
        pytest.skip("no Chromium on this machine: the page is not looked at in a browser")

    def look(page, width, dark):
        folder = tmp_path_factory.mktemp("page")
        (folder / "page.html").write_text(page.replace("</body>", PROBE + "</body>"))
        (folder / "frame.html").write_text(FRAME.format(width=width))
        scheme = f"--blink-settings=preferredColorScheme={0 if dark else 1}"
        place = [f"--user-data-dir={folder / 'profile'}", "--window-size=1300,900", scheme]
        command = [CHROMIUM, *FLAGS, *place, "--dump-dom", (folder / "frame.html").as_uri()]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
        found = re.search("found:(.*?):end", unescape(done.stdout))
        assert found, done.stdout[:500]
        return json.loads(found[1])

    return look


@pytest.mark.parametrize(("width", "dark"), [(360, False), (360, True), (1100, False), (1100, True)])
def test_a_browser_shows_it_without_overflow(browse, report, bad, width, dark):
    found = browse(render_html([report, bad]), width, dark)
    assert found["width"] == width
    assert found["scroll"] <= width
    assert found["wide"] == []
    assert found["dark"] == dark
    assert found["background"] == ("rgb(16, 19, 23)" if dark else "rgb(246, 247, 249)")
    assert found["readout"].startswith("layers.0.mm at 0.0 us: ")
