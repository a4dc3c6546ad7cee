"""Files are whole or as they were; links, pipes and folders are what they are."""

import errno
import os
from pathlib import Path

import pytest

from peakfold.files import is_stdout, place_of, replacing, write_whole


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_files_are_replaced(tmp_path):
    (tmp_path / "a").write_text("old")
    write_whole({tmp_path / "a": b"new", tmp_path / "b": b"more"})
    assert ((tmp_path / "a").read_text(), (tmp_path / "b").read_text()) == ("new", "more")
    assert names(tmp_path) == ["a", "b"]


@pytest.mark.parametrize("wrong", ["folder", "none/b", "circle"])
def test_one_that_cannot_be_written_leaves_all_as_they_were(wrong, tmp_path):
    (tmp_path / "a").write_text("old")
    (tmp_path / "folder").mkdir()
    (tmp_path / "circle").symlink_to("circle")
    with pytest.raises(OSError, match=r"Is a directory|No such file|Too many levels"):
        write_whole({tmp_path / "a": b"new", tmp_path / wrong: b"more"})
    assert (tmp_path / "a").read_text() == "old"
    assert names(tmp_path) == ["a", "circle", "folder"]


def fill(path):
    with replacing(path) as file:
        file.write(b"new")
        raise OSError(errno.ENOSPC, "full", str(path))


def test_what_fails_while_it_is_written_leaves_the_old_file(tmp_path):
    (tmp_path / "a").write_text("old")
    with pytest.raises(OSError, match="full"):
        fill(tmp_path / "a")
    assert (tmp_path / "a").read_text() == "old"
    assert names(tmp_path) == ["a"]


@pytest.mark.parametrize("there", [True, False])
def test_the_file_that_links_lead_to_is_replaced(there, tmp_path):
    target, link, second = tmp_path / "far" / "target", tmp_path / "link", tmp_path / "second"
    target.parent.mkdir()
    if there:
        target.write_text("old")
    link.symlink_to(target)
    second.symlink_to("link")
    write_whole({second: b"new"})
    assert (link.is_symlink(), second.is_symlink(), target.is_symlink()) == (True, True, False)
    assert target.read_text() == "new"
    assert names(tmp_path / "far") == ["target"]


@pytest.mark.parametrize("linked", [True, False])
def test_a_pipe_is_written_to(linked, tmp_path):
    pipe, link = tmp_path / "pipe", tmp_path / "link"
    os.mkfifo(pipe)
    link.symlink_to(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        write_whole({link if linked else pipe: b"figures"})
        assert os.read(reader, 100) == b"figures"
    finally:
        os.close(reader)
    assert pipe.is_fifo()
    assert link.is_symlink()


@pytest.mark.parametrize("path", [".", "", "/"])
def test_a_folder_is_no_place_for_a_file(path):
    with pytest.raises(IsADirectoryError) as caught:
        place_of(Path(path))
    assert caught.value.errno == errno.EISDIR


def test_the_standard_output_has_two_names(tmp_path):
    (tmp_path / "a").write_text("")
    assert is_stdout("-")
    assert is_stdout(Path("-"))
    assert not is_stdout(tmp_path / "a")
    assert not is_stdout(tmp_path / "none")
    assert not is_stdout("")
