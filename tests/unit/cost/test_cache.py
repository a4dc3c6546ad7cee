import os
import resource
import signal
import sqlite3
import subprocess
import sys
import time

from peakfold.cost.cache import FORMAT, CostCache, Measurement

ONE = Measurement(1.5e-3, 4096)

WRITER = """
import sys
from pathlib import Path
from peakfold.cost.cache import CostCache, Measurement
costs = CostCache(Path(sys.argv[1]))
print("open", flush=True)
for batch in range(int(sys.argv[3])):
    costs.put({f"{sys.argv[2]} {batch} {i}": Measurement(batch + i / 7, i) for i in range(20)})
assert not costs.notices, costs.notices
"""


def writer(path, name, batches):
    command = [sys.executable, "-c", WRITER, str(path), name, str(batches)]
    return subprocess.Popen(command, stdout=subprocess.PIPE)


def test_what_is_put_is_found_by_the_next_process(tmp_path):
    CostCache(tmp_path / "new" / "costs").put({"a": ONE})
    costs = CostCache(tmp_path / "new" / "costs")
    assert costs.get_many(["a", "b"]) == {"a": ONE}
    assert costs.notices == []


def test_the_first_measurement_stays(tmp_path):
    first, second = CostCache(tmp_path / "costs"), CostCache(tmp_path / "costs")
    first.put({"a": ONE})
    second.put({"a": Measurement(9.0, 9), "b": Measurement(1.0, 1)})
    assert second.get("a") == ONE
    assert first.get("b") == Measurement(1.0, 1)


def test_two_processes_write_at_once(tmp_path):
    path = tmp_path / "costs"
    both = [writer(path, name, 40) for name in ("left", "right")]
    assert [process.wait() for process in both] == [0, 0]
    costs = CostCache(path)
    wanted = [f"{name} {batch} {i}" for name in ("left", "right") for batch in range(40) for i in range(20)]
    assert len(costs.get_many(wanted)) == 1600
    assert costs.get("right 39 14") == Measurement(41.0, 14)


def test_a_killed_writer_leaves_whole_batches(tmp_path):
    path = tmp_path / "costs"
    process = writer(path, "killed", 10**6)
    assert process.stdout.readline() == b"open\n"
    while not CostCache(path).get("killed 3 0"):
        time.sleep(0.01)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    costs = CostCache(path)
    assert costs.notices == []
    rows = sqlite3.connect(path).execute("SELECT key FROM cost").fetchall()
    assert len(rows) >= 80
    assert len(rows) % 20 == 0
    costs.put({"after": ONE})
    assert CostCache(path).get("after") == ONE


def test_a_file_that_is_no_cache_is_moved_aside(tmp_path):
    path = tmp_path / "costs"
    path.write_bytes(b"this is no database " * 100)
    costs = CostCache(path)
    costs.put({"a": ONE})
    (notice,) = costs.notices
    assert str(notice).splitlines() == [
        "cost cache: the file is not a cache of this format; it was moved aside and a new one begun",
        f"  at: {path}",
        f"  expected: a cost cache of format {FORMAT}",
        "  got: file is not a database",
        f"  next: costs are measured again; the old file is {path}.corrupt",
    ]
    assert (tmp_path / "costs.corrupt").read_bytes().startswith(b"this is no database")
    assert CostCache(path).get("a") == ONE


def test_damage_that_shows_only_when_read_is_moved_aside_too(tmp_path):
    path = tmp_path / "costs"
    costs = CostCache(path)
    costs.put({f"key {i:04}": Measurement(i, i) for i in range(3000)})
    costs.close()
    size = path.stat().st_size
    with path.open("r+b") as file:
        file.seek(4096)
        file.write(b"\xff" * (size - 4096))
    costs = CostCache(path)
    assert costs.get_many([f"key {i:04}" for i in range(3000)]) == {}
    costs.put({"a": ONE})
    assert [notice.got != "" for notice in costs.notices] == [True]
    assert CostCache(path).get("a") == ONE
    assert (tmp_path / "costs.corrupt").exists()


def test_an_older_file_is_moved_aside(tmp_path):
    path = tmp_path / "costs"
    with sqlite3.connect(path) as old:
        old.execute("CREATE TABLE ops (name TEXT)")
    costs = CostCache(path)
    assert costs.get("a") is None
    assert [notice.got for notice in costs.notices] == ["format 0"]
    assert (tmp_path / "costs.format-0").exists()


def test_a_newer_file_is_left_alone(tmp_path):
    path = tmp_path / "costs"
    with sqlite3.connect(path) as newer:
        newer.execute(f"PRAGMA user_version={FORMAT + 1}")
        newer.execute("CREATE TABLE cost (key TEXT)")
    costs = CostCache(path)
    costs.put({"a": ONE})
    assert costs.get("a") == ONE
    assert [notice.what for notice in costs.notices] == [
        "the file was written by a newer peakfold; costs are kept in memory for this run"
    ]
    assert sqlite3.connect(path).execute("PRAGMA user_version").fetchone() == (FORMAT + 1,)


def test_a_directory_that_cannot_be_made_is_done_without(tmp_path):
    (tmp_path / "file").write_text("")
    costs = CostCache(tmp_path / "file" / "costs")
    costs.put({"a": ONE})
    assert costs.get("a") == ONE
    assert [notice.what for notice in costs.notices] == [
        "the file cannot be opened; costs are kept in memory for this run"
    ]


def test_a_full_disk_is_done_without(tmp_path):
    costs = CostCache(tmp_path / "costs")
    costs.put({"before": ONE})
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (40_000, limits[1]))
    try:
        costs.put({f"key {i}": Measurement(i, i) for i in range(5000)})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, handler)
    assert costs.get("key 4999") == Measurement(4999, 4999)
    assert [notice.what for notice in costs.notices] == [
        "the file cannot be written; costs are kept in memory for this run"
    ]
    assert CostCache(tmp_path / "costs").get_many(["before", "key 0"]) == {"before": ONE}
