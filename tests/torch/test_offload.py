"""Values that wait on the host: the same bits as eager, the bytes that were simulated, and no lost update."""

import builtins
import errno
import inspect
import os
import random
from pathlib import Path

import pytest
import torch
from tests.torch.test_plans import TARGETS, random_plan, transformer

from peakfold.bridge.capture.step import capture_step
from peakfold.bridge.codegen.emit import emit
from peakfold.bridge.codegen.packing import BITS
from peakfold.bridge.runtime import measure, offload
from peakfold.bridge.runtime.bind import Binder, Subject
from peakfold.bridge.runtime.compiled import compiled
from peakfold.bridge.runtime.source import load_source
from peakfold.bridge.runtime.step import Step
from peakfold.bridge.runtime.target import Target
from peakfold.bridge.runtime.verify import verify
from peakfold.cost.costs import Costs
from peakfold.errors import CacheError, PlanError
from peakfold.ir.graph import Value
from peakfold.ir.plan import (
    Arrive,
    Commit,
    CompressGap,
    Compute,
    Offload,
    OffloadGap,
    Pack,
    Plan,
    Prefetch,
    Release,
    Schedule,
    Unpack,
)
from peakfold.ir.text import parse_plan
from peakfold.ops.packing import Packing, packing
from peakfold.plan.check import check_plan, check_schedule
from peakfold.plan.schedule.lower import lower
from peakfold.plan.schedule.simulate import simulate
from peakfold.plan.schedule.transfers import Movable


def random_offloads(graph, seed, share=0.6):
    """Gaps between readers of activations, parameters and optimizer state, with random places inside."""
    draw = random.Random(seed)
    movable = Movable(graph)
    own = [node.id for node in graph.nodes if not node.is_view]
    place = {ident: at for at, ident in enumerate(own)}
    readers = {}
    for ident in own:
        for root in {graph.storage(value) for value in graph.node[ident].inputs}:
            readers.setdefault(root, []).append(ident)
    found = set()
    for value in [value for value in graph.storages() if movable.why_not(value) is None]:
        users = readers.get(value, [])
        for after, use in zip([value.node, *users], users, strict=False):
            begin, end = place.get(after, -1) + 1, place[use]
            if end - begin > 2 and draw.random() < share:
                gone, fetch = sorted(draw.sample(range(begin, end + 1), 2))
                found.add(OffloadGap(value, after, own[gone], own[fetch], use))
    return tuple(sorted(found))


def offloading(graph, seed, recompute=False):
    plan = random_plan(graph, seed) if recompute else Plan(graph.digest)
    return Plan(graph.digest, plan.recompute, plan.updates, plan.reuse, offload=random_offloads(graph, seed))


def make_step(plan_of, folder=None, source_of=str, steps_of=lambda graph, steps: steps):
    """Return what makes a Step that plans by ``plan_of(graph)``; steps and source may be tampered with."""

    def make(target):
        captured = capture_step(
            target.model, target.loss_fn, target.optimizer, target.batch, scaler=target.scaler
        )
        graph = captured.graph
        schedule = lower(graph, plan_of(graph))
        schedule = Schedule(tuple(steps_of(graph, list(schedule.steps))))
        source = source_of(emit(graph, schedule, folder=folder))
        made = compiled(captured, plan_of(graph), source, target.model, target.optimizer, target.batch)
        return Step(Subject(target.model, target.optimizer, target.scaler), made)

    return make


@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize("where", ["memory", "file"])
@pytest.mark.parametrize("name", TARGETS)
def test_bit_equal_to_eager(name, where, recompute, tmp_path):
    folder = tmp_path if where == "file" else None
    make = make_step(lambda graph: offloading(graph, 3, recompute), folder)
    found = verify(TARGETS[name](), make, steps=3)
    assert found.ok, found
    assert found.bit_equal
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("where", ["memory", "file"])
@pytest.mark.parametrize("name", TARGETS)
def test_measured_bytes_are_the_simulated_ones_after_each_step(name, where, tmp_path):
    target = TARGETS[name]()
    for _ in range(2):
        measure.eager_step(target.model, target.loss_fn, target.optimizer, target.batch)()
    captured = capture_step(target.model, target.loss_fn, target.optimizer, target.batch)
    graph = captured.graph
    plan = offloading(graph, 1, recompute=True)
    schedule = lower(graph, plan)
    assert check_schedule(graph, schedule) == []
    timeline = simulate(graph, Costs({}, {}), schedule)
    folder = tmp_path if where == "file" else None
    program = load_source(emit(graph, schedule, timeline, marks=True, folder=folder))
    made = compiled(captured, plan, "", target.model, target.optimizer, target.batch)
    batch = target.batch
    leaves = list(batch.values()) if isinstance(batch, dict) else list(batch)
    tensors, scalars = Binder(made, Subject(target.model, target.optimizer)).fetch(leaves)
    resident = measure.resident_bytes(target.model, target.optimizer, batch)
    curve = measure.live_curve(lambda: program(tensors, scalars, measure.mark), resident, tensors.values())
    assert curve == timeline.live
    assert min(curve) < resident, "user's tensors were away, too"


