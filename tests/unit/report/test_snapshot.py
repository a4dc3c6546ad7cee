import pickle

from hypothesis import given
from tests.unit.report.test_model import timelines

from peakfold.report.model import Timeline
from peakfold.report.snapshot import snapshot_bytes, snapshot_of

EVENT = {"action", "addr", "size", "stream", "time_us", "frames"}


def replay(snapshot):
    """The most bytes at once; refuses overlaps and frees of what is not there."""
    live, now, peak = {}, 0, 0
    for event in snapshot["device_traces"][0]:
        begin, end = event["addr"], event["addr"] + event["size"]
        if event["action"] == "alloc":
            assert all(end <= a or begin >= b for a, b in live.items() if a != b)
            live[begin] = end
            now += event["size"]
        elif event["action"] == "free_completed":
            assert live.pop(begin) == end
            now -= event["size"]
        peak = max(peak, now)
    assert not live
    return peak


def test_the_events_reach_the_planned_peak(report):
    snapshot = pickle.loads(snapshot_bytes(report.timelines.after))
    assert replay(snapshot) == report.timelines.after.peak_bytes
    events = snapshot["device_traces"][0]
    assert all(set(event) == EVENT for event in events)
    assert [event["time_us"] for event in events] == sorted(event["time_us"] for event in events)
    segment = snapshot["segments"][0]
    assert segment["total_size"] == sum(block["size"] for block in segment["blocks"])
    assert all(0 <= e["addr"] - segment["address"] <= segment["total_size"] - e["size"] for e in events)


def test_frames_name_tensor_and_source(report):
    frames = [event["frames"] for event in snapshot_of(report.timelines.after)["device_traces"][0]]
    named = next(frame for frame in frames if frame and frame[0]["name"] == "layers.3.relu (activations)")
    assert (named[0]["filename"], named[0]["line"]) == ("model.py", 13)


@given(timelines())
def test_any_timeline_replays_to_its_peak(line):
    kept = Timeline(line.steps, line.seconds, tuple(b for b in line.blocks if b.nbytes and b.end > b.start))
    assert replay(snapshot_of(kept)) == kept.peak_bytes


def test_the_same_timeline_gives_the_same_bytes(report):
    assert snapshot_bytes(report.timelines.after) == snapshot_bytes(report.timelines.after)
