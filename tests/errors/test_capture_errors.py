"""What capture says about programs that cannot be one graph."""

import re
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from peakfold.bridge.capture import capture_inference, capture_step
from peakfold.errors import CaptureError

BATCH = (torch.zeros(4, 6), torch.zeros(4, 3))
OFFER = "pass optimizer=None: the step leaves gradients, and the optimizer runs by itself"


def message(loss_fn, model=None, make=None, batch=BATCH):
    torch.manual_seed(0)
    model = nn.Linear(6, 3) if model is None else model
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1) if make is None else make(model)
    with pytest.raises(CaptureError) as caught:
        capture_step(model, loss_fn, optimizer, batch)
    assert caught.value.exit_code == 4
    return re.sub(rf"{re.escape(str(Path(__file__).resolve()))}:\d+", "FILE:LINE", str(caught.value))


def mse(model, x, y):
    return F.mse_loss(model(x), y)


def by_item(model, x, y):
    loss = mse(model, x, y)
    return loss * 2 if loss.item() > 1 else loss


def by_truth(model, x, y):
    loss = mse(model, x, y)
    if loss > 1:
        return loss * 2
    return loss


def by_shape(model, x, y):
    return model(x)[y > 0].sum()


def by_list(model, x, y):
    return model(x).sum() * y.tolist()[0][0]


@pytest.mark.parametrize(
    ("loss_fn", "line"),
    [
        (by_item, "return loss * 2 if loss.item() > 1 else loss"),
        (by_truth, "if loss > 1:"),
        (by_list, "return model(x).sum() * y.tolist()[0][0]"),
    ],
)
def test_python_that_reads_values(loss_fn, line):
    assert message(loss_fn) == (
        "capture: a value of a tensor is read to decide what Python does\n"
        f"  at: FILE:LINE: {line}\n"
        "  expected: control flow and shapes that depend on shapes and Python values only\n"
        "  next: use torch.cond, torch.where or masks, or move this out of the captured function"
    )


def test_shapes_that_depend_on_values():
    assert message(by_shape) == (
        "capture: the shape or value that aten.index.Tensor gives depends on its data\n"
        "  at: FILE:LINE: return model(x)[y > 0].sum()\n"
        "  expected: control flow and shapes that depend on shapes and Python values only\n"
        "  next: use torch.cond, torch.where or masks, or move this out of the captured function"
    )


def test_inference_that_reads_values():
    class Branch(nn.Module):
        def forward(self, x):
            return x if x.sum() > 0 else -x

    with pytest.raises(CaptureError, match=r"test_capture_errors.py:\d+: return x if x.sum\(\) > 0 else -x"):
        capture_inference(Branch(), torch.zeros(3))


def test_control_flow_operators():
    class Mapped(nn.Module):
        def forward(self, x):
            return torch._higher_order_ops.map(lambda row: row.sin(), x)

    with pytest.raises(CaptureError) as caught:
        capture_inference(Mapped(), torch.zeros(3, 2))
    assert caught.value.what == "the control flow operator map_impl cannot be part of one graph"
    assert caught.value.expected == "torch.cond, or while_loop without gradients"
    assert "test_capture_errors.py" in caught.value.where


def test_a_loss_that_is_no_scalar():
    assert message(lambda model, x, y: model(x)) == (
        "capture: the loss is not a scalar\n"
        "  expected: a tensor of one element\n"
        "  got: shape (4, 3)\n"
        "  next: reduce it: loss.mean() or loss.sum()"
    )


def test_a_loss_that_is_no_tensor():
    assert message(lambda model, x, y: {"loss": model(x).sum()}) == (
        "capture: loss_fn does not return a loss\n"
        "  expected: a scalar tensor, or (loss, outputs)\n"
        "  got: a dict\n"
        "  next: for a Hugging Face model: return model(**batch).loss"
    )


def test_a_loss_that_needs_no_gradient():
    assert message(lambda model, x, y: mse(model, x, y).detach()) == (
        "capture: the loss needs no gradient\n"
        "  expected: a loss that depends on a parameter with requires_grad=True\n"
        "  next: check for detach(), torch.no_grad(), and frozen parameters"
    )


