"""Captured steps equal eager's, bit for bit, over several steps."""

import copy
import cProfile
from dataclasses import dataclass

import pytest
import torch
import torch.nn.functional as F
from tests.torch.capture_support import assert_same_state, eager, equal_steps, run, same
from torch import nn
from torch.utils.checkpoint import checkpoint

from peakfold.bridge.capture import capture_inference, capture_step
from peakfold.ir.types import ScalarType
from peakfold.workloads import load_target

torch.set_num_threads(1)


def sgd(model):
    return torch.optim.SGD(model.parameters(), lr=0.1)


def mse(model, x, y):
    return F.mse_loss(model(x), y)


@pytest.fixture
def batch():
    torch.manual_seed(0)
    return torch.randn(4, 6), torch.randn(4, 3)


def mlp(*between):
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(6, 8), *between, nn.ReLU(), nn.Linear(8, 3))


OPTIMIZERS = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1),
    "sgd-decay": lambda p: torch.optim.SGD(p, lr=0.1, weight_decay=0.01, maximize=True),
    "momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
    "momentum-damped": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, dampening=0.3, weight_decay=0.1),
    "nesterov": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.01),
    "foreach": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, foreach=True),
    "adam": lambda p: torch.optim.Adam(p, lr=0.01, weight_decay=0.01),
    "amsgrad": lambda p: torch.optim.Adam(p, lr=0.01, amsgrad=True),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.01, weight_decay=0.1),
    "adamw-foreach": lambda p: torch.optim.AdamW(p, lr=0.01, foreach=True),
    "int-lr": lambda p: torch.optim.SGD(p, lr=1),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=0.01, momentum=0.9),
    "adagrad": lambda p: torch.optim.Adagrad(p, lr=0.01, lr_decay=0.1),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("state", ["lazy", "made"])
def test_optimizers(name, state, batch):
    model = mlp(nn.Dropout(0.1))

    def make(model):
        optimizer = OPTIMIZERS[name](model.parameters())
        if state == "made":
            torch.manual_seed(3)
            eager(model, mse, optimizer, batch)
        return optimizer

    captured = equal_steps(capture_step, model, mse, make, batch)
    assert bool(captured.missing) is (
        state == "lazy" and "sgd" not in name and name not in ("int-lr", "adagrad")
    )


def test_learning_rate_schedules_change_the_input_and_nothing_else(batch):
    def between(optimizer):
        for group in optimizer.param_groups:
            group["lr"] *= 0.7
            group["betas"] = (0.8, 0.99)
            group["weight_decay"] *= 1.3

    captured = equal_steps(
        capture_step, mlp(), mse, lambda m: torch.optim.AdamW(m.parameters(), lr=0.01), batch, 4, between
    )
    scalars = {given.name for given in captured.graph.inputs if given.kind == "scalar"}
    assert scalars == {f"optimizer.0.{key}" for key in ("lr", "betas.0", "betas.1", "weight_decay", "eps")}


def test_numbers_of_the_update_are_computed_on_the_host_in_eagers_order(batch):
    model = mlp()
    captured = capture_step(model, mse, torch.optim.Adam(model.parameters(), lr=0.01), batch)
    host = [node.op.name for node in captured.graph.nodes if node.is_host]
    assert {"host.pow", "host.sub", "host.truediv", "host.neg", "aten._local_scalar_dense.default"} == set(
        host
    )
    constants = [
        arg
        for node in captured.graph.nodes
        if node.origin.phase == "update"
        for arg in (*node.args, *(arg for _, arg in node.kwargs))
        if isinstance(arg, float)
    ]
    assert set(constants) <= {0.5, 1.0}


def test_parameter_groups(batch):
    def make(model):
        first, *rest = model.parameters()
        return torch.optim.AdamW(
            [{"params": [first], "lr": 0.1, "weight_decay": 0.0}, {"params": rest}], lr=0.01
        )

    equal_steps(capture_step, mlp(), mse, make, batch)


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.unused, self.head = nn.Embedding(7, 5), nn.Linear(5, 5), nn.Linear(5, 7, bias=False)
        self.head.weight = self.embed.weight
        self.frozen = nn.Linear(5, 5).requires_grad_(False)

    def forward(self, x):
        return self.head(self.frozen(self.embed(x)))