def test_an_offload_lowers_the_measured_peak():
    """Optimizer state that waits on the host while the loss is computed."""
    target = transformer()
    for _ in range(2):
        measure.eager_step(target.model, target.loss_fn, target.optimizer, target.batch)()
    captured = capture_step(target.model, target.loss_fn, target.optimizer, target.batch)
    kept = lower(captured.graph, Plan(captured.graph.digest))
    away = lower(captured.graph, offloading(captured.graph, 5))
    costs = Costs({}, {})
    peaks = [simulate(captured.graph, costs, schedule).peak for schedule in (kept, away)]
    assert peaks[1] < 0.9 * peaks[0]


# --- the emitted file -------------------------------------------------------------------------------


def test_the_emitted_file_needs_torch_alone():
    target = transformer()
    captured = capture_step(target.model, target.loss_fn, target.optimizer, target.batch)
    source = emit(captured.graph, lower(captured.graph, offloading(captured.graph, 1)))
    assert "peakfold" not in "".join(line for line in source.splitlines() if "import" in line)
    assert ".prefetch()" in source
    assert "lent=True" in source


def test_no_builtin_of_the_carried_text_is_the_name_of_an_operator():
    """In an emitted file ``sum`` is torch's, where the program adds up."""
    code = compile(inspect.getsource(offload), "offload", "exec")
    names, stack = set(), [code]
    while stack:
        item = stack.pop()
        names.update(item.co_names)
        stack += [inner for inner in item.co_consts if inspect.iscode(inner)]
    used = {name for name in names if hasattr(builtins, name)}
    assert "memoryview" in used
    assert [name for name in used if on_tensors(getattr(torch.ops.aten, name, None))] == []


def on_tensors(packet):
    """Whether some overload of an operator takes a tensor, so that a program may call it."""
    overloads = [getattr(packet, name) for name in packet.overloads()] if hasattr(packet, "overloads") else []
    return any("Tensor" in str(argument.type) for o in overloads for argument in o._schema.arguments)


def test_a_program_without_offloads_carries_nothing():
    target = transformer()
    captured = capture_step(target.model, target.loss_fn, target.optimizer, target.batch)
    source = emit(captured.graph, lower(captured.graph, Plan(captured.graph.digest)))
    assert "host" not in source


# --- packing ---------------------------------------------------------------------------------------


def packed(graph):
    """Indices of the pooling, and a mask."""
    text = "peakfold plan 1\ncompress output 1 of *max_pool* after use back before backward\n"
    name = next(node.name for node in graph.nodes if "max_pool2d_with_indices" in node.op.name)
    return parse_plan(text.replace("*max_pool*", name), graph)