@pytest.mark.parametrize("kept", [True, False])
@pytest.mark.parametrize(
    "result", [lambda loss: loss, lambda loss: (loss, {"loss": loss}), torch.Tensor.detach]
)
def test_a_loss_function_that_runs_backward_itself(kept, result):
    def loss_fn(model, x, y):
        loss = mse(model, x, y)
        loss.backward(retain_graph=kept)
        return result(loss)

    assert message(loss_fn) == (
        "capture: loss_fn runs backward() itself\n"
        "  expected: a function that returns the loss; the step does the rest\n"
        "  got: a gradient in weight.grad\n"
        "  next: leave backward() away, or use torch.autograd.grad for gradients that the loss depends on"
    )


def test_optimizers_that_need_a_closure():
    text = message(mse, make=lambda m: torch.optim.LBFGS(m.parameters()))
    assert text.startswith("capture: the optimizer LBFGS cannot be captured\n")
    assert text.endswith(f"  next: {OFFER}")


class Conditional(torch.optim.Optimizer):
    @torch.no_grad()
    def step(self):
        for parameter in self.param_groups[0]["params"]:
            if parameter.norm().item() > 1:
                parameter.sub_(parameter.grad, alpha=self.param_groups[0]["lr"])


def test_optimizers_that_branch_on_what_they_compute():
    assert message(mse, make=lambda m: Conditional(m.parameters(), {"lr": 0.1})) == (
        "capture: the optimizer Conditional cannot be captured\n"
        "  expected: an optimizer whose step() needs gradients only, and whose state is tensors\n"
        "  got: the optimizer decides control flow by a number that is read from a tensor\n"
        f"  next: {OFFER}"
    )


def test_fused_optimizers():
    assert message(mse, make=lambda m: torch.optim.AdamW(m.parameters(), fused=True)) == (
        "capture: the optimizer AdamW cannot be captured\n"
        "  expected: an optimizer whose step() needs gradients only, and whose state is tensors\n"
        "  got: fused=True\n"
        f"  next: {OFFER}"
    )


class Counting(torch.optim.Optimizer):
    def __init__(self, parameters, work):
        super().__init__(parameters, {"lr": 0.1})
        self.work = work

    @torch.no_grad()
    def step(self):
        for parameter in self.param_groups[0]["params"]:
            self.work(self.state[parameter], parameter, self.param_groups[0]["lr"])


@pytest.mark.parametrize(
    ("work", "got"),
    [
        (lambda state, p, lr: state.update(step=state.get("step", 0) + 1), "state 'step' is a int"),
        (lambda state, p, lr: state.__setitem__("step", 1), "state 'step' is a int"),
        (
            lambda state, p, lr: state.__setitem__("b", p.grad.clone()),
            "state 'b' is made from the first gradients",
        ),
    ],
)
def test_optimizer_state_that_is_no_tensor_or_not_known(work, got):
    assert f"  got: {got}\n" in message(mse, make=lambda m: Counting(m.parameters(), work))


def test_numbers_that_cannot_be_followed():
    import math

    def work(state, p, lr):
        p.add_(p.grad, alpha=-math.exp(lr))

    text = message(mse, make=lambda m: Counting(m.parameters(), work))
    assert "  got: the optimizer computes a number in a way that cannot be followed: " in text
    assert text.endswith(f"  next: {OFFER}")


def test_numbers_that_are_tensors():
    decay = torch.tensor(0.1)
    text = message(mse, make=lambda m: torch.optim.SGD(m.parameters(), lr=0.1, weight_decay=decay))
    assert "  got: weight_decay is a tensor, not a number\n" in text
    rate = torch.tensor(0.1, requires_grad=True)
    text = message(mse, make=lambda m: torch.optim.SGD(m.parameters(), lr=rate))
    assert "  got: lr is a tensor, not a number\n" in text


def test_parameters_in_the_same_memory():
    model = nn.Sequential(nn.Linear(6, 3), nn.Linear(6, 3))
    flat = torch.zeros(36)
    model[0].weight, model[1].weight = nn.Parameter(flat[:18].view(3, 6)), nn.Parameter(flat[18:].view(3, 6))
    assert message(mse, model) == (
        "capture: 0.weight and 1.weight are different tensors in the same memory\n"
        "  expected: each parameter and buffer in memory of its own\n"
        "  next: copy one: .clone(), or use the same Parameter object for both: 0.weight"
    )


