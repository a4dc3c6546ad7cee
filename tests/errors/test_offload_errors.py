"""What is said where values cannot wait on the host."""

import errno
import os

import pytest
from tests.torch.test_plans import transformer

from peakfold.bridge.runtime.link_speed import link_speed
from peakfold.cost.cache import CostCache
from peakfold.cost.costs import Link
from peakfold.errors import CacheError, InfeasibleError, UsageError
from peakfold.pipeline import host
from peakfold.pipeline.optimize import optimize
from peakfold.pipeline.request import request
from peakfold.pipeline.task import Task


def asked(**more):
    return request("70%", None, 5.0, 500, 0, "eager", False, **more)


def task():
    target = transformer()
    return Task(target.model, target.loss_fn, target.optimizer, target.batch)


OFFLOADED = """peakfold plan 1
offload blocks.* after use back before backward
"""


def test_a_place_that_is_not_there(tmp_path):
    with pytest.raises(UsageError) as caught:
        optimize(task(), asked(offload=str(tmp_path / "none")))
    assert str(caught.value) == (
        "options: there is no such place to offload to\n"
        f"  at: {tmp_path / 'none'}\n"
        "  expected: none, host, or a folder that exists\n"
        "  next: make the folder first"
    )


def test_files_for_a_cuda_device(tmp_path):
    with pytest.raises(UsageError, match="a CUDA device cannot offload to files"):
        host.folder(asked(offload=str(tmp_path), device="cuda"))


@pytest.mark.parametrize("given", ["20%", "fit"])
def test_a_share_of_the_host(given):
    with pytest.raises(UsageError) as caught:
        asked(offload="host", host_memory=given)
    assert str(caught.value) == (
        "options: the limit of the host's memory cannot be a share\n"
        "  expected: bytes, or a size such as 64GiB\n"
        f"  got: '{given}'\n"
        "  next: to leave everything on the device, --offload none"
    )


@pytest.mark.parametrize(("offload", "device"), [(None, "cpu"), ("none", "cpu"), ("none", "sim:rtx3090")])
def test_a_limit_of_the_host_where_nothing_may_wait_there(offload, device):
    with pytest.raises(UsageError) as caught:
        asked(offload=offload, host_memory="1GiB", device=device)
    assert str(caught.value) == (
        "options: the host's memory is limited, and nothing may wait there\n"
        "  expected: --offload host, or a folder, beside --host-memory on a CPU\n"
        f"  got: --host-memory 1GiB with --offload {offload or 'left out: none, on a CPU'}\n"
        "  next: add --offload host, or leave out --host-memory"
    )


def test_a_limit_of_the_host_where_values_may_wait():
    for more in ({"offload": "host"}, {"device": "cuda"}, {"device": "sim:rtx3090"}, {"plan": OFFLOADED}):
        assert asked(host_memory="1GiB", **more).host_memory == 1 << 30


@pytest.mark.parametrize("failing", ["posix_fallocate", "pwrite"])
def test_a_full_disk_is_named_where_copies_to_it_are_measured(failing, tmp_path, monkeypatch):
    def full(*args):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, failing, full)
    with pytest.raises(CacheError) as caught:
        link_speed(CostCache(None), "cpu", tmp_path, Link())
    assert str(caught.value) == (
        "profile: how fast values are copied to where they are to wait cannot be measured\n"
        f"  at: {tmp_path}\n"
        "  expected: room for 32 MiB\n"
        "  got: No space left on device\n"
        "  next: make room, or offload elsewhere (--offload PATH, host) or not at all (none)"
    )


@pytest.mark.parametrize(
    ("given", "what"),
    [
        ("0", "the limit of the host's memory must be more than nothing"),
        ("-5", "the limit of the host's memory must be more than nothing"),
        ("much", "the limit of the host's memory cannot be read"),
    ],
)
def test_limits_of_the_host_that_are_none(given, what):
    with pytest.raises(UsageError) as caught:
        asked(offload="host", host_memory=given)
    assert str(caught.value) == (
        f"options: {what}\n"
        "  expected: bytes, or a size such as 64GiB\n"
        f"  got: '{given}'\n"
        "  next: write a size, such as 4GiB; to leave everything on the device, --offload none"
    )


def test_a_plan_that_needs_more_than_the_host_has():
    with pytest.raises(InfeasibleError) as caught:
        optimize(task(), asked(plan=OFFLOADED, host_memory=1000))
    lines = str(caught.value).splitlines()
    assert lines[0] == "plan: the host is too small for what the plan offloads"
    assert lines[1] == "  at: memory of the host"
    assert lines[2] == "  expected: at most 1.0 kB there"
    assert lines[3].startswith("  got: ")
    assert lines[4].startswith("  next: offload less, to a folder with space")


def test_a_search_keeps_to_the_host_that_there_is():
    for most in (1 << 14, 1 << 15):
        found = optimize(task(), asked(offload="host", host_memory=most, device="sim:rtx3090"))
        assert found.report.optimized.host_bytes <= most


@pytest.mark.parametrize(
    ("device", "offload", "answer"),
    [
        ("cpu", None, False),
        ("cpu", "host", True),
        ("sim:rtx3090", None, True),
        ("sim:rtx3090", "none", False),
    ],
)
def test_where_offloading_is_on(device, offload, answer):
    assert host.is_offloading(asked(device=device, offload=offload)) is answer
