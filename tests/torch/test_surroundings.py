"""What code reads of the process and of the standard library is guarded, or refused by its line."""

import dataclasses
import datetime
import importlib
import inspect
import logging
import math
import operator
import os
import secrets
import statistics
import sys
import time
import types

import pytest
import torch
from torch import nn

from peakfold.bridge.capture import capture_inference, capture_step
from peakfold.errors import CaptureError

LOADED = "peakfold_test_of_surroundings"


@dataclasses.dataclass
class Held:
    scale: float = 1.0
    other: float = 3.0


HELD = Held()


class Reading(nn.Module):
    def __init__(self, read):
        super().__init__()
        self.fc, self.read, self.held = nn.Linear(4, 4), read, HELD

    def forward(self, x):
        return self.read(self, self.fc(x))


def squared(model, x):
    return model(x).square().mean()


def numbers(values):
    return sum(value for value in values if isinstance(value, float))


def by_vars(model, x):
    return x * numbers(vars(model.held).values())


def by_dict(model, x):
    return x * numbers(value for name, value in model.held.__dict__.items())


def by_dir(model, x):
    return x * sum(getattr(model.held, name) for name in dir(model.held) if name[0] != "_")


def by_fields(model, x):
    return x * numbers(dataclasses.astuple(model.held))


def by_members(model, x):
    return x * numbers(value for _, value in inspect.getmembers(model.held))


def of_the_model(model, x):
    return x * numbers(vars(model).values())


def by_globals(model, x):
    return x * (1.0 + numbers(value for name, value in list(globals().items()) if name.startswith("SCALE_")))


def by_sys(model, x):
    return x * sys.modules[LOADED].scale


def by_sys_or_none(model, x):
    return x * getattr(sys.modules.get("peakfold_test_of_surroundings"), "scale", 3.0)


def whether_loaded(model, x):
    return x * (2.0 if "peakfold_test_of_more" in sys.modules else 1.0)


def by_import(model, x):
    return x * importlib.import_module("peakfold_test_of_surroundings").scale


ATTRIBUTES = {
    by_vars: (HELD, "scale"),
    by_dict: (HELD, "scale"),
    by_dir: (HELD, "scale"),
    by_fields: (HELD, "scale"),
    by_members: (HELD, "scale"),
    "new by vars": (HELD, "fresh"),
    "new by dict": (HELD, "fresh"),
    "new by dir": (HELD, "fresh"),
    of_the_model: (None, "fresh"),
    by_globals: (sys.modules[__name__], "SCALE_FRESH"),
    by_sys: (LOADED, "scale"),
    by_sys_or_none: (LOADED, "scale"),
    by_import: (LOADED, "scale"),
    "a function of math": (lambda model, x: x * math.sqrt(4.0), (math, "sqrt")),
    "a number of math": (lambda model, x: x * math.pi, (math, "pi")),
    "a function of operator": (lambda model, x: operator.mul(x, 2.0), (operator, "mul")),
    "a function of Python": (lambda model, x: x * statistics.fmean([1.0, 2.0]), (statistics, "fmean")),
    "a function of a module of a module": (
        lambda model, x: x * len(os.path.join("a", "b")),
        (os.path, "join"),
    ),
    "arguments": (lambda model, x: x * len(sys.argv), (sys, "argv")),
}
BY_NAME = {"new by vars": by_vars, "new by dict": by_dict, "new by dir": by_dir}


@pytest.mark.parametrize("case", ATTRIBUTES, ids=lambda case: getattr(case, "__name__", case))
def test_names_that_are_read_by_loops_and_of_modules(case, monkeypatch):
    loaded = types.ModuleType(LOADED)
    loaded.scale = 1.0
    monkeypatch.setitem(sys.modules, LOADED, loaded)
    read, (where, name) = (BY_NAME.get(case, case), ATTRIBUTES[case])
    if not callable(read):
        read, (where, name) = ATTRIBUTES[case]
    model, batch = Reading(read), (torch.ones(3, 4),)
    where = model if where is None else loaded if where == LOADED else where
    guards = capture_step(model, squared, None, batch).guards
    assert guards.check(model, None, batch) is None
    with monkeypatch.context() as patch:
        value = 2.0 if name in ("scale", "fresh", "SCALE_FRESH", "pi") else [] if name == "argv" else max
        patch.setattr(where, name, value, raising=False)
        assert name in guards.check(model, None, batch)
    assert guards.check(model, None, batch) is None