def test_optimizers_of_other_parameters():
    other = nn.Linear(2, 2)
    assert message(mse, make=lambda m: torch.optim.SGD(other.parameters(), lr=0.1)) == (
        "capture: the optimizer updates a tensor that is not a parameter of the model\n"
        "  expected: parameters of the model\n"
        "  got: a tensor of shape (2, 2)\n"
        "  next: make the optimizer from model.parameters() of the model that is passed"
    )


def test_parameters_held_elsewhere():
    model = nn.Linear(6, 3)
    weight = model.weight
    text = message(lambda m, x, y: F.mse_loss(m(x) @ weight @ weight.t(), y), model)
    assert text.startswith("capture: parameter weight is used through an object that is not the module's")


def test_sparse_gradients():
    class Sparse(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = nn.Embedding(5, 3, sparse=True)

        def forward(self, x):
            return self.embed(x)

    text = message(lambda m, x: m(x).sum(), Sparse(), batch=torch.zeros(2, dtype=torch.long))
    assert "next: for nn.Embedding, leave sparse=False" in text


def test_counters_in_python():
    class Counter(nn.Linear):
        calls = 0

        def forward(self, x):
            self.calls = self.calls + 1
            return super().forward(x)

    model = Counter(6, 3)
    model.calls = 3
    assert message(mse, model) == (
        "capture: the forward pass changes the Python attribute calls\n"
        "  at: FILE:LINE: self.calls = self.calls + 1\n"
        "  expected: a forward pass that changes tensors only: a captured step runs no Python of it\n"
        "  got: 3 before, 4 after, by each run\n"
        "  next: make it a buffer (register_buffer), return it beside the loss, or count outside of the model"
    )
    assert model.calls == 3


def test_code_that_fails_by_itself():
    text = message(lambda model, x, y: model(y).sum())
    assert text.startswith(
        "capture: the forward pass fails\n"
        "  at: FILE:LINE: text = message(lambda model, x, y: model(y).sum())\n"
        "  got: RuntimeError: "
    )


def test_mixed_devices():
    from torch._subclasses.fake_tensor import FakeTensorMode

    model = nn.Sequential(nn.Linear(6, 3), nn.Linear(3, 3))
    with FakeTensorMode():
        model[1].weight = nn.Parameter(torch.empty(3, 3, device="cuda"))
    assert message(mse, model) == (
        "capture: the model and its batch are on more than one device\n"
        "  expected: everything on cpu, where parameter 0.weight is\n"
        "  got: parameter 1.weight on cuda:0\n"
        "  next: move it: .to('cpu')"
    )


def test_a_model_of_which_a_part_is_on_the_meta_device():
    model = nn.Sequential(nn.Linear(6, 3), nn.Linear(3, 3, device="meta"))
    assert message(mse, model) == (
        "capture: the model is on more than one device\n"
        "  expected: everything on the meta device, or nothing: 0.weight is not\n"
        "  got: 1.weight on meta\n"
        "  next: make all of the model on one device, or move it to the meta device: .to('meta')"
    )


def test_an_optimizer_that_writes_its_numbers_into_tensors():
    def work(state, parameter, lr):
        parameter.sub_(torch.tensor([lr, 2 * lr]).sum())

    assert message(mse, make=lambda model: Counting(model.parameters(), work)) == (
        "capture: the optimizer Counting cannot be captured\n"
        "  expected: an optimizer whose step() needs gradients only, and whose state is tensors\n"
        "  got: the optimizer puts a number of param_groups into a tensor\n"
        f"  next: {OFFER}"
    )


def test_an_operator_that_fails_says_so_once(caplog):
    text = message(mse, batch=(torch.zeros(4, 5), torch.zeros(4, 3)))
    assert text.startswith("capture: the forward pass fails\n  at: FILE:LINE: ")
    assert "got: RuntimeError: " in text
    assert caplog.records == []


def test_a_complex_number_in_the_loss():
    assert "an operator is given a complex" in message(lambda model, x, y: mse(model, x, y) * 1j)
