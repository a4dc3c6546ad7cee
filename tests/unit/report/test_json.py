import json
import math
import os
from dataclasses import replace
from pathlib import Path

import pytest
from tests.unit.report.synthetic import make_report

from peakfold.errors import CacheError
from peakfold.report.json import from_json, many_to_json, to_dict, to_json
from peakfold.report.model import Eager, Equality, Estimate, Texts

GOLDEN = Path(__file__).parents[2] / "golden" / "report"


def test_the_text_is_the_golden_one():
    text, file = to_json(make_report(layers=2)), GOLDEN / "report.json"
    if os.environ.get("PEAKFOLD_ACCEPT"):
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    assert text == file.read_text()


def test_what_is_written_is_read_back(report, bare, bad):
    for one in (report, bare, bad):
        assert from_json(to_json(one)) == replace(one, texts=Texts())


INTERFACE = {
    "eager": {"peak_bytes", "cpu_seconds", "measured"},
    "optimized": {
        "predicted_peak_bytes",
        "peak_bytes",
        "host_bytes",
        "cpu_seconds",
        "predicted_latency_ratio",
    },
    "equal": {"ok", "max_error", "bound", "batch"},
    "seconds": {"capture", "profile", "search", "codegen", "verify"},
    "search": {"stop_reason", "states"},
    "graph": {"nodes", "storages"},
}


@pytest.mark.parametrize("name", INTERFACE)
def test_the_field_names_are_an_interface(report, name):
    assert INTERFACE[name] <= set(to_dict(report)[name])


def test_derived_figures(report, bare):
    found, empty = to_dict(report), to_dict(bare)
    assert found["memory_ratio"] == report.optimized.peak_bytes / report.eager.peak_bytes
    assert found["latency_ratio"] == pytest.approx(0.0349 / 0.0321)
    assert sum(found["components"].values()) == report.timelines.after.peak_bytes
    assert [empty[name] for name in ("memory_ratio", "latency_ratio", "lower_bound_bytes")] == [None] * 3


def test_a_predicted_eager_has_no_latency_ratio(report):
    assert replace(report, eager=replace(report.eager, measured=False)).latency_ratio is None


def test_numbers_that_json_lacks_are_null(report):
    text = to_json(replace(report, equal=Equality(False, math.nan, math.inf)))
    assert json.loads(text)["equal"]["max_error"] is None
    assert json.loads(text)["equal"]["bound"] is None


def test_an_estimate_has_eager_and_components(report):
    estimate = Estimate("chain", "cpu", Eager(10), {"parameters": 4, "activations": 6}, peak_error=0.01)
    found = json.loads(to_json(estimate))
    assert found["eager"] == {"peak_bytes": 10, "cpu_seconds": None, "measured": False}
    assert found["components"] == {"parameters": 4, "activations": 6}


def test_several_reports_are_one_text(report, bare):
    found = json.loads(many_to_json([report, bare]))
    assert [one["target"] for one in found["reports"]] == ["chain", "chain"]


def broken(report, **changes):
    return json.dumps({**to_dict(report), **changes})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"format": 99},
            "it was written by another version\n  at: r.json\n  expected: format 1\n  got: format 99",
        ),
        ({"target": 3}, "report.target is wrong\n  at: r.json\n  expected: str\n  got: 3"),
        (
            {"eager": {"measured": 1}},
            "report.eager.measured is wrong\n  at: r.json\n  expected: bool\n  got: 1",
        ),
        ({"graph": []}, "report.graph is wrong\n  at: r.json\n  expected: GraphSize\n  got: []"),
        ({"limits": {"memory_bytes": 1.5}}, "report.limits.memory_bytes is wrong"),
        ({"notes": ["a", 2]}, "report.notes[1] is wrong\n  at: r.json\n  expected: str\n  got: 2"),
        ({"decisions": [{"action": "x", "what": "y"}]}, "report.decisions[0].when is missing"),
        ({"environment": {"cpu": 1}}, "report.environment.cpu is wrong"),
    ],
)
def test_each_wrong_field_is_named(bare, change, message):
    with pytest.raises(CacheError) as caught:
        from_json(broken(bare, **change), "r.json")
    assert message in str(caught.value)
    assert "run `peakfold optimize TARGET --out DIR` again" in str(caught.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "it is not JSON\n  at: r.json, line 1"),
        ("[]", "it is not a report\n  at: r.json"),
        ("", "it is not JSON"),
    ],
)
def test_what_is_no_report_is_refused(text, message):
    with pytest.raises(CacheError) as caught:
        from_json(text, "r.json")
    assert message in str(caught.value)


def test_a_block_outside_the_timeline_is_refused(report):
    found = to_dict(report)
    found["timelines"]["after"]["blocks"][0]["end"] = 10_000
    with pytest.raises(CacheError, match=r"report\.timelines\.after"):
        from_json(json.dumps(found))
