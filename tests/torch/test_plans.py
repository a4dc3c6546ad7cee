"""Captured steps, planned, emitted and run: the same bits as eager, the bytes that were simulated."""

import random

import pytest
import torch
from torch.nn import functional

from peakfold.bridge.capture.step import capture_inference, capture_step
from peakfold.bridge.codegen.emit import emit
from peakfold.bridge.runtime import measure
from peakfold.bridge.runtime.bind import Binder, Subject
from peakfold.bridge.runtime.compiled import compiled
from peakfold.bridge.runtime.load import load
from peakfold.bridge.runtime.source import load_source
from peakfold.bridge.runtime.step import Step
from peakfold.bridge.runtime.target import Target
from peakfold.bridge.runtime.verify import observe, verify
from peakfold.cost.costs import Costs
from peakfold.ir.plan import Plan, Recompute
from peakfold.plan.schedule.arrays import tabulate
from peakfold.plan.schedule.frame import frame
from peakfold.plan.schedule.lower import lower
from peakfold.plan.schedule.simulate import simulate

OPTIMIZERS = {
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=0.1),
    "momentum": lambda parameters: torch.optim.SGD(
        parameters, lr=0.1, momentum=0.9, dampening=0.1, weight_decay=0.01
    ),
    "adam": lambda parameters: torch.optim.Adam(parameters, lr=0.01),
    "adamw": lambda parameters: torch.optim.AdamW(parameters, lr=0.01, weight_decay=0.1),
}


