"""Files of saved searches that are not there or make no sense, and options that need another."""

import pytest

from peakfold.errors import CacheError, UsageError
from peakfold.ir.graph import Graph
from peakfold.pipeline.request import request
from peakfold.pipeline.searches import Searches, side_by_side


def test_a_file_that_is_not_there_is_named(tmp_path):
    missing = str(tmp_path / "none.json")
    with pytest.raises(UsageError, match="cannot be read") as caught:
        Searches(missing, None, Graph((), (), ()), "key").load()
    assert caught.value.where == missing


def test_nothing_is_read_where_nothing_was_named():
    assert Searches(None, None, Graph((), (), ()), "key").load() is None


@pytest.mark.parametrize("name", ["", "file/search.json"])
def test_a_search_that_cannot_be_saved_does_not_begin(name, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(CacheError, match="the results cannot be written"):
        Searches(None, str(tmp_path / name), Graph((), (), ()), "key").load()
    assert Searches(None, str(tmp_path / "search.json"), Graph((), (), ()), "key").load() is None
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


@pytest.mark.parametrize("name", ["resume", "save_search"])
def test_only_searches_with_regions_are_saved(name):
    with pytest.raises(UsageError, match="--fission"):
        request(None, None, 1, None, 0, "eager", True, **{name: "file"})


@pytest.mark.parametrize("name", ["resume", "save_search"])
def test_a_search_is_no_stream(name):
    def asked(file):
        return request(None, None, 1, None, 0, "eager", True, fission=True, **{name: file})

    at = f"--{name.replace('_', '-')}"
    with pytest.raises(UsageError, match=f"a search is saved to and read from a file, .*\n  at: {at}"):
        asked("-")
    assert getattr(asked("./-"), name) == "./-"


def test_operators_are_measured_by_one_process_alone():
    assert side_by_side(simulated=False) == 1
