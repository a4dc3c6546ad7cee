"""A plan that is given is refused before anything is measured or run."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from peakfold.errors import PlanError
from peakfold.ir.plan import Plan
from peakfold.ir.text import print_plan
from peakfold.pipeline import optimize_target, run
from peakfold.pipeline.given import _forms, require_plan
from peakfold.pipeline.optimize import optimize
from peakfold.pipeline.request import request
from peakfold.pipeline.task import Task

HEAD = "peakfold plan 1\n"
REFUSED = {
    "": "this is no plan of peakfold",
    "peakfold plan 99\n": "this is no plan of peakfold, or one of another version",
    "hello\n": "this is no plan of peakfold",
    "peakfold plan 1 for graph 0123456789abcdef (9 nodes)\n": "the plan is for another graph",
    f"{HEAD}recompote 0.addmm for its backward\n": "this is no decision",
    f"{HEAD}recompute nothing for its backward\n": "nothing",
    f"{HEAD}update after everything else\nupdate after everything else\n": "decided twice",
    f"{HEAD}move backward.0.mm to the start\n": "backward.0.mm",
    f"{HEAD}split nowhere into 4 over 0.addmm..1.gelu\n": "nowhere",
    f"{HEAD}    reuse nothing\nreuse nothing\n": "decided twice",
}


def task():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 5))

    def loss_fn(model, x, y):
        hidden = model(x).masked_fill(x[:, :1] > 0, -1.0)
        return F.cross_entropy(hidden, y)

    batch = (torch.randn(6, 8), torch.randint(5, (6,)))
    return Task(model, loss_fn, torch.optim.SGD(model.parameters(), lr=0.1), batch)


@pytest.mark.parametrize("text", REFUSED)
def test_a_bad_plan_is_refused_at_once(text, monkeypatch):
    def priced(*_):
        raise AssertionError("operators are measured")

    monkeypatch.setattr(run, "priced", priced)
    with pytest.raises(PlanError) as caught:
        optimize(task(), request(None, None, 0, 0, 0, "eager", True, plan=text))
    assert REFUSED[text] in str(caught.value)
    assert "line " in caught.value.where
    assert caught.value.exit_code == 2


def test_what_is_no_plan_is_refused_before_anything_is_captured():
    asked = request(None, None, 0, 0, 0, "eager", True, plan="hello\n")
    with pytest.raises(PlanError, match="this is no plan of peakfold"):
        optimize_target(None, asked)


def test_no_plan_of_any_form_of_the_program_is_refused():
    graph = task().capture().graph
    forms = {form.digest: form for form in _forms(graph)}
    assert len(forms) >= 3
    for form in forms.values():
        require_plan(print_plan(Plan(form.digest), form), graph)
        last = [node.name for node in form.nodes if not node.is_view][-1]
        require_plan(f"{HEAD}move {last} to the end\n", graph)


def test_of_several_forms_the_fault_is_of_the_one_where_most_is_right():
    graph = task().capture().graph
    own = {node.name for node in graph.nodes}
    form = next(one for one in _forms(graph) if {node.name for node in one.nodes} - own)
    made = next(node.name for node in form.nodes if node.name not in own)
    with pytest.raises(PlanError, match="line 3, column 6") as caught:
        require_plan(f"{HEAD}move {made} to the end\nmove nothing to the end\n", graph)
    assert "nothing" in str(caught.value)