@pytest.mark.parametrize("make", [sgd, lambda m: torch.optim.AdamW(m.parameters(), lr=0.1)])
def test_tied_unused_and_frozen_parameters(make):
    torch.manual_seed(1)
    x, y = torch.randint(0, 7, (3, 4)), torch.randint(0, 7, (12,))
    captured = equal_steps(
        capture_step, Tied(), lambda m, x, y: F.cross_entropy(m(x).flatten(0, 1), y), make, (x, y)
    )
    changed = {captured.graph.input[pair.input].name for pair in captured.graph.state}
    assert {name for name in changed if "exp" not in name and "step" not in name} == {"embed.weight"}


class Normalised(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 4, 3, padding=1, bias=False), nn.BatchNorm2d(4)
        self.drop, self.head = nn.Dropout2d(0.3), nn.Linear(4, 2)

    def forward(self, x):
        return self.head(self.drop(F.gelu(self.norm(self.conv(x)))).mean((2, 3)))


def test_batch_norm_and_channel_dropout():
    torch.manual_seed(1)
    batch = (torch.randn(4, 3, 5, 5), torch.randint(0, 2, (4,)))
    captured = equal_steps(capture_step, Normalised(), lambda m, x, y: F.cross_entropy(m(x), y), sgd, batch)
    changed = {captured.graph.input[pair.input].name for pair in captured.graph.state}
    assert {"norm.running_mean", "norm.running_var", "norm.num_batches_tracked"} <= changed


def test_channels_last_keeps_strides():
    torch.manual_seed(1)
    model = Normalised().to(memory_format=torch.channels_last)
    batch = (torch.randn(4, 3, 5, 5).to(memory_format=torch.channels_last), torch.randint(0, 2, (4,)))
    equal_steps(capture_step, model, lambda m, x, y: F.cross_entropy(m(x), y), sgd, batch)


def test_norms_that_clip(batch):
    model, twin = mlp(), mlp()
    ours, theirs = sgd(model), sgd(twin)
    for one in (ours, theirs):
        one.register_step_pre_hook(
            lambda optimizer, args, kwargs: (
                nn.utils.clip_grad_norm_(optimizer.param_groups[0]["params"], 0.05) and None
            )
        )
    captured = capture_step(model, mse, ours, batch)
    for _ in range(3):
        run(captured, model, ours, batch)
        eager(twin, mse, theirs, batch)
        assert_same_state(model, twin, ours, theirs)


def test_a_hook_that_closes_over_the_users_parameters(batch):
    model, twin = mlp(), mlp()
    ours, theirs = sgd(model), sgd(twin)
    for one, owner in ((ours, model), (theirs, twin)):
        held = list(owner.parameters())
        one.register_step_pre_hook(lambda o, a, k, held=held: nn.utils.clip_grad_norm_(held, 0.05) and None)
    captured = capture_step(model, mse, ours, batch)
    for _ in range(2):
        run(captured, model, ours, batch)
        eager(twin, mse, theirs, batch)
        assert_same_state(model, twin, ours, theirs)


def test_clipping_by_argument(batch):
    model, twin = mlp(), mlp()
    ours, theirs = sgd(model), sgd(twin)
    theirs.register_step_pre_hook(lambda o, a, k: nn.utils.clip_grad_norm_(twin.parameters(), 0.05) and None)
    captured = capture_step(model, mse, ours, batch, clip_grad_norm=0.05)
    run(captured, model, ours, batch)
    eager(twin, mse, theirs, batch)
    assert_same_state(model, twin, ours, theirs)


def test_autocast_inside_the_loss(batch):
    def loss(model, x, y):
        with torch.autocast("cpu", torch.bfloat16):
            return F.mse_loss(model(x).float(), y)

    captured = equal_steps(capture_step, mlp(), loss, sgd, batch)
    assert any("bfloat16" in str(node.types) for node in captured.graph.nodes)


def test_ambient_autocast(batch):
    with torch.autocast("cpu", torch.bfloat16):
        model, twin = mlp(), mlp()
        ours, theirs = sgd(model), sgd(twin)
        captured = capture_step(model, mse, ours, batch)
        eager(twin, mse, theirs, batch)
    run(captured, model, ours, batch)
    assert_same_state(model, twin, ours, theirs)
    assert "autocast" in captured.guards.check(model, ours, batch)


