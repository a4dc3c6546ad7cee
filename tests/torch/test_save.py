import errno
import json
import zipfile
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from tests.torch.programs import tiny_compiled, tiny_target
from tests.torch.test_plans import make_step, random_plan, transformer

import peakfold
from peakfold.bridge.capture.binding import Verbatim
from peakfold.bridge.runtime.bind import Subject
from peakfold.bridge.runtime.load import load
from peakfold.bridge.runtime.measure import eager_step
from peakfold.bridge.runtime.save import PARTS
from peakfold.bridge.runtime.saved_guards import saved_guards
from peakfold.bridge.runtime.step import Step
from peakfold.errors import CacheError, CaptureError, PlanError


@pytest.fixture
def saved(tmp_path):
    model, _, optimizer, batch = tiny_target()
    step = Step(Subject(model, optimizer), tiny_compiled(model, optimizer, batch))
    step.save(tmp_path / "step.peakfold")
    return tmp_path / "step.peakfold"


def rewritten(path, name, content):
    with zipfile.ZipFile(path) as archive:
        parts = {one: archive.read(one) for one in archive.namelist()}
    parts[name] = content
    with zipfile.ZipFile(path, "w") as archive:
        for one, text in parts.items():
            archive.writestr(one, text)


def test_a_loaded_step_does_what_the_saved_one_did(saved):
    results = []
    for loaded in (False, True):
        model, _, optimizer, batch = tiny_target()
        if loaded:
            step = load(saved, model, optimizer)
        else:
            step = Step(Subject(model, optimizer), tiny_compiled(model, optimizer, batch))
        torch.manual_seed(1)
        results.append((step(*batch), model.fc.weight.detach(), step.source, step.plan))
    (loss, weight, *texts), (loaded_loss, loaded_weight, *loaded_texts) = results
    assert torch.equal(loss, loaded_loss)
    assert torch.equal(weight, loaded_weight)
    assert texts == loaded_texts


def test_saving_twice_gives_the_same_bytes(saved, tmp_path):
    model, _, optimizer, _ = tiny_target()
    load(saved, model, optimizer).save(tmp_path / "again")
    assert (tmp_path / "again").read_bytes() == saved.read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["again", "step.peakfold"]


def test_a_missing_file(tmp_path):
    model, _, optimizer, _ = tiny_target()
    with pytest.raises(CacheError) as caught:
        load(tmp_path / "none", model, optimizer)
    assert str(caught.value) == (
        f"load: there is no saved step\n  at: {tmp_path}/none\n  next: save one with step.save(path)"
    )


@pytest.mark.parametrize("keep", [0, 10, 0.5, 0.99])
def test_a_file_cut_short_is_corrupt(saved, keep):
    content = saved.read_bytes()
    saved.write_bytes(content[: int(keep if keep > 1 else keep * len(content))])
    model, _, optimizer, _ = tiny_target()
    with pytest.raises(CacheError, match="the saved step is corrupt"):
        load(saved, model, optimizer)


@pytest.mark.parametrize("part", ["manifest.json", *PARTS])
def test_a_changed_part_is_corrupt(saved, part):
    rewritten(saved, part, b"[]")
    model, _, optimizer, _ = tiny_target()
    with pytest.raises(CacheError, match="the saved step is corrupt"):
        load(saved, model, optimizer)


def test_a_step_without_a_report_has_none_when_it_is_loaded(saved):
    model, _, optimizer, _ = tiny_target()
    assert peakfold.load(saved, model, optimizer).report is None


@pytest.mark.parametrize("told", ["{}", "[]", "report", '{"format": 0}'])
def test_a_report_that_cannot_be_read_is_corrupt(tmp_path, told):
    model, _, optimizer, batch = tiny_target()
    made = replace(tiny_compiled(model, optimizer, batch), told=lambda: told)
    Step(Subject(model, optimizer), made).save(tmp_path / "step")
    with pytest.raises(CacheError, match="the saved step is corrupt"):
        peakfold.load(tmp_path / "step", model, optimizer)


