"""What code reads by other ways than a name and a dot is guarded too: each of these was a stale replay."""

import builtins
import collections
import contextlib
import contextvars
import dataclasses
import enum
import functools
import importlib
import itertools
import operator
import random
import threading
import types
import weakref
from array import array

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from peakfold.bridge.capture import capture_step
from peakfold.errors import CaptureError

SCALE = 1.0
VARIABLE = contextvars.ContextVar("VARIABLE", default=1.0)
LOCAL = threading.local()


class Reading(nn.Module):
    """Reads what a test says, from attributes that it gives."""

    def __init__(self, read, **attributes):
        super().__init__()
        self.fc, self.read = nn.Linear(4, 4), read
        for name, value in attributes.items():
            setattr(self, name, value)

    def forward(self, x):
        return self.read(self, self.fc(x))


def holder(**attributes):
    class Holder:
        pass

    made = Holder()
    made.__dict__.update(attributes)
    return made


def squared(model, x, *others):
    return model(x).square().mean()


def guarded(model, loss=squared, optimizer=None, batch=None):
    """Return a function that says what does not hold any more."""
    batch = (torch.ones(3, 4),) if batch is None else batch
    guards = capture_step(model, loss, optimizer, batch).guards
    assert guards.check(model, optimizer, batch) is None
    return lambda: guards.check(model, optimizer, batch)


class Attributed(dict):
    def __getattr__(self, name):
        return self[name]


class Listed(list):
    pass


def listed(**attributes):
    made = Listed()
    made.__dict__.update(attributes)
    return made


def deep(depth):
    return holder(inner=deep(depth - 1)) if depth else holder(by=1.0)


def tried(held):
    try:
        return held.to_come
    except AttributeError:
        return 1.0


CONTAINERS = {
    "long list": ([1.0] * 100, lambda held: held[3], lambda held: held.__setitem__(3, 2.0)),
    "long dict": (
        {f"k{i}": i for i in range(100)},
        lambda held: held["k3"],
        lambda held: held.update(k3=9),
    ),
    "objects in a long list": (
        [holder(by=1.0) for _ in range(100)],
        lambda held: held[3].by,
        lambda held: setattr(held[3], "by", 2.0),
    ),
    "deque": (collections.deque([1.0]), lambda held: held[0], lambda held: held.appendleft(2.0)),
    "array": (array("d", [1.0]), lambda held: held[0], lambda held: held.__setitem__(0, 2.0)),
    "bytearray": (bytearray([1]), lambda held: held[0], lambda held: held.__setitem__(0, 2)),
    "order of a dict": (
        {"a": 1.0, "b": 2.0},
        lambda held: next(iter(held.values())),
        lambda held: held.__setitem__("a", held.pop("a")),
    ),
    "user dict": (
        collections.UserDict(a=1.0),
        lambda held: held["a"],
        lambda held: held.__setitem__("a", 2.0),
    ),
    "chain map": (
        collections.ChainMap({}, {"a": 1.0}),
        lambda held: held["a"],
        lambda held: held.__setitem__("a", 2.0),
    ),
    "view of a dict": (
        (under := {"a": 1.0}, types.MappingProxyType(under)),
        lambda held: held[1]["a"],
        lambda held: held[0].update(a=2.0),
    ),
    "dict with attributes": (
        Attributed({f"k{i}": 0 for i in range(80)}, by=1.0),
        lambda held: held.by,
        lambda held: held.update(by=2.0),
    ),
    "list with attributes": (
        listed(by=1.0),
        lambda held: held.by,
        lambda held: setattr(held, "by", 2.0),
    ),
    "deep containers": (
        [[[[[[1.0]]]]]],
        lambda held: held[0][0][0][0][0][0],
        lambda held: held[0][0][0][0][0].__setitem__(0, 2.0),
    ),
    "deep objects": (
        deep(4),
        lambda held: held.inner.inner.inner.inner.by,
        lambda held: setattr(held.inner.inner.inner.inner, "by", 2.0),
    ),
    "large numpy array": (
        np.ones(1 << 17, dtype=np.float32),
        lambda held: float(held[5]),
        lambda held: held.fill(2.0),
    ),
    "keywords of a partial": (
        functools.partial(torch.add, alpha=1),
        lambda held: held(torch.ones(()), 1),
        lambda held: held.keywords.update(alpha=2),
    ),
    "sign of zero": ([0.0], lambda held: held[0], lambda held: held.__setitem__(0, -0.0)),
    "an attribute to come, by hasattr": (
        holder(),
        lambda held: 2 if hasattr(held, "to_come") else 1,
        lambda held: setattr(held, "to_come", 1),
    ),
    "an attribute to come, by getattr": (
        [types.SimpleNamespace()],
        lambda held: getattr(held[0], "to_come", 1.0),
        lambda held: setattr(held[0], "to_come", 2.0),
    ),
    "an attribute to come, by trying": (
        holder(),
        lambda held: tried(held),
        lambda held: setattr(held, "to_come", 2.0),
    ),
    "attributes of attributes by one text": (
        holder(inner=holder(by_text=1.0)),
        lambda held: operator.attrgetter("inner.by_text")(held),
        lambda held: setattr(held.inner, "by_text", 2.0),
    ),
    "weak reference": (
        (kept := holder(by=1.0), weakref.ref(kept)),
        lambda held: held[1]().by,
        lambda held: setattr(held[0], "by", 2.0),
    ),
}