@pytest.mark.parametrize("make", [sgd, lambda m: torch.optim.Adam(m.parameters(), lr=0.1)])
def test_gradient_scaler_skips_infinite_steps(make, batch):
    def loss(model, x, y):
        return F.mse_loss(model(x) * 1e18, y)

    equal_steps(
        capture_step, mlp(), loss, make, batch, 4,
        scaler=lambda: torch.amp.GradScaler("cpu", init_scale=2.0**30, growth_interval=1),
    )  # fmt: skip
    equal_steps(
        capture_step, mlp(), mse, make, batch, 3,
        scaler=lambda: torch.amp.GradScaler("cpu", init_scale=2.0**7, growth_interval=2),
    )  # fmt: skip


class Square(torch.autograd.Function):
    @staticmethod
    def forward(context, x):
        context.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(context, gradient):
        (x,) = context.saved_tensors
        return 2 * x * gradient


def test_custom_function(batch):
    equal_steps(capture_step, mlp(), lambda m, x, y: F.mse_loss(Square.apply(m(x)), y), sgd, batch)


@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpointed_model_draws_dropout_once(reentrant, batch):
    block = nn.Sequential(nn.Linear(6, 6), nn.Dropout(0.5), nn.ReLU())

    class Checkpointed(nn.Module):
        def __init__(self):
            super().__init__()
            self.block, self.head = block, nn.Linear(6, 3)

        def forward(self, x):
            return self.head(checkpoint(self.block, self.head.weight.sum() + x, use_reentrant=reentrant))

    captured = equal_steps(capture_step, Checkpointed(), mse, sgd, batch)
    assert sum(node.op.random for node in captured.graph.nodes) == 1


def test_reentrant_checkpoint_of_inputs_that_need_no_gradient_trains_nothing(batch):
    model = nn.Sequential(nn.Linear(6, 6), nn.Linear(6, 3))

    def loss(model, x, y):
        return F.mse_loss(model[1](checkpoint(model[0], x, use_reentrant=True)), y)

    captured = equal_steps(capture_step, model, loss, sgd, batch)
    assert {captured.graph.input[pair.input].name for pair in captured.graph.state} == {"1.weight", "1.bias"}


class Attention(nn.Module):
    def __init__(self, fused):
        super().__init__()
        self.fused = fused
        self.qkv, self.out = nn.Linear(8, 24), nn.Linear(8, 8)

    def forward(self, x):
        q, k, v = self.qkv(x).unflatten(-1, (3, 2, 4)).permute(2, 0, 3, 1, 4)
        if self.fused:
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        else:
            scores = q @ k.transpose(-1, -2) / 2.0
            mask = torch.ones(scores.shape[-2:], dtype=torch.bool).tril()
            y = scores.masked_fill(~mask, float("-inf")).softmax(-1) @ v
        return self.out(y.transpose(1, 2).flatten(-2))


@pytest.mark.parametrize("fused", [True, False])
def test_attention(fused):
    torch.manual_seed(1)
    batch = (torch.randn(2, 5, 8), torch.randn(2, 5, 8))
    captured = equal_steps(capture_step, Attention(fused), mse, sgd, batch)
    names = {node.op.name for node in captured.graph.nodes}
    assert ("aten._scaled_dot_product_flash_attention_for_cpu.default" in names) is fused


def test_transformer_layer():
    torch.manual_seed(1)
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    batch = (torch.randn(2, 5, 8), torch.randn(2, 5, 8))
    equal_steps(capture_step, layer, mse, sgd, batch)


def test_lstm():
    torch.manual_seed(1)
    batch = (torch.randn(2, 5, 8), torch.randn(2, 5, 4))
    with torch.backends.mkldnn.flags(enabled=False):
        equal_steps(
            capture_step, nn.LSTM(8, 4, batch_first=True), lambda m, x, y: F.mse_loss(m(x)[0], y), sgd, batch
        )


