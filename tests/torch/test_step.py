import copy
import threading
import weakref
from dataclasses import dataclass, replace
from random import Random

import pytest
import torch
from tests.torch.programs import Tiny, tiny_compiled, tiny_target

from peakfold.bridge.runtime.bind import Subject
from peakfold.bridge.runtime.measure import eager_step
from peakfold.bridge.runtime.step import MOST_PROGRAMS, Step
from peakfold.errors import CaptureError, UsageError


def made(recapture=None):
    model, loss_fn, optimizer, batch = tiny_target()
    step = Step(Subject(model, optimizer), tiny_compiled(model, optimizer, batch), recapture)
    return model, loss_fn, optimizer, batch, step


def twin():
    """The same model, optimizer and batch, stepped by eager."""
    model, loss_fn, optimizer, batch = tiny_target()
    return model, optimizer, eager_step(model, loss_fn, optimizer, batch)


def test_steps_are_those_of_eager_with_a_scheduler_and_eager_steps_between():
    model, loss_fn, optimizer, batch, step = made()
    other, other_optimizer, eager = twin()
    decay = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
    other_decay = torch.optim.lr_scheduler.ExponentialLR(other_optimizer, 0.5)
    weight, pointer = model.fc.weight, model.fc.weight.data_ptr()
    mixed = [lambda: step(*batch), eager_step(model, loss_fn, optimizer, batch), lambda: step(*batch)]
    for i, mine in enumerate(mixed):
        torch.manual_seed(i)
        loss = mine()
        torch.manual_seed(i)
        assert torch.equal(loss, eager())
        decay.step()
        other_decay.step()
    assert torch.equal(model.fc.weight, other.fc.weight)
    assert model.fc.weight is weight
    assert weight.data_ptr() == pointer
    assert weight.grad is None


def test_a_scheduler_sees_that_the_optimizer_stepped(recwarn):
    *_, optimizer, batch, step = made()
    decay = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
    step(*batch)
    decay.step()
    assert not [warning for warning in recwarn if "lr_scheduler" in str(warning.message)]


def test_a_replaced_module_is_followed():
    model, _, optimizer, batch, step = made()
    step(*batch)
    model.fc = copy.deepcopy(model.fc)
    optimizer.param_groups[0]["params"] = [model.fc.weight]
    before = model.fc.weight.detach().clone()
    step(*batch)
    assert not torch.equal(model.fc.weight, before)


def test_nan_is_returned_as_eager_returns_it():
    model, _, _, batch, step = made()
    with torch.no_grad():
        model.fc.weight.fill_(float("nan"))
    assert step(*batch).isnan()


def test_autocast_around_the_step_adds_no_casts():
    *_, batch, step = made()
    *_, eager = twin()
    torch.manual_seed(1)
    with torch.autocast("cpu", torch.bfloat16):
        loss = step(*batch)
    torch.manual_seed(1)
    assert torch.equal(loss, eager())


def test_another_shape_is_refused_with_what_was_got():
    *_, step = made()
    with pytest.raises(CaptureError) as caught:
        step(torch.randn(5, 3))
    assert str(caught.value) == (
        "step: the step does not hold for this call\n"
        "  expected: what it was captured under\n"
        "  got: batch.0 is torch.float32 [5, 3] of strides [3, 1] on cpu instead of "
        "torch.float32 [2, 3] of strides [3, 1] on cpu\n"
        "  next: call optimize_step again"
    )


def test_a_change_is_captured_once_and_both_programs_are_kept():
    calls = []

    def recapture(batch):
        calls.append(tuple(batch[0].stride()))
        return tiny_compiled(model, optimizer, batch)

    model, _, optimizer, batch, step = made(lambda batch: recapture(batch))
    turned = (torch.randn(3, 2).t(),)
    for each in (batch, turned, batch, turned):
        step(*each)
    assert calls == [(1, 2)]


@dataclass(frozen=True)
class Only:
    """Holds in one mode."""

    mode: int
    now: list[int]

    def check(self, model, optimizer, batch):
        return None if self.now == [self.mode] else "another mode"


def test_the_programs_that_ran_last_are_kept_and_no_more():
    """Against a plain list, the one that ran last in front; a program that went is made anew, never stale."""

    def program(batch):
        return replace(tiny_compiled(model, optimizer, batch), guards=Only(now[0], now))

    def recapture(batch):
        made.append(now[0])
        return program(batch)

    now, made, wanted, draw = [0], [], [], Random(0)
    model, _, optimizer, batch = tiny_target()
    step = Step(Subject(model, optimizer), program(batch), recapture)
    known, bound = [0], weakref.WeakSet()
    for _ in range(300):
        now[0] = min(int(draw.expovariate(0.1)), 40)
        wanted += [now[0]] if now[0] not in known else []
        known = [now[0], *(mode for mode in known if mode != now[0])][:MOST_PROGRAMS]
        step(*batch)
        bound.update(step._programs)
        assert step.compiled.guards.mode == now[0]
    assert made == wanted
    assert len(set(made)) < len(made)
    assert len(step._programs) == len(bound) == MOST_PROGRAMS


def test_a_second_thread_is_told_so():
    *_, batch, step = made()
    entered, leave, errors = threading.Event(), threading.Event(), []
    slow = step._programs[0]._function

    def wait(tensors, scalars):
        entered.set()
        leave.wait(30)
        return slow(tensors, scalars)

    step._programs[0]._function = wait
    first = threading.Thread(target=step, args=batch)
    first.start()
    entered.wait(30)
    with pytest.raises(UsageError, match="the step is running in another thread"):
        step(*batch)
    leave.set()
    first.join()
    step(*batch)
    assert errors == []


def test_tiny_is_what_the_graph_says():
    assert isinstance(tiny_target()[0], Tiny)