@pytest.mark.parametrize("case", CONTAINERS)
def test_containers(case):
    held, read, change = CONTAINERS[case]
    broken = guarded(Reading(lambda model, x: x * read(model.held), held=held))
    change(held)
    assert "changed" in broken() or "captured as" in broken()


class Scaling:
    factor = 1.0

    def __init__(self):
        self.inner = holder(deep_one=1.0)

    def scaled(self, x, *others):
        return x * self.factor


OPTIONS = {"rate": 1.0}
GETTERS = {
    "attrgetter of a global": (operator.attrgetter("inner.deep_one"), "deep_one"),
    "attrgetter of several": (operator.attrgetter("factor", "inner.deep_one"), "deep_one"),
    "attrgetter in a container": ([operator.attrgetter("inner.deep_one")], "deep_one"),
    "attrgetter in a partial": (functools.partial(operator.attrgetter("inner.deep_one")), "deep_one"),
    "methodcaller": (operator.methodcaller("scaled", 1.0), "factor"),
}
GETTER = None


@pytest.mark.parametrize("case", GETTERS)
@pytest.mark.parametrize("where", ["global", "attribute", "closure"])
def test_getters_that_were_made_before(case, where, monkeypatch):
    getter, changed = GETTERS[case]
    get, scaling = GETTERS[case][0], Scaling()
    monkeypatch.setitem(globals(), "GETTER", getter)

    def value(found):
        got = (found[0] if isinstance(found, list) else found)(scaling)
        return got[-1] if isinstance(got, tuple) else got

    reads = {
        "global": lambda model, x: x * value(GETTER),
        "attribute": lambda model, x: x * value(model.get),
        "closure": lambda model, x: x * value(get),
    }
    broken = guarded(Reading(reads[where], get=getter))
    owner = scaling if changed == "factor" else scaling.inner
    setattr(owner, changed, 2.0)
    assert changed in broken()


def test_an_attribute_of_the_model_by_a_getter():
    model = Reading(lambda model, x: x * model.get(model), get=operator.attrgetter("fc.only_by_getter"))
    model.fc.only_by_getter = 1.0
    broken = guarded(model)
    model.fc.only_by_getter = 2.0
    assert broken() == "fc.only_by_getter is 2.0, captured as 1.0"


def test_an_item_by_a_getter():
    broken = guarded(Reading(lambda model, x: x * model.get(OPTIONS), get=operator.itemgetter("rate")))
    OPTIONS["rate"] = 2.0
    try:
        assert "captured as" in broken()
    finally:
        OPTIONS["rate"] = 1.0


def test_a_getter_that_was_replaced():
    model = Reading(lambda model, x: x * model.get(OPTIONS | {"other": 2.0}), get=operator.itemgetter("rate"))
    broken = guarded(model)
    model.get = operator.itemgetter("other")
    assert "get was replaced" in broken()


def test_a_module_whose_attribute_is_tried():
    model = Reading(lambda model, x: x * tried(model))
    broken = guarded(model)
    model.to_come = 2.0
    assert "to_come" in broken()