def in_place(model, x, y):
    h = model(x)
    z = torch.zeros(4, 6)
    z[:, :3] = h
    z[:, 5] = h[:, 0].exp()
    z[1].mul_(2.0)
    z.t()[2].add_(1.0)
    z.view(2, 12)[0, 3:7] = y.flatten()[:4]
    z.narrow(1, 3, 3).sub_(z.narrow(1, 0, 3))
    z.unsqueeze_(0)
    z.diagonal(dim1=1, dim2=2).fill_(0.5)
    z.as_strided((2, 2), (6, 1), 1).mul_(3.0)
    z.squeeze_(0)
    z[0].copy_(z[1].detach())
    z = torch.relu_(z)
    out = torch.empty(4, 6)
    with torch.no_grad():
        torch.mul(z, 2.0, out=out)
    return (z * out).mean()


def test_in_place_operators_and_views(batch):
    equal_steps(capture_step, mlp(), in_place, sgd, batch)


def test_views_share_their_storage(batch):
    model = mlp()
    graph = capture_step(
        model, lambda m, x, y: (m(x).view(2, 6).t()[1:].expand(5, 2) * 2).sum(), sgd(model), batch
    ).graph
    for node in graph.nodes:
        if node.op.name.split(".")[1] in (
            "view",
            "t",
            "slice",
            "expand",
            "_unsafe_view",
            "unsqueeze",
            "permute",
        ):
            assert node.is_view, node
            assert graph.storage(node.outputs[0]) == graph.storage(node.inputs[0])
    split = capture_step(
        model, lambda m, x, y: sum(p.sum() * i for i, p in enumerate(m(x).split(1, 1))), sgd(model), batch
    ).graph
    node = next(node for node in split.nodes if "split" in node.op.name)
    assert len(node.types) == 3
    assert len({split.storage(value) for value in node.outputs}) == 1


@dataclass
class Answer:
    scores: torch.Tensor
    size: int


torch.utils._pytree.register_dataclass(Answer)


def test_outputs_of_any_form(batch):
    def loss(model, x, y):
        scores = model(x)
        return F.mse_loss(scores, y) + scores.sum(), {"answer": Answer(scores, 3), "rest": (x, None, "text")}

    model = mlp()
    captured = equal_steps(capture_step, model, loss, sgd, batch)
    expected = loss(model, *batch)[1]["answer"].scores
    _, outputs = run(captured, model, sgd(model), batch)
    assert same(outputs["outputs.answer.scores"], expected)
    assert [getattr(leaf, "value", leaf) for leaf in captured.binding.output_leaves] == [
        1,
        3,
        2,
        None,
        "text",
    ]


def test_outputs_of_a_hugging_face_model():
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(1)
    config = transformers.BertConfig(
        vocab_size=16, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8
    )
    model = transformers.BertForMaskedLM(config).train()
    ids = torch.randint(0, 16, (2, 5))
    batch = {"input_ids": ids, "labels": ids, "attention_mask": torch.ones_like(ids)}

    def loss(model, **batch):
        out = model(**batch, output_hidden_states=True)
        return out.loss, out

    captured = equal_steps(capture_step, model, loss, sgd, batch)
    names = [out.name for out in captured.graph.outputs]
    assert names[:3] == ["loss", "outputs.loss", "outputs.logits"]
    assert "outputs.hidden_states.1" in names
    tree = torch.utils._pytree.tree_unflatten(list(captured.binding.output_leaves), captured.binding.outputs)
    assert type(tree).__name__ == "MaskedLMOutput"


@pytest.mark.parametrize(
    "form",
    [
        lambda x, y: {"x": x, "y": {"target": [y]}},
        lambda x, y: (x, {"target": (y,)}),
        lambda x, y: [x, {"target": (y, "mean")}],
    ],
)
def test_nested_batches(form, batch):
    def loss(model, x, y):
        return F.mse_loss(model(x), y["target"][0])

    equal_steps(capture_step, mlp(), loss, sgd, form(*batch))


def test_one_tensor_is_a_batch_of_one(batch):
    equal_steps(capture_step, mlp(), lambda m, x: m(x).square().mean(), sgd, batch[0])


def test_gradients_alone_add_to_what_is_there(batch):
    model, twin = mlp(), mlp()
    first = capture_step(model, mse, None, batch)
    assert not first.graph.state
    for _ in range(2):
        captured = capture_step(model, mse, None, batch)
        run(captured, model, None, batch)
        mse(twin, *batch).backward()
        for left, right in zip(model.parameters(), twin.parameters(), strict=True):
            assert same(left.grad, right.grad)
    assert len(captured.graph.state) == 4


