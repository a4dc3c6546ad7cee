"""The compiled simulator against its plain twin, on random tapes."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from peakfold.cost.costs import Link
from peakfold.plan.schedule import kernel, plain
from peakfold.plan.schedule.kernel import (
    ARRIVE,
    COMMIT,
    COMPUTE,
    END,
    FREE,
    LOOP,
    OFFLOAD,
    PACK,
    PREFETCH,
    RELEASE,
    UNPACK,
)

STEPS, STORAGES = 6, 8
KINDS = (COMPUTE, COMPUTE, FREE, OFFLOAD, RELEASE, PREFETCH, ARRIVE, COMMIT, PACK, UNPACK, LOOP, END)


@st.composite
def tapes(draw):
    """Any rows, loops balanced: the kernel itself does not ask whether a schedule is legal."""
    rows, depth = [], 0
    for _ in range(draw(st.integers(0, 40))):
        kind = draw(st.sampled_from(KINDS))
        if kind == END and depth == 0:
            continue
        depth += (kind == LOOP) - (kind == END)
        size = STEPS if kind == COMPUTE else STORAGES
        index = draw(st.integers(1, 4)) if kind == LOOP else draw(st.integers(0, size - 1))
        rows.append((kind, index, draw(st.integers(0, 1000))))
    return rows + [(END, 0, draw(st.integers(0, 100))) for _ in range(depth)]


@st.composite
def machines(draw):
    def numbers(most):
        return draw(st.lists(st.integers(0, most), min_size=STEPS, max_size=STEPS))

    link = Link(draw(st.sampled_from([10.0, 333.0, 1e4])), draw(st.sampled_from([0.0, 0.7])), 77.0)
    return {
        "seconds": [n / 7 for n in numbers(50)],
        "workspace": numbers(500),
        "nbytes_of": draw(st.lists(st.integers(0, 2000), min_size=STORAGES, max_size=STORAGES)),
        "resident": draw(st.integers(0, 1000)),
        "link": link,
    }


@settings(max_examples=400, deadline=None)
@given(tapes(), machines())
def test_the_compiled_simulator_equals_its_twin(tape, machine):
    kind, index, amount = (list(column) for column in zip(*tape, strict=True)) if tape else ([], [], [])
    expected = plain.run(kind, index, amount, **machine)
    rows, link = len(tape), machine["link"]
    live, during = np.empty(rows, np.int64), np.empty(rows, np.int64)
    begin, end = np.empty(rows), np.empty(rows)
    found = kernel.run(
        np.array(kind, np.int32),
        np.array(index, np.int32),
        np.array(amount, np.int64),
        np.array(machine["seconds"]),
        np.array(machine["workspace"], np.int64),
        np.array(machine["nbytes_of"], np.int64),
        machine["resident"],
        link.bandwidth,
        link.latency,
        link.copy,
        live,
        during,
        begin,
        end,
    )
    totals = ("peak", "peak_row", "seconds", "busy", "out_busy", "in_busy", "host_peak")
    assert found == tuple(getattr(expected, name) for name in totals)
    columns = {"live": live, "during": during, "begin": begin, "end": end}
    for name, column in columns.items():
        assert column.tolist() == getattr(expected, name), name