def test_a_forward_that_was_replaced_is_replaced_again():
    """The second one has the code of the first, and another default."""
    model = Reading(lambda model, x: x * model.fc.weight.sum())

    def replaced(factor):
        model.fc.forward = lambda x, factor=factor: x * factor

    replaced(1.0)
    broken = guarded(model)
    assert broken() is None
    replaced(2.0)
    assert "forward" in broken()


def test_names_that_code_makes_up():
    model = Reading(lambda model, x: x * sum(getattr(model, f"scale_{i}") for i in range(2)))
    model.scale_0, model.scale_1 = 1.0, 1.0
    broken = guarded(model)
    model.scale_1 = 2.0
    assert broken() == "scale_1 is 2.0, captured as 1.0"


def test_none_is_not_the_same_as_nothing():
    model = Reading(lambda model, x: x * (2 if hasattr(model, "doubled") else 1))
    broken = guarded(model)
    model.doubled = None
    assert broken() == "doubled is None, captured as not there"


def imported(model, x):
    from collections import counted

    return x * counted


GLOBALS = {
    "import of a name": (imported, collections, "counted", 2.0),
    "globals()": (lambda model, x: x * globals()["SCALE"], None, "SCALE", 2.0),
    "builtin": (lambda model, x: x * counted, builtins, "counted", 2.0),  # noqa: F821
    "name before a builtin": (lambda model, x: x * max(1.0, 2.0), None, "max", min),
    "function of torch": (lambda model, x: F.relu(x), F, "relu", torch.tanh),
    "function of torch, in a module": (lambda model, x: model.act(x), F, "relu", torch.tanh),
    "method of torch's module": (lambda model, x: x, nn.Linear, "forward", lambda self, x: x),
    "flag of torch": (
        lambda model, x: x * (2 if torch.backends.cudnn.benchmark else 1),
        torch.backends.cudnn,
        "benchmark",
        True,
    ),
}


@pytest.mark.parametrize("case", GLOBALS)
def test_globals(case, monkeypatch):
    read, where, name, value = GLOBALS[case]
    here = importlib.import_module(__name__)
    if name == "counted":
        monkeypatch.setattr(where, name, 1.0, raising=False)
    broken = guarded(Reading(read, act=nn.ReLU()))
    with monkeypatch.context() as patch:
        patch.setattr(where or here, name, value, raising=False)
        assert name in broken()
    assert broken() is None


def test_context_variables_and_locals_of_a_thread():
    LOCAL.by = 1.0
    broken = guarded(Reading(lambda model, x: x * VARIABLE.get() * LOCAL.by))
    token = VARIABLE.set(2.0)
    assert "VARIABLE" in broken()
    VARIABLE.reset(token)
    assert broken() is None
    LOCAL.by = 2.0
    assert "LOCAL.by is 2.0" in broken()


def scaled(x, by=1.0, *, more=1.0):
    return x * by * more * getattr(scaled, "own", 1.0)


FUNCTIONS = {
    "defaults": lambda function: setattr(function, "__defaults__", (2.0,)),
    "defaults of keywords": lambda function: function.__kwdefaults__.update(more=2.0),
    "code": lambda function: setattr(function, "__code__", twice.__code__),
    "attribute": lambda function: setattr(function, "own", 2.0),
}


def twice(x, by=1.0, *, more=1.0):
    return x * 2


@pytest.mark.parametrize("case", FUNCTIONS)
def test_functions(case, monkeypatch):
    own = types.FunctionType(scaled.__code__, globals(), "scaled", (1.0,))
    own.__kwdefaults__, own.own = {"more": 1.0}, 1.0
    monkeypatch.setitem(globals(), "scaled", own)
    broken = guarded(Reading(lambda model, x: scaled(x)))
    FUNCTIONS[case](own)
    assert "scaled" in broken()


WRAPPERS = {
    "no_grad": (torch.no_grad(), lambda model: model.scale()),
    "staticmethod": (staticmethod, lambda model: model.scale()),
    "classmethod": (classmethod, lambda model: model.scale()),
    "property": (property, lambda model: model.scale),
    "lru_cache": (functools.lru_cache(maxsize=0), lambda model: model.scale()),
    "singledispatch": (lambda f: staticmethod(functools.singledispatch(f)), lambda model: model.scale(model)),
    "hook": (None, None),
}