class Block(torch.nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = torch.nn.LayerNorm(width)
        self.qkv = torch.nn.Linear(width, 3 * width)
        self.up = torch.nn.Linear(width, 2 * width)
        self.down = torch.nn.Linear(2 * width, width)
        self.drop = torch.nn.Dropout(0.1)

    def forward(self, x):
        q, k, v = self.qkv(self.norm(x)).chunk(3, dim=-1)
        scores = self.drop((q @ k.transpose(1, 2) / 4).softmax(-1))
        x = x + scores @ v
        return x + self.drop(self.down(functional.gelu(self.up(x))))


class Transformer(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = torch.nn.Embedding(31, 16)
        self.blocks = torch.nn.Sequential(Block(16), Block(16))
        self.head = torch.nn.Linear(16, 31, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, tokens):
        return self.head(self.blocks(self.embed(tokens)))


class Convolutions(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.stack = torch.nn.Sequential(
            torch.nn.Conv2d(3, 8, 3, padding=1),
            torch.nn.BatchNorm2d(8),
            torch.nn.ReLU(inplace=True),
            torch.nn.MaxPool2d(2),
            torch.nn.Conv2d(8, 8, 3, padding=1),
            torch.nn.BatchNorm2d(8),
            torch.nn.ReLU(inplace=True),
            torch.nn.Dropout(0.1),
            torch.nn.Flatten(),
            torch.nn.Linear(8 * 16, 5),
        )

    def forward(self, image):
        return self.stack(image)


def transformer(optimizer="adamw"):
    torch.manual_seed(0)
    model = Transformer()
    tokens = torch.randint(0, 31, (3, 12))
    batch = {"tokens": tokens, "labels": tokens.roll(1)}

    def loss_fn(model, tokens, labels):
        logits = model(tokens)
        return functional.cross_entropy(logits.flatten(0, 1), labels.flatten()), {"logits": logits}

    return Target(model, loss_fn, OPTIMIZERS[optimizer](model.parameters()), batch)


def convolutions(optimizer="momentum"):
    torch.manual_seed(0)
    model = Convolutions()
    batch = (torch.randn(4, 3, 8, 8), torch.randint(0, 5, (4,)))
    return Target(
        model,
        lambda model, x, y: functional.cross_entropy(model(x), y),
        OPTIMIZERS[optimizer](model.parameters()),
        batch,
    )


TARGETS = {"transformer": transformer, "convolutions": convolutions}


def random_plan(graph, seed, share=0.4):
    """A plan that drops and computes again much of what the forward pass made."""
    draw = random.Random(seed)
    readers = readers_of(graph)
    tables = tabulate(graph, Costs({}, {}))
    placed = frame(tables, ())
    droppable = placed.droppable
    last = int(tables.nodes[~placed.late][-1])
    wanted = []
    for node in graph.nodes:
        if node.id not in tables.step_of or not droppable[tables.step_of[node.id]]:
            continue
        late = [reader for reader in readers.get(node.id, ()) if reader.origin.phase == "backward"]
        if draw.random() < share:
            use = late[0].id if late else last
            wanted.append(Recompute(node.id, use, draw.random() < 0.5))
    return Plan(graph.digest, tuple(sorted(wanted)), draw.choice(["early", "last"]), draw.random() < 0.7)


def readers_of(graph):
    """Nodes that are no views and read a node's storages, through views too, in program order."""
    found = {}
    for node in graph.nodes:
        for root in {graph.storage(value).node for value in node.inputs} if not node.is_view else ():
            found.setdefault(root, []).append(node)
    return found


def make_step(plan_of, schedule_of=lambda graph, schedule: schedule, source_of=str):
    """Return a MakeStep that plans by ``plan_of(graph)``; schedule and source may be tampered with."""

    def make(target):
        subject = Subject(target.model, target.optimizer, target.scaler)

        def program(batch):
            captured = capture_step(
                target.model, target.loss_fn, target.optimizer, batch, scaler=target.scaler
            )
            plan = plan_of(captured.graph)
            schedule = schedule_of(captured.graph, lower(captured.graph, plan))
            source = source_of(emit(captured.graph, schedule))
            return compiled(captured, plan, source, target.model, target.optimizer, batch)

        return Step(subject, program(target.batch), program)

    return make


PLANS = {
    "none": lambda graph: Plan(graph.digest, (), "last", False),
    "early": lambda graph: Plan(graph.digest),
    "random 1": lambda graph: random_plan(graph, 1),
    "random 2": lambda graph: random_plan(graph, 2, 0.9),
}


CASES = [
    *((name, optimizer, "random 1") for name in TARGETS for optimizer in OPTIMIZERS),
    *((name, "adamw", plan) for name in TARGETS for plan in PLANS if plan != "random 1"),
]


@pytest.mark.parametrize(("name", "optimizer", "plan"), CASES)
def test_bit_equal_to_eager_over_several_steps(name, optimizer, plan):
    found = verify(TARGETS[name](optimizer), make_step(PLANS[plan]), steps=4)
    assert found.ok, found
    assert found.bit_equal


@pytest.mark.parametrize("name", TARGETS)
def test_equal_in_float64(name):
    found = verify(TARGETS[name](), make_step(PLANS["random 1"]), precision="float64")
    assert found.ok, found
    assert found.dtype == "float64"


def test_gradients_alone_add_to_what_is_there():
    target = transformer()
    target = Target(target.model, target.loss_fn, None, target.batch)
    found = verify(target, make_step(PLANS["random 1"]), steps=3)
    assert found.ok, found


@pytest.mark.parametrize("factor", [4.0, 1e30])
def test_bfloat16_and_a_gradient_scaler(factor):
    """A scale of 1e30 makes gradients infinite: no update, and the scale is halved."""
    plain = transformer()

    def loss_fn(model, tokens, labels):
        with torch.autocast("cpu", torch.bfloat16):
            logits = model(tokens)
        return functional.cross_entropy(logits.float().flatten(0, 1), labels.flatten()), logits

    scaler = torch.amp.GradScaler("cpu", init_scale=factor, growth_interval=2)
    target = Target(plain.model, loss_fn, plain.optimizer, plain.batch, scaler)
    found = verify(target, make_step(PLANS["random 1"]))
    assert found.ok, found


def test_inference_returns_the_outputs_and_is_saved(tmp_path):
    model = Convolutions().eval()
    image = torch.randn(2, 3, 8, 8)
    captured = capture_inference(model, (image,))
    plan = Plan(captured.graph.digest)
    source = emit(captured.graph, lower(captured.graph, plan))
    made = compiled(captured, plan, source, model, None, (image,), inference=True)
    step = Step(Subject(model), made)
    with torch.no_grad():
        wanted = model(image)
    assert torch.equal(step(image), wanted)
    step.save(tmp_path / "inference")
    assert torch.equal(load(tmp_path / "inference", model, None)(image), wanted)


def test_groups_frozen_parameters_and_parameters_without_gradient():
    model = Transformer()
    model.unused = torch.nn.Linear(2, 2)
    model.blocks[0].norm.requires_grad_(False)
    groups = [
        {"params": model.blocks[0].parameters(), "lr": 0.1, "weight_decay": 0.0},
        {"params": [*model.blocks[1].parameters(), *model.unused.parameters()], "lr": 0.01},
        {"params": [model.embed.weight], "momentum": 0.5, "nesterov": True},
    ]
    optimizer = torch.optim.SGD(groups, lr=0.2, weight_decay=0.1)
    tied = transformer()
    target = Target(model, tied.loss_fn, optimizer, tied.batch)
    found = verify(target, make_step(PLANS["random 1"]))
    assert found.ok, found


@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize("name", TARGETS)
def test_measured_bytes_are_the_simulated_ones_after_each_step(name, plan):
    target = TARGETS[name]()
    batch = target.batch
    for _ in range(2):
        measure.eager_step(target.model, target.loss_fn, target.optimizer, batch)()
    captured = capture_step(target.model, target.loss_fn, target.optimizer, batch)
    graph, decided = captured.graph, PLANS[plan](captured.graph)
    schedule = lower(graph, decided)
    timeline = simulate(graph, Costs({}, {}), schedule)
    program = load_source(emit(graph, schedule, timeline, marks=True))
    binder = Binder(
        compiled(captured, decided, "", target.model, target.optimizer, batch),
        Subject(target.model, target.optimizer),
    )
    leaves = list(batch.values()) if isinstance(batch, dict) else list(batch)
    tensors, scalars = binder.fetch(leaves)
    resident = measure.resident_bytes(target.model, target.optimizer, batch)
    assert resident == timeline.resident
    curve = measure.live_curve(lambda: program(tensors, scalars, measure.mark), resident)
    assert curve == timeline.live


def test_measured_peaks_of_both():
    target = transformer()
    eager, mine = (
        observe(target, make, measure=True).measured for make in (None, make_step(PLANS["random 1"]))
    )
    assert mine.before_bytes == eager.before_bytes
    assert mine.before_bytes < mine.peak_bytes < eager.peak_bytes


def test_verify_leaves_the_target_and_the_random_stream_alone():
    target = transformer()
    before = {name: value.clone() for name, value in target.model.state_dict().items()}
    stream = torch.get_rng_state()
    verify(target, make_step(PLANS["early"]))
    assert torch.equal(torch.get_rng_state(), stream)
    assert not target.optimizer.state
    for name, value in target.model.state_dict().items():
        assert torch.equal(value, before[name])
