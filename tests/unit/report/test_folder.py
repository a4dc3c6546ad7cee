import errno
import os
import pickle
from pathlib import Path

import pytest

from peakfold.errors import CacheError, UsageError
from peakfold.report.folder import read_folder, write_files, write_folder

NAMES = ["graph.txt", "memory_snapshot.pickle", "plan.txt", "report.html", "report.json", "step.py"]


def test_what_is_written_is_read_back(report, tmp_path):
    write_folder(report, tmp_path / "deep" / "out")
    assert sorted(path.name for path in (tmp_path / "deep" / "out").iterdir()) == NAMES
    assert read_folder(tmp_path / "deep" / "out") == report


def test_other_files_are_left_alone(report, bare, tmp_path):
    (tmp_path / "mine.txt").write_text("mine")
    write_folder(report, tmp_path)
    write_folder(bare, tmp_path)
    assert (tmp_path / "mine.txt").read_text() == "mine"
    assert read_folder(tmp_path) == bare


def test_the_snapshot_of_nothing_is_a_snapshot(bare, tmp_path):
    write_folder(bare, tmp_path)
    assert pickle.loads((tmp_path / "memory_snapshot.pickle").read_bytes())["device_traces"]


@pytest.mark.parametrize("at", range(len(NAMES)))
def test_a_full_disk_changes_nothing(at, report, bare, tmp_path, monkeypatch):
    write_folder(report, tmp_path)
    left = iter([True] * at)

    def full(descriptor):
        if not next(left, False):
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(CacheError) as caught:
        write_folder(bare, tmp_path)
    assert "the results cannot be written" in str(caught.value)
    assert "got: No space left on device" in str(caught.value)
    assert sorted(path.name for path in tmp_path.iterdir()) == NAMES
    assert read_folder(tmp_path) == report


@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "No space left on device"), KeyboardInterrupt()])
@pytest.mark.parametrize("at", [0, 3])
@pytest.mark.parametrize("there", [False, True])
def test_a_fault_leaves_no_folder_that_was_not_there(at, there, error, report, tmp_path, monkeypatch):
    if there:
        (tmp_path / "deep").mkdir()
    left = iter([True] * at)

    def full(descriptor):
        if not next(left, False):
            raise error

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises((CacheError, KeyboardInterrupt)):
        write_folder(report, tmp_path / "deep" / "out")
    assert list(tmp_path.rglob("*")) == ([tmp_path / "deep"] if there else [])


def test_a_file_in_the_way_is_named(tmp_path):
    (tmp_path / "out").write_text("a file")
    with pytest.raises(CacheError, match="the results cannot be written"):
        write_files(tmp_path / "out", {"a": b""})


@pytest.mark.parametrize("name", ["plan.txt", "step.py", "graph.txt"])
def test_a_missing_file_is_named(report, tmp_path, name):
    write_folder(report, tmp_path)
    (tmp_path / name).unlink()
    with pytest.raises(CacheError) as caught:
        read_folder(tmp_path)
    assert f"a file is missing\n  at: {tmp_path / name}" in str(caught.value)


def test_a_binary_plan_is_refused(report, tmp_path):
    write_folder(report, tmp_path)
    (tmp_path / "plan.txt").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(CacheError, match="a file cannot be read"):
        read_folder(tmp_path)


def test_no_folder_and_no_report(tmp_path):
    with pytest.raises(UsageError, match="there is no such folder"):
        read_folder(tmp_path / "none")
    with pytest.raises(UsageError, match="the folder holds no report"):
        read_folder(tmp_path)


def test_a_pipe_is_written_to_and_stays_one(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        write_files(tmp_path, {"pipe": b"figures"})
        assert os.read(reader, 100) == b"figures"
    finally:
        os.close(reader)
    assert pipe.is_fifo()
    assert [path.name for path in tmp_path.iterdir()] == ["pipe"]


@pytest.mark.skipif(not Path("/dev/full").is_char_device(), reason="there is no /dev/full")
def test_a_full_device_is_said():
    with pytest.raises(CacheError) as caught:
        write_files(Path("/dev"), {"full": b"figures"})
    assert caught.value.got == "No space left on device"
