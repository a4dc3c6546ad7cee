import pytest

from peakfold.bench.settings import WORKLOADS, Settings, is_checkpoint, read
from peakfold.errors import UsageError

PEERS = [
    "eager",
    "checkpoint-1",
    "selective",
    "accumulate-2",
    "accumulate-4",
    "accumulate-2+checkpoint-1",
    "compile-0.5",
]
KNOWN = ["bert", "unet"]


def options(workloads="bert", peers="", memory="50%", latency="1.1", time_budget=1.0, repeats=5, **more):
    return read(workloads, "tiny", peers, memory, latency, time_budget, repeats, KNOWN, **more)


@pytest.mark.parametrize(
    ("groups", "expected"),
    [
        ((), []),
        (("checkpoint",), ["checkpoint-1"]),
        (("checkpoint", "selective"), ["checkpoint-1", "selective"]),
        (("accumulate",), ["accumulate-2", "accumulate-4"]),
        (("both",), ["accumulate-2+checkpoint-1"]),
        (("accumulate-4", "compile"), ["accumulate-4", "compile-0.5"]),
    ],
)
def test_groups_and_names_of_peers(groups, expected):
    assert Settings(peers=groups).chosen(PEERS) == expected


def test_only_these_compute_again_without_splitting():
    assert [peer for peer in PEERS if is_checkpoint(peer)] == ["checkpoint-1", "selective"]


def test_lists_are_read():
    found = options("bert, unet,", "checkpoint,accumulate-4", "80%, 2GiB", "1.05,1.10x")
    assert found.workloads == ("bert", "unet")
    assert found.peers == ("checkpoint", "accumulate-4")
    assert found.memory == ("80%", "2GiB")
    assert found.latency == (1.05, 1.10)


def test_torch_compile_is_asked_for():
    assert options(peers="selective").peers == ("selective",)
    assert options(peers="selective", compiled=True).peers == ("selective", "compile")


def test_all_seven_when_none_is_named():
    assert read("", "cpu", "", "", "", 1, 1, WORKLOADS).workloads == WORKLOADS


def test_settings_travel_as_text():
    found = options("bert,unet", "checkpoint", "80%,60%", "1.05")
    assert Settings.from_json(found.to_json()) == found


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            {"workloads": "brt"},
            "options: unknown workload\n  expected: bert, unet\n  got: 'brt'\n  next: did you mean 'bert'?",
        ),
        (
            {"peers": "chekpoint"},
            "options: unknown peer\n  expected: checkpoint, selective, accumulate, both, compile, "
            "or a single one such as accumulate-4\n  got: 'chekpoint'\n  next: did you mean 'checkpoint'?",
        ),
        ({"memory": "50%,lots"}, "options: the memory budget cannot be read"),
        ({"latency": "fast"}, "options: the latency budget cannot be read"),
        (
            {"time_budget": -1.0},
            "options: the time budget is negative\n  expected: seconds >= 0\n  got: -1.0",
        ),
        ({"repeats": 0}, "options: the runs are too few\n  expected: --repeats 1 or more\n  got: 0"),
    ],
)
def test_what_cannot_be_read(given, message):
    with pytest.raises(UsageError) as error:
        options(**given)
    assert str(error.value).startswith(message)