@pytest.mark.parametrize("case", WRAPPERS)
def test_what_a_wrapped_function_closes_over(case):
    by = 1.0
    wrap, read = WRAPPERS[case]
    if wrap is None:
        model = Reading(lambda model, x: x)
        model.fc.register_forward_hook(lambda module, args, output: output * by)
    else:
        own = type("Own", (Reading,), {"scale": wrap(lambda *args: by)})
        model = own(lambda model, x: x * read(model))
    broken = guarded(model)
    by = 2.0
    assert "by, which" in broken()


def test_what_a_context_manager_closes_over():
    by = 1.0

    @contextlib.contextmanager
    def scaling():
        yield by

    def read(model, x):
        with scaling() as scale:
            return x * scale

    broken = guarded(Reading(read))
    by = 2.0
    assert "by, which" in broken()


def test_hooks_by_what_they_are():
    model = Reading(lambda model, x: x)
    handles = [
        model.fc.register_forward_hook(lambda module, args, output: output),
        model.fc.register_full_backward_hook(lambda module, before, after: None),
        model.fc.weight.register_hook(lambda gradient: gradient),
    ]
    broken = guarded(model)
    tables = (model.fc._forward_hooks, model.fc._backward_hooks, model.fc.weight._backward_hooks)
    for handle, table in zip(handles, tables, strict=True):
        before = table[handle.id]
        table[handle.id] = lambda *args: None
        assert "hook" in broken()
        table[handle.id] = before
        assert broken() is None


FACTOR = 1.0


class Multiplied(torch.autograd.Function):
    by = 1.0

    @staticmethod
    def forward(ctx, x):
        return x * 1.0

    @staticmethod
    def backward(ctx, gradient):
        return gradient * Multiplied.by * FACTOR


def test_what_only_the_backward_pass_reads(monkeypatch):
    broken = guarded(Reading(lambda model, x: Multiplied.apply(x)))
    for change in (
        lambda patch: patch.setattr(Multiplied, "by", 2.0),
        lambda patch: patch.setattr(Multiplied, "backward", staticmethod(lambda ctx, g: g)),
        lambda patch: patch.setitem(globals(), "FACTOR", 2.0),
    ):
        with monkeypatch.context() as patch:
            change(patch)
            assert broken() is not None
        assert broken() is None


class Meta(type):
    rate = 1.0


class Rated(metaclass=Meta):
    def __len__(self):
        return 1

    def __getitem__(self, key):
        return 1.0


class Slotted:
    __slots__ = ("by",)


class Both(Slotted):
    pass


class Other(Both):
    pass


class Mode(enum.Enum):
    ONE = 1