def test_an_older_version_is_named(saved):
    rewritten(saved, "manifest.json", json.dumps({"format": 0, "torch": "2.1", "digest": ""}))
    model, _, optimizer, _ = tiny_target()
    with pytest.raises(CacheError, match=r"got: format 0 of torch 2\.1"):
        load(saved, model, optimizer)


def test_another_model_is_named(saved):
    model = torch.nn.Linear(3, 4)
    with pytest.raises(PlanError, match=r"got: no fc\.weight"):
        load(saved, model, torch.optim.SGD(model.parameters(), lr=0.1))


def test_another_optimizer_is_named(saved):
    model, _, _, _ = tiny_target()
    with pytest.raises(PlanError, match=r"got: optimizer torch\.optim\.adam\.Adam instead of"):
        load(saved, model, torch.optim.Adam([model.fc.weight]))


def test_a_flag_of_the_optimizer_is_seen(saved):
    model, _, _, _ = tiny_target()
    with pytest.raises(PlanError, match="flags in them"):
        load(saved, model, torch.optim.SGD([model.fc.weight], lr=0.1, maximize=True))


def test_a_number_that_becomes_zero_is_seen(saved):
    model, _, _, batch = tiny_target()
    optimizer = torch.optim.SGD([model.fc.weight], lr=0.1)
    step = load(saved, model, optimizer)
    optimizer.param_groups[0]["weight_decay"] = 0.1
    with pytest.raises(CaptureError, match="flags in them"):
        step(*batch)


def test_a_captured_step_is_saved_whole(tmp_path):
    losses = []
    for loaded in (False, True):
        target = transformer("adamw")
        if loaded:
            step = load(tmp_path / "step", target.model, target.optimizer)
        else:
            step = make_step(lambda graph: random_plan(graph, 1))(target)
            step.save(tmp_path / "step")
        torch.manual_seed(1)
        losses.append([*(step(target.batch) for _ in range(3)), step.outputs["logits"]])
    assert all(map(torch.equal, *losses))


def test_state_that_neither_the_optimizer_nor_the_step_has(tmp_path):
    target = transformer("adamw")
    eager_step(target.model, target.loss_fn, target.optimizer, target.batch)()
    make_step(lambda graph: random_plan(graph, 1))(target).save(tmp_path / "step")
    fresh = transformer("adamw")
    with pytest.raises(PlanError, match="load its state_dict first"):
        load(tmp_path / "step", fresh.model, fresh.optimizer)
    fresh.optimizer.load_state_dict(target.optimizer.state_dict())
    load(tmp_path / "step", fresh.model, fresh.optimizer)(fresh.batch)


def test_a_folder_that_is_not_there(tmp_path):
    model, _, optimizer, batch = tiny_target()
    step = Step(Subject(model, optimizer), tiny_compiled(model, optimizer, batch))
    with pytest.raises(CacheError, match="the step cannot be written"):
        step.save(tmp_path / "no" / "where")


def test_a_full_disk_leaves_the_old_file_and_nothing_else(saved, monkeypatch):
    def full(*args, **kwargs):
        raise OSError(errno.ENOSPC, "No space left on device")

    before = saved.read_bytes()
    model, _, optimizer, batch = tiny_target()
    step = Step(Subject(model, optimizer), tiny_compiled(model, optimizer, batch))
    monkeypatch.setattr(zipfile.ZipFile, "writestr", full)
    with pytest.raises(CacheError, match="got: No space left on device"):
        step.save(saved)
    assert saved.read_bytes() == before
    assert [path.name for path in saved.parent.iterdir()] == [saved.name]