def test_inference_with_and_without_dropout(batch):
    model = mlp(nn.Dropout(0.5)).eval()
    captured = capture_inference(model, batch[0])
    assert same(run(captured, model, None, batch[0])[0], model(batch[0]).detach())
    assert not any(node.op.random for node in captured.graph.nodes)


def test_inference_of_fast_paths_equals_eager():
    torch.manual_seed(1)
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval()
    x = torch.randn(2, 5, 8)
    with torch.no_grad():
        expected = layer(x)
        captured = capture_inference(layer, x)
    assert same(run(captured, layer, None, x)[0], expected)


@pytest.mark.parametrize("device", ["meta", "cpu"])
def test_nothing_is_materialised_or_changed(device, batch):
    with torch.device(device):
        model = Normalised()
        x, y = torch.empty(4, 3, 5, 5), torch.zeros(4, dtype=torch.long)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    before = copy.deepcopy(model.state_dict()), dict(model.__dict__)
    generator = torch.get_rng_state()
    captured = capture_step(model, lambda m, x, y: F.cross_entropy(m(x), y), optimizer, (x, y))
    assert all(
        given.type.device == "cpu"
        for given in captured.graph.inputs
        if not isinstance(given.type, ScalarType)
    )
    assert not optimizer.state
    assert model.__dict__ == before[1]
    assert torch.equal(torch.get_rng_state(), generator)
    assert all(p.grad is None and p.device.type == device for p in model.parameters())
    if device == "cpu":
        assert all(same(left, before[0][name]) for name, left in model.state_dict().items())


def test_names_and_places(batch):
    model = mlp(nn.Dropout(0.1))
    graph = capture_step(model, mse, sgd(model), batch).graph
    names = [node.name for node in graph.nodes]
    assert len(set(names)) == len(names)
    assert {"0.addmm", "1.bernoulli", "3.backward.mm", "0.weight.update.add"} <= set(names)
    forward = next(node for node in graph.nodes if node.name == "0.addmm")
    assert forward.origin.module == "0"
    assert forward.origin.source.startswith("test_capture.py:")
    backward = [node for node in graph.nodes if node.origin.phase == "backward" and node.origin.module == "3"]
    assert backward
    assert all(node.origin.source.startswith("test_capture.py:") for node in backward)


def test_an_unread_draw_is_kept(batch):
    def loss(model, x, y):
        torch.rand(3)
        return mse(model, F.dropout(x, 0.5), y)

    captured = equal_steps(capture_step, mlp(), loss, sgd, batch)
    assert [n.stream for n in captured.graph.nodes if n.op.random] == [0, 1]


def test_constants_of_the_program(batch):
    scale = torch.tensor([1.0, 2.0, 3.0])

    def loss(model, x, y):
        return F.mse_loss(model(x) * scale * torch.tensor(0.5), y)

    captured = equal_steps(capture_step, mlp(), loss, sgd, batch)
    assert any(constant is scale for constant in captured.binding.constants)


def test_capture_is_deterministic(batch):
    model = mlp(nn.Dropout(0.1))
    digests = {
        capture_step(model, mse, torch.optim.AdamW(model.parameters()), batch).graph.digest for _ in range(3)
    }
    assert len(digests) == 1


def test_what_called_the_capture_is_no_code_of_the_model():
    model = torch.nn.Linear(3, 1)
    loss = eval("lambda m, x: m(x).sum()")
    graph = capture_step(model, loss, None, (torch.ones(2, 3),)).graph
    assert {node.origin.source for node in graph.nodes} == {""}


def test_operators_of_a_workloads_loss_name_its_file():
    target = load_target("bert", size="tiny")
    graph = capture_step(target.model, target.loss_fn, target.optimizer, target.batch).graph
    (node,) = (node for node in graph.nodes if node.op.name == "aten._log_softmax.default")
    assert node.origin.source.startswith("losses.py:")


def test_capture_under_a_profiler_leaves_it_running():
    profiler = cProfile.Profile()
    profiler.enable()
    capture_step(torch.nn.Linear(3, 1), lambda m, x: m(x).sum(), None, (torch.ones(2, 3),))
    sum(range(3))
    profiler.disable()
    assert any(entry.code == "<built-in method builtins.sum>" for entry in profiler.getstats())