def test_a_module_that_comes_to_be_loaded(monkeypatch):
    model, batch = Reading(whether_loaded), (torch.ones(3, 4),)
    guards = capture_step(model, squared, None, batch).guards
    monkeypatch.setitem(sys.modules, "peakfold_test_of_more", types.ModuleType("more"))
    assert guards.check(model, None, batch) == "the module peakfold_test_of_more was replaced or changed"


def float32_precision(name):
    torch.set_float32_matmul_precision(name)


SETTINGS = {
    "threads": (
        lambda model, x: x * torch.get_num_threads(),
        torch.get_num_threads,
        torch.set_num_threads,
        (3, "torch.get_num_threads() is 3"),
    ),
    "precision": (
        lambda model, x: x * (2 if torch.get_float32_matmul_precision() == "high" else 1),
        torch.get_float32_matmul_precision,
        torch.set_float32_matmul_precision,
        ("high", "torch.get_float32_matmul_precision() is 'high'"),
    ),
    "seed": (
        lambda model, x: x * (torch.initial_seed() % 7),
        torch.initial_seed,
        torch.manual_seed,
        (17, "torch.initial_seed() is 17"),
    ),
    "folder": (lambda model, x: x * len(os.getcwd()), os.getcwd, os.chdir, ("/", "os.getcwd() is '/'")),
    "device": (
        lambda model, x: x + torch.ones(4),
        lambda: None,
        torch.set_default_device,
        ("meta", "a mode of torch is not as captured: device"),
    ),
}


@pytest.mark.parametrize("case", SETTINGS)
def test_settings_of_the_process(case):
    read, query, change, (value, words) = SETTINGS[case]
    model, batch, before = Reading(read), (torch.ones(3, 4),), query()
    guards = capture_step(model, squared, None, batch).guards
    assert guards.check(model, None, batch) is None
    change(value)
    try:
        assert guards.check(model, None, batch).startswith(words)
    finally:
        change(before)
    assert guards.check(model, None, batch) is None


ENVIRONMENT = {
    "one": lambda: float(os.environ.get("PEAKFOLD_TEST_SCALE", "1")),
    "bytes": lambda: float(os.environb.get(b"PEAKFOLD_TEST_SCALE", b"1")),
    "a copy": lambda: float(dict(os.environ).get("PEAKFOLD_TEST_SCALE", "1")),
    "a loop": lambda: sum(name.startswith("PEAKFOLD_TEST") for name in os.environ),
    "how many": lambda: len(os.environ),
}


@pytest.mark.parametrize("case", ENVIRONMENT)
def test_the_environment_read_in_any_way(case, monkeypatch):
    model, batch = Reading(lambda model, x: x * ENVIRONMENT[case]()), (torch.ones(3, 4),)
    guards = capture_step(model, squared, None, batch).guards
    assert guards.check(model, None, batch) is None
    monkeypatch.setenv("PEAKFOLD_TEST_SCALE", "2")
    said = guards.check(model, None, batch)
    assert said.startswith("the environment")
    assert len(said) < 100
    monkeypatch.delenv("PEAKFOLD_TEST_SCALE")
    assert guards.check(model, None, batch) is None


CHANGING = {
    "time.time": lambda model, x: x * time.time(),
    "time.perf_counter": lambda model, x: x if time.perf_counter() > 0 else -x,
    "time.monotonic_ns": lambda model, x: x * (time.monotonic_ns() % 3),
    "time.process_time": lambda model, x: x * time.process_time(),
    "datetime.datetime.now": lambda model, x: x * datetime.datetime.now().second,
    "os.urandom": lambda model, x: x * os.urandom(1)[0],
    "os.urandom, by secrets": lambda model, x: x * secrets.randbelow(5),
}


def in_a_hook(read):
    model = nn.Sequential(nn.Linear(4, 4))
    model[0].register_forward_hook(lambda module, args, output: read(module, output))
    return model


@pytest.mark.parametrize("case", CHANGING)
def test_clocks_and_random_numbers_of_the_system_are_refused_by_their_line(case):
    read = CHANGING[case]
    line = f"{__file__}:{read.__code__.co_firstlineno}: "
    x = torch.ones(3, 4)
    for capture in (
        lambda: capture_step(Reading(read), squared, None, (x,)),
        lambda: capture_step(in_a_hook(read), squared, None, (x,)),
        lambda: capture_step(nn.Linear(4, 4), lambda model, x: read(model, squared(model, x)), None, (x,)),
        lambda: capture_inference(Reading(read), (x,)),
    ):
        with pytest.raises(CaptureError) as caught:
            capture()
        name = case.partition(",")[0]
        assert caught.value.what == f"the code calls {name}, which gives another value each time"
        assert caught.value.where.startswith(line)