def test_what_is_no_plain_data_is_not_saved(tmp_path):
    model, _, optimizer, batch = tiny_target()
    made = tiny_compiled(model, optimizer, batch)
    binding = replace(made.binding, output_leaves=(Verbatim(print),))
    step = Step(Subject(model, optimizer), replace(made, binding=binding))
    with pytest.raises(CacheError) as caught:
        step.save(tmp_path / "step")
    assert str(caught.value) == (
        "save: the step holds a Python object that cannot be saved\n"
        "  expected: outputs and batches of tensors, numbers, texts, tuples, lists and dicts\n"
        "  got: <built-in function print>\n"
        "  next: return plain data from loss_fn beside the loss"
    )


class Gained(torch.nn.Module):
    def __init__(self, gain=2.0, by=1.0, p=0.1):
        super().__init__()
        self.fc, self.drop = torch.nn.Linear(4, 2), torch.nn.Dropout(p)
        self.gain, self.options, self.calls, self.unread = gain, SimpleNamespace(by=by), 0, 1

    def forward(self, x):
        self.calls = len(x)
        return self.drop(self.fc(x)) * self.gain * self.options.by


def stepped(model, loss, batch):
    module, optimizer = fresh(model)
    return peakfold.optimize_step(module, loss, optimizer, batch, iterations=1, verify=False)


def fresh(model):
    return model, torch.optim.SGD(model.parameters(), lr=0.1)


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"gain": 3.0}, "gain is 3.0 instead of 2.0"),
        ({"by": 3.0}, "options.by is 3.0 instead of 1.0"),
        ({"p": 0.2}, "drop.p is 0.2 instead of 0.1"),
    ],
)
def test_numbers_that_the_model_reads_are_seen(tmp_path, changed, words):
    """At loading, and before each step; what the forward pass sets itself is no such number."""
    path, model = tmp_path / "step.peakfold", Gained()
    model.calls = 3
    stepped(model, lambda m, x: m(x).sum(), (torch.ones(3, 4),)).save(path)
    with pytest.raises(PlanError, match=words):
        load(path, *fresh(Gained(**changed)))
    model = Gained()
    model.unread = 7
    step = load(path, *fresh(model))
    step(torch.ones(3, 4))
    other = Gained(**changed)
    model.gain, model.options, model.drop.p = other.gain, other.options, other.drop.p
    with pytest.raises(CaptureError, match=words):
        step(torch.ones(3, 4))


@pytest.mark.parametrize("value", [0.5, 2, "sum", True, None])
def test_what_is_no_tensor_in_a_batch_is_seen(tmp_path, value):
    def loss(model, x, kind):
        return model(x).sum() * (2 if kind == value else 1)

    path, model, batch = tmp_path / "step.peakfold", torch.nn.Linear(4, 2), (torch.ones(3, 4), value)
    stepped(model, loss, batch).save(path)
    step = load(path, *fresh(model))
    step(*batch)
    with pytest.raises(CaptureError, match=f"batch.1 is 0.25 instead of {value!r}"):
        step(batch[0], 0.25)


@pytest.mark.parametrize(
    ("other", "said"),
    [
        (lambda x: (x, True), "batch.1 is True instead of 1"),
        (lambda x: (x, 1.0), "batch.1 is 1.0 instead of 1"),
        (lambda x: (x, x), "batch.1 is "),
        (lambda x: (3, 1), "batch.0 is 3 instead of "),
        (lambda x: (x[:2], 1), "batch.0 is torch.float32 [2, 3]"),
        (lambda x: (x.t().contiguous().t(), 1), "of strides [1, 3]"),
        (lambda x: (x.double(), 1), "batch.0 is torch.float64"),
        (lambda x: (x.to("meta"), 1), "on meta"),
        (lambda x: (x.clone().requires_grad_(), 1), "with a gradient instead of "),
    ],
)
def test_saved_guards_tell_every_kind_of_difference_in_a_batch(other, said):
    model, x = torch.nn.Identity(), torch.zeros(3, 3)
    guards = saved_guards(model, None, (x, 1))
    assert guards.check(model, None, (x.clone(), 1)) is None
    reason = guards.check(model, None, other(x))
    assert reason is not None
    assert said in reason
