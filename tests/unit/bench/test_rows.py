import json
import math

import pytest

from peakfold.bench.rows import Results, Row, from_json, to_json
from peakfold.errors import CacheError

ROWS = (
    Row("bert", "eager", peak_bytes=10, cpu_seconds=0.5, memory_ratio=1.0, latency_ratio=1.0),
    Row("bert", "compile-0.5", error='BackendCompilerFailed: "stride"\nsecond line'),
    Row("bert", "peakfold", "memory 50%", equal=False, max_error=math.inf),
)


def test_results_are_read_back():
    results = Results(ROWS, {"torch": "2.13.0"}, {"size": "cpu", "memory": ["50%"]}, complete=False)
    assert from_json(to_json(results)) == results


def test_no_rows():
    assert from_json(to_json(Results(()))).rows == ()


def test_the_fields_of_a_row_are_an_interface():
    (row,) = json.loads(to_json(Results(ROWS[:1])))["rows"]
    assert list(row) == [
        "workload",
        "variant",
        "constraint",
        "peak_bytes",
        "cpu_seconds",
        "memory_ratio",
        "latency_ratio",
        "predicted_peak_bytes",
        "predicted_latency_ratio",
        "uncorrected_latency_ratio",
        "lower_bound_bytes",
        "search_seconds",
        "equal",
        "max_error",
        "error",
        "allocator",
    ]


def test_json_without_numbers_that_json_lacks():
    assert "Infinity" not in to_json(Results(ROWS))


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"format": 1, "rows": 3}', '{"format": 1, "rows": [1]}'])
def test_other_text(text):
    with pytest.raises(CacheError, match="the results cannot be read"):
        from_json(text, "bench.json")


def test_another_version():
    text = to_json(Results(ROWS)).replace('"format": 1', '"format": 99')
    with pytest.raises(CacheError) as error:
        from_json(text, "bench.json")
    assert str(error.value) == (
        "bench: the results cannot be read\n  at: bench.json\n  expected: format 1\n  got: format 99"
    )