def test_classes(monkeypatch):
    both = Both()
    both.by, Mode.ONE.by = 1.0, 1.0
    model = Reading(
        lambda model, x: x * Rated.rate * len(model.rated) * model.rated["a"] * model.both.by * model.mode.by,
        rated=Rated(),
        both=both,
        mode=Mode.ONE,
    )
    broken = guarded(model)
    for where, name, value in (
        (Meta, "rate", 2.0),
        (Rated, "__len__", lambda self: 2),
        (Rated, "__getitem__", lambda self, key: 2.0),
        (both, "by", 2.0),
        (both, "__class__", Other),
        (Mode.ONE, "by", 2.0),
        (model, "__class__", type("Own", (Reading,), {})),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(where, name, value)
            assert broken() is not None, name
        assert broken() is None


class Named(nn.Module):
    """Has a local variable of the name of an attribute, which a function inside closes over."""

    def __init__(self):
        super().__init__()
        self.fc, self.act = nn.Linear(4, 4), F.relu

    def forward(self, x):
        act = self.act

        def inner(h):
            return act(self.fc(h))

        return inner(x)


def test_a_variable_of_the_name_of_an_attribute():
    model = Named()
    broken = guarded(model)
    model.act = torch.tanh
    assert broken() == "act was replaced or changed"


class Setting(Reading):
    """Another object has an attribute of the name set, by its own method."""

    def forward(self, x):
        Noting().note()
        return self.act(self.fc(x))


class Noting:
    def note(self):
        self.act = 3


def test_an_attribute_that_another_class_sets():
    model = Setting(None, act=F.relu)
    broken = guarded(model)
    model.act = torch.tanh
    assert broken() == "act was replaced or changed"


def swap(model):
    model.layers._modules["0"] = model.layers._modules.pop("0")


@pytest.mark.parametrize(
    "change",
    [
        lambda model: model.layers.append(nn.ReLU()),
        swap,
        lambda model: setattr(model, "mask", torch.ones(4)),
        lambda model: model.register_buffer("more", torch.ones(4)),
    ],
)
def test_what_a_module_consists_of(change):
    model = Reading(lambda model, x: model.layers(x), layers=nn.Sequential(nn.Sigmoid(), nn.ReLU()))
    model.register_buffer("mask", None)
    broken = guarded(model)
    change(model)
    assert broken() is not None


@pytest.mark.parametrize(
    "value",
    [
        itertools.count(1),
        (i for i in range(9)),
        random.Random(0),
        np.random.default_rng(0),
    ],
)
def test_what_gives_another_value_each_time_is_refused(value):
    def read(model, x):
        source = model.source
        return x * (next(source) if hasattr(source, "__next__") else source.random())

    with pytest.raises(CaptureError, match="the code reads source, which gives another value each time"):
        guarded(Reading(read, source=value))


@dataclasses.dataclass
class Options:
    by: float = 1.0


def test_objects_in_the_batch():
    options, flags = Options(), {"a"}
    model = Reading(lambda model, x: x)

    def loss(model, x, options, flags):
        return squared(model, x) * options.by * len(flags)

    broken = guarded(model, loss, batch=(torch.ones(3, 4), options, flags))
    options.by = 2.0
    assert "by is 2.0, captured as 1.0" in broken()
    options.by = 1.0
    assert broken() is None
    flags.add("b")
    assert broken() is not None


@pytest.mark.parametrize("made", [lambda x: holder(x=x), lambda x: collections.UserDict(x=x)])
def test_an_object_of_tensors_in_the_batch_is_refused(made):
    with pytest.raises(CaptureError, match="the batch holds an object with tensors in it"):
        guarded(Reading(lambda model, x: x), squared, batch=(torch.ones(3, 4), made(torch.ones(2))))


RATE = 1.0


class Descent(torch.optim.SGD):
    flip = False

    def __init__(self, parameters):
        super().__init__(parameters, lr=0.1)
        self.by = 1.0

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    parameter.add_(parameter.grad, alpha=-group["lr"] * self.by * RATE)


def test_what_an_optimizer_reads(monkeypatch):
    kind = type("Own", (Descent,), {})
    model = Reading(lambda model, x: x)
    optimizer = kind(model.parameters())
    broken = guarded(model, optimizer=optimizer)
    for change in (
        lambda patch: patch.setattr(optimizer, "by", 2.0),
        lambda patch: patch.setitem(globals(), "RATE", 2.0),
        lambda patch: patch.setattr(kind, "step", lambda self: None),
        lambda patch: patch.setattr(optimizer, "step", lambda: None, raising=False),
    ):
        with monkeypatch.context() as patch:
            change(patch)
            assert broken() is not None
        optimizer.__dict__.pop("step", None)
        assert broken() is None
    torch.optim.lr_scheduler.StepLR(optimizer, 1).step()
    optimizer.param_groups[0]["lr"] = 0.5
    assert broken() is None


def test_an_optimizer_with_a_step_of_its_own_is_refused():
    model = Reading(lambda model, x: x)
    optimizer = Descent(model.parameters())
    optimizer.step = lambda: None
    with pytest.raises(CaptureError, match=r"its step\(\) was replaced on this object alone"):
        guarded(model, optimizer=optimizer)


def test_a_tensor_beside_the_model_that_comes_to_need_a_gradient():
    held = torch.ones(4)
    broken = guarded(Reading(lambda model, x: x * held))
    held.requires_grad_()
    assert (
        broken() == "requires_grad of a tensor of shape (4,) that the code reads is True, captured as False"
    )


def test_another_optimizer_of_a_class_above_breaks_nothing():
    """torch wraps the step of a class when the first optimizer of it is made."""
    above = type("Above", (Descent,), {"step": Descent.__dict__["step"]})
    kind = type("Own", (above,), {"step": Descent.__dict__["step"]})
    model = Reading(lambda model, x: x)
    broken = guarded(model, optimizer=(optimizer := kind(model.parameters())))
    above([torch.nn.Parameter(torch.ones(1))])
    assert broken() is None
    assert type(optimizer) is kind