def test_indices_are_packed_and_bit_equal():
    target = TARGETS["convolutions"]()
    graph = capture_step(target.model, target.loss_fn, target.optimizer, target.batch).graph
    (gap,) = packed(graph).compress
    assert packing(graph, gap.value) == Packing("int16", graph.nbytes(gap.value) // 4)
    found = verify(target, make_step(packed))
    assert found.ok, found
    assert found.bit_equal


class Masked(torch.nn.Module):
    """A mask that the backward pass reads."""

    def __init__(self):
        super().__init__()
        self.one, self.two = torch.nn.Linear(9, 33), torch.nn.Linear(33, 3)

    def forward(self, x):
        hidden = self.one(x)
        return self.two(hidden.masked_fill(hidden > 0.5, 0.0))


def masked():
    torch.manual_seed(0)
    model = Masked()
    optimizer = torch.optim.AdamW(model.parameters())
    return Target(model, lambda model, x: model(x).square().sum(), optimizer, (torch.randn(13, 9),))


def packed_mask(graph):
    (name,) = [node.name for node in graph.nodes if node.op.name == "aten.gt.Scalar"]
    return parse_plan(f"peakfold plan 1\ncompress {name} after use back before backward\n", graph)


def test_a_mask_is_packed_to_bits():
    target = masked()
    graph = capture_step(target.model, target.loss_fn, target.optimizer, target.batch).graph
    (gap,) = packed_mask(graph).compress
    assert packing(graph, gap.value) == Packing("bits", -(-13 * 33 // 8))
    found = verify(target, make_step(packed_mask))
    assert found.ok, found
    assert found.bit_equal


@pytest.mark.parametrize(("make", "plan_of"), [(TARGETS["convolutions"], packed), (masked, packed_mask)])
def test_measured_bytes_of_packed_values(make, plan_of):
    target = make()
    for _ in range(2):
        measure.eager_step(target.model, target.loss_fn, target.optimizer, target.batch)()
    captured = capture_step(target.model, target.loss_fn, target.optimizer, target.batch)
    graph, plan = captured.graph, plan_of(captured.graph)
    schedule = lower(graph, plan)
    timeline = simulate(graph, Costs({}, {}), schedule)
    program = load_source(emit(graph, schedule, timeline, marks=True))
    made = compiled(captured, plan, "", target.model, target.optimizer, target.batch)
    binder = Binder(made, Subject(target.model, target.optimizer))
    tensors, scalars = binder.fetch(list(target.batch))
    resident = measure.resident_bytes(target.model, target.optimizer, target.batch)
    assert measure.live_curve(lambda: program(tensors, scalars, measure.mark), resident) == timeline.live
    assert sum(isinstance(step, Pack | Unpack) for step in schedule.steps) == 2


@pytest.mark.parametrize("count", [1, 7, 8, 9, 64, 1001])
def test_bits_come_back(count):
    names = {"torch": torch}
    exec("\n".join(BITS), names)
    mask = torch.rand(count) < 0.5
    bits = names["pack_bits"](mask)
    assert bits.nbytes == -(-count // 8)
    assert torch.equal(names["unpack_bits"](bits, mask.shape, mask.stride()), mask)


def test_what_cannot_be_packed_is_refused():
    target = transformer()
    graph = capture_step(target.model, target.loss_fn, target.optimizer, target.batch).graph
    node = next(node for node in graph.nodes if node.op.name == "aten.gelu.default")
    plan = Plan(graph.digest, compress=(CompressGap(Value(node.id), node.id, node.id),))
    with pytest.raises(PlanError, match="it holds no truth values"):
        lower(graph, plan)
    assert "cannot be packed without loss" in str(check_plan(graph, plan)[0])


# --- what goes wrong --------------------------------------------------------------------------------


def state_of(target):
    """Everything that a step may change, copied."""
    held = {f"model {name}": value for name, value in target.model.state_dict().items()}
    for index, state in target.optimizer.state_dict()["state"].items():
        held |= {f"optimizer {index} {key}": value for key, value in state.items()}
    held |= {f"grad {name}": p.grad for name, p in target.model.named_parameters() if p.grad is not None}
    return {name: value.clone() for name, value in held.items()}


def seeded(step):
    """Run a step on a random stream that is the same each time."""
    torch.manual_seed(7)
    return step()


def same(one, other):
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize("steps_before", [0, 2])
def test_a_full_disk_is_seen_before_anything_is_changed(steps_before, tmp_path, monkeypatch):
    target = transformer()
    step = make_step(lambda graph: offloading(graph, 3), tmp_path)(target)
    for _ in range(steps_before):
        measure.eager_step(target.model, target.loss_fn, target.optimizer, target.batch)()
    before = state_of(target)

    def full(descriptor, offset, nbytes):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, "posix_fallocate", full)
        with pytest.raises(CacheError) as caught:
            step(target.batch)
    assert "No space left on device" in str(caught.value)
    assert "nothing was changed" in str(caught.value)
    assert same(state_of(target), before)
    step(target.batch)
    assert not same(state_of(target), before)


def test_a_folder_that_is_not_there(tmp_path):
    target = transformer()
    step = make_step(lambda graph: offloading(graph, 3), tmp_path / "gone")(target)
    with pytest.raises(CacheError, match="No such file or directory"):
        step(target.batch)


@pytest.mark.parametrize("failing", [1, 9, 60])
def test_a_write_that_fails_in_a_step_leaves_a_whole_step(failing, tmp_path, monkeypatch):
    target, eager = transformer(), transformer()
    step = make_step(lambda graph: offloading(graph, 3), tmp_path)(target)
    write, count = os.pwrite, [0]

    def fails(descriptor, content, offset):
        count[0] += 1
        if count[0] >= failing:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(descriptor, content, offset)

    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", fails)
        with pytest.raises(CacheError) as caught:
            seeded(lambda: step(target.batch))
    assert count[0] > failing
    assert "the step is complete" in str(caught.value)
    original = measure.eager_step(eager.model, eager.loss_fn, eager.optimizer, eager.batch)
    seeded(original)
    assert same(state_of(target), state_of(eager))
    seeded(lambda: step(target.batch))
    seeded(original)
    assert same(state_of(target), state_of(eager))


def test_a_step_that_is_broken_off_gives_every_tensor_back():
    """An error in the middle, while weights and optimizer state are away."""
    target = transformer()
    broken = {"at": 120}

    def interrupted(source):
        lines = source.splitlines()
        begin = next(i for i, line in enumerate(lines) if line.startswith("def run("))
        at = next(
            i for i in range(begin + 330, len(lines)) if lines[i].startswith("    ") and " = " in lines[i]
        )
        lines.insert(at, "    raise KeyboardInterrupt")
        return "\n".join(lines)

    step = make_step(lambda graph: offloading(graph, 3), source_of=interrupted)(target)
    sizes = {name: value.untyped_storage().nbytes() for name, value in target.model.state_dict().items()}
    weights = {name: value.clone() for name, value in target.model.state_dict().items()}
    with pytest.raises(KeyboardInterrupt):
        step(target.batch)
    assert broken
    for name, value in target.model.state_dict().items():
        assert value.untyped_storage().nbytes() == sizes[name]
        assert torch.equal(value, weights[name])


def test_tensors_that_share_a_storage_are_refused_before_anything_is_changed():
    target = transformer()
    captured = capture_step(target.model, target.loss_fn, target.optimizer, target.batch)
    plan = offloading(captured.graph, 3)
    program = load_source(emit(captured.graph, lower(captured.graph, plan)))
    made = compiled(captured, plan, "", target.model, target.optimizer, target.batch)
    binder = Binder(made, Subject(target.model, target.optimizer))
    tensors, scalars = binder.fetch(list(target.batch.values()))
    name = next(name for name in program.__globals__["host"].lent if tensors[name].dim() == 1)
    whole = torch.cat([tensors[name], tensors[name]])
    tensors[name] = whole[: len(tensors[name])]
    before = state_of(target)
    with pytest.raises(OSError, match=f"{name} shares its storage") as caught:
        program(tensors, scalars)
    assert caught.value.results is None
    assert same(state_of(target), before)


def test_between_steps_everything_is_back():
    """state_dict, an eager step in between, and a scheduler see the user's own tensors."""
    target, eager = transformer(), transformer()
    step = make_step(lambda graph: offloading(graph, 3))(target)
    mine, theirs = (torch.optim.lr_scheduler.StepLR(t.optimizer, 1, 0.5) for t in (target, eager))
    both = [measure.eager_step(t.model, t.loss_fn, t.optimizer, t.batch) for t in (target, eager)]
    held = dict(target.model.named_parameters())
    for own in (lambda: step(target.batch), both[0], lambda: step(target.batch)):
        seeded(own)
        seeded(both[1])
        mine.step()
        theirs.step()
        assert same(state_of(target), state_of(eager))
    assert all(held[name] is parameter for name, parameter in target.model.named_parameters())


# --- seeded faults ----------------------------------------------------------------------------------


def swap(steps, one, other):
    steps[one], steps[other] = steps[other], steps[one]
    return steps


def first(steps, kind, after=0):
    return next(at for at in range(after, len(steps)) if isinstance(steps[at], kind))


def state_moves(graph, steps, kind):
    return [
        at
        for at, step in enumerate(steps)
        if isinstance(step, kind) and step.buffer.value.node in graph.input
    ]


def without(steps, at):
    return steps[:at] + steps[at + 1 :]


def to_the_end(steps, at):
    return [*without(steps, at), steps[at]]


FAULTS = {
    "no copy out": lambda graph, steps: without(steps, first(steps, Offload)),
    "never released": lambda graph, steps: without(steps, first(steps, Release)),
    "no copy back": lambda graph, steps: without(steps, first(steps, Prefetch)),
    "read before it arrives": lambda graph, steps: without(steps, first(steps, Arrive)),
    "state that stays away": lambda graph, steps: to_the_end(
        without(steps, state_moves(graph, steps, Arrive)[0]), state_moves(graph, steps, Prefetch)[0]
    ),
    "released before it is copied": lambda graph, steps: swap(
        steps, first(steps, Offload), first(steps, Release)
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("name", TARGETS)
def test_a_faulty_schedule_is_refused(name, fault):
    target = TARGETS[name]()
    graph = capture_step(target.model, target.loss_fn, target.optimizer, target.batch).graph
    steps = list(lower(graph, offloading(graph, 3)).steps)
    assert check_schedule(graph, Schedule(tuple(steps))) == []
    assert check_schedule(graph, Schedule(tuple(FAULTS[fault](graph, list(steps)))))


def updated_while_it_leaves(graph, steps):
    """Start a copy out of a state before its update, and end it after: the old value would come back."""
    for at, step in enumerate(steps):
        updates = isinstance(step, Commit) or (
            isinstance(step, Compute) and any(reuse.kind == "update" for reuse in step.reuses)
        )
        if updates:
            value = Value(step.input) if isinstance(step, Commit) else step.reuses[0].operand
            buffer = next(s.buffer for s in steps if isinstance(s, Offload))
            moved = type(buffer)(value)
            moves = (Release(moved), Prefetch(moved), Arrive(moved))
            return [*steps[:at], Offload(moved), step, *moves, *steps[at + 1 :]]
    raise AssertionError


@pytest.mark.parametrize("name", TARGETS)
def test_a_lost_update_is_refused(name):
    target = TARGETS[name]()
    graph = capture_step(target.model, target.loss_fn, target.optimizer, target.batch).graph
    steps = list(lower(graph, offloading(graph, 3)).steps)
    assert check_schedule(graph, Schedule(tuple(updated_while_it_leaves(graph, steps))))


def only_floats(graph):
    """Whole numbers that come back wrong would be indices into nowhere."""
    plan = offloading(graph, 3)
    kept = tuple(gap for gap in plan.offload if graph.tensor_type(gap.value).dtype == "float32")
    return Plan(graph.digest, offload=kept)


@pytest.mark.parametrize("name", TARGETS)
def test_bytes_that_come_back_wrong_are_seen(name):
    """The copy back of each tensor is from a place that holds another's bytes."""
    right, wrong = "memmove(address, self.address + offset, nbytes)", "memmove(address, self.address, nbytes)"
    assert right in inspect.getsource(offload)
    found = verify(TARGETS[name](), make_step(only_floats, source_of=lambda text: text.replace(right, wrong)))
    assert not found.bit_equal


def test_what_cannot_be_moved_is_refused():
    target = transformer()
    graph = capture_step(target.model, target.loss_fn, target.optimizer, target.batch).graph
    view = next(node for node in graph.nodes if node.is_view)
    step = next(node for node in graph.nodes if not node.is_view)
    batch = next(given for given in graph.inputs if given.kind == "batch")
    for value, reason in (
        (Value(view.id), "it is a view of"),
        (Value(batch.id), "an input of kind batch"),
        (Value(10**9), "there is no such value"),
    ):
        gap = OffloadGap(value, value.node, step.id, step.id, step.id)
        with pytest.raises(PlanError, match=reason):
            lower(graph, Plan(graph.digest, offload=(gap,)))


def test_a_file_takes_its_space_before_the_step(tmp_path):
    carrier = offload.Threads(1 << 20, str(tmp_path))
    carrier.open()
    assert carrier.file is not None
    assert os.fstat(carrier.file).st_size == 1 << 20
    assert os.fstat(carrier.file).st_blocks * 512 >= 1 << 20
    kept = torch.arange(1000.0).t()
    carrier.out(offload.flat(kept), 64).result()
    back = torch.empty(1000)
    carrier.back(offload.flat(back), 64).result()
    carrier.rest()
    assert torch.equal(kept, back)
    assert not list(Path(tmp_path).iterdir())