def test_what_logging_reads_of_a_clock_is_no_part_of_a_program():
    def read(model, x):
        logging.getLogger("peakfold.test").warning("read")
        return x

    capture_step(Reading(read), squared, None, (torch.ones(3, 4),))


NAMED = logging.getLogger("peakfold.test.levels.named")
ADAPTED = logging.LoggerAdapter(logging.getLogger("peakfold.test.levels.named"))
HELD_LOGGERS = {"named": NAMED}
LEVELS = {
    "isEnabledFor of a global": lambda model, x: 2 * x if NAMED.isEnabledFor(logging.DEBUG) else x,
    "level of a global": lambda model, x: 2 * x if NAMED.level == logging.DEBUG else x,
    "level of a parent": lambda model, x: 2 * x if NAMED.parent.level == logging.DEBUG else x,
    "getEffectiveLevel of a global": lambda model, x: x * NAMED.getEffectiveLevel(),
    "an attribute": lambda model, x: x * model.held.logger.getEffectiveLevel(),
    "in a container": lambda model, x: x * HELD_LOGGERS["named"].getEffectiveLevel(),
    "got by its name": lambda model, x: x * logging.getLogger("peakfold.test." + "levels.named").level,
    "by an adapter": lambda model, x: 2 * x if ADAPTED.isEnabledFor(logging.DEBUG) else x,
    "root": lambda model, x: x * logging.root.level,
    "disabled": lambda model, x: x if NAMED.disabled else 2 * x,
    "what is disabled for all": lambda model, x: x * (1 + NAMED.manager.disable),
}


@pytest.mark.parametrize("case", LEVELS)
def test_levels_of_loggers(case, monkeypatch):
    model, batch = Reading(LEVELS[case]), (torch.ones(3, 4),)
    monkeypatch.setattr(HELD, "logger", NAMED, raising=False)
    above = logging.getLogger("peakfold.test.levels")
    for change in (
        (logging.root if case == "root" else NAMED, "level", logging.DEBUG),
        (above if case != "root" else logging.root, "level", logging.DEBUG),
        (NAMED if case != "root" else logging.root, "disabled", True),
        (logging.root.manager, "_disable", 15),
    ):
        guards = capture_step(model, squared, None, batch).guards
        assert guards.check(model, None, batch) is None
        with monkeypatch.context() as patched:
            patched.setattr(*change)
            assert guards.check(model, None, batch) is not None
        assert guards.check(model, None, batch) is None


def test_a_logger_that_comes_between_is_seen():
    batch = (torch.ones(3, 4),)
    lower = logging.getLogger("peakfold.test.between.a.b")
    model = Reading(lambda model, x: x * lower.getEffectiveLevel())
    guards = capture_step(model, squared, None, batch).guards
    logging.getLogger("peakfold.test.between.a").setLevel(logging.ERROR)
    assert "the logger peakfold.test.between.a.b" in guards.check(model, None, batch)


def test_a_message_alone_asks_for_no_level(monkeypatch):
    model, batch = Reading(lambda model, x: (NAMED.debug("read"), x)[1]), (torch.ones(3, 4),)
    guards = capture_step(model, squared, None, batch).guards
    monkeypatch.setattr(NAMED, "level", logging.ERROR)
    assert guards.check(model, None, batch) is None


class Summing:
    def __init__(self):
        self.by = 1.0

    def total(self):
        return numbers(self.__dict__.values())

    def inside(self):
        return sum(self.__dict__[name] for name in ("by", "more") if name in self.__dict__)


@pytest.mark.parametrize("method", ["total", "inside"])
def test_a_method_that_reads_all_of_its_own_object(method):
    own, other = Summing(), Held()
    model, batch = Reading(lambda model, x: x * getattr(own, method)() * other.scale), (torch.ones(3, 4),)
    guards = capture_step(model, squared, None, batch).guards
    other.fresh = 2.0
    assert guards.check(model, None, batch) is None
    own.more = 2.0
    assert "more" in guards.check(model, None, batch)
