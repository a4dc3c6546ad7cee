"""Seeded faults: programs that are wrong in one place, and whether comparing them with the original tells."""

import ast
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from difflib import unified_diff
from functools import partial
from itertools import islice, pairwise

import torch

from benchmarks.case import Row
from benchmarks.random_plans import Subject, subject_of
from peakfold.bridge.runtime.compare import BOUND
from peakfold.ir.plan import Plan, Region
from peakfold.plan.fission.stages import stages

DRAWS = ("bernoulli", "native_dropout", "uniform", "normal", "rand")
PARTS = 2
ROUNDING = 2.0**-52
"""Of the largest number of a tensor: two right programs may agree in every bit by chance."""
FAR = 1000.0
"""As many times further off than two right programs are from each other: no rounding."""

Body = list[ast.stmt]
Faulty = Iterator[Callable[[Body], None]]
"""Each changes the statements of a step in one place."""


def wrong_slice(body: Body) -> Faulty:
    """A part reads the first places instead of its own."""
    for at, _ in enumerate(_calls_in_loops(body, "slice")):

        def change(other: Body, at: int = at) -> None:
            call = list(_calls_in_loops(other, "slice"))[at]
            start, stop = call.args[2], call.args[3]
            call.args[2], call.args[3] = ast.Constant(0), ast.BinOp(stop, ast.Sub(), start)

        yield change


def missing_part(body: Body) -> Faulty:
    """The first part is left out."""
    for at, _ in enumerate(_loops(body)):

        def change(other: Body, at: int = at) -> None:
            loop = list(_loops(other))[at]
            assert isinstance(loop.iter, ast.Call)
            loop.iter.args[0] = loop.iter.args[2]

        yield change


def missing_accumulate(body: Body) -> Faulty:
    """A part's share replaces those before it."""
    for at, _ in enumerate(_sums(body)):

        def change(other: Body, at: int = at) -> None:
            inside, place, name = list(_sums(other))[at]
            inside.insert(place, ast.parse(f"{name}.zero_()").body[0])

        yield change


def lost_update(body: Body) -> Faulty:
    """A new value does not reach the tensor of the caller."""
    for at in _updates(body):

        def change(other: Body, at: int = at) -> None:
            statement = other[at]
            call = _call(statement)
            assert call is not None
            if isinstance(call.func, ast.Attribute):
                other[at] = ast.Pass()
            else:
                call.args[0] = ast.Call(ast.Attribute(call.args[0], "clone", ast.Load()), [], [])

        yield change


def early_update(body: Body) -> Faulty:
    """A tensor is updated before its last reader has read the old value."""
    for at, name in _updates(body).items():
        before = [k for k in range(at) if _reads(body[k], name)]
        found = ((k, moved) for k in reversed(before) if (moved := _movable(body, at, k)) is not None)
        yield from (partial(_move, moved=moved, before=k) for k, moved in islice(found, 1))


def swapped_draws(body: Body) -> Faulty:
    """Two random operators draw in the other order."""
    draws = [k for k, statement in enumerate(body) if _draws(statement)]
    for first, second in pairwise(draws):
        moved = _movable(body, second, first)
        if moved is not None:
            yield partial(_move, moved=moved, before=first)


FAULTS: Mapping[str, Callable[[Body], Faulty]] = {
    "wrong slice": wrong_slice,
    "missing part": missing_part,
    "missing accumulate": missing_accumulate,
    "lost update": lost_update,
    "update before a late read": early_update,
    "swapped order of random operators": swapped_draws,
}
SPLIT = frozenset({"wrong slice", "missing part", "missing accumulate", "swapped order of random operators"})
"""Faults of programs that are split; the others are of the whole program."""


def faulty(source: str, fault: str, rng: random.Random) -> Iterator[str]:
    r"""Yield programs with a fault of a kind, at one place after the other, in a random order of them.

    Example:
        >>> step = "def step(tensors, scalars):\n    w = tensors['w']\n    w.copy_(w + 1)\n    return ()"
        >>> print(next(faulty(step, "lost update", random.Random(0))))
        def step(tensors, scalars):
            w = tensors['w']
            pass
            return ()
    """
    tree = ast.parse(source)
    places = list(FAULTS[fault](_body(tree)))
    for change in rng.sample(places, len(places)):
        other = deepcopy(tree)
        change(_body(other))
        yield ast.unparse(ast.fix_missing_locations(other))


@dataclass(frozen=True)
class Noise:
    """What rounding alone changes: how far two right programs are apart, that add up in another order.

    Attributes:
        right: what one of them leaves.
        most: the largest difference of each tensor.
    """

    right: Mapping[str, torch.Tensor]
    most: Mapping[str, float]

    @staticmethod
    def between(right: Mapping[str, torch.Tensor], other: Mapping[str, torch.Tensor]) -> "Noise":
        """Return the noise between what two right programs leave.

        Example:
            >>> zero, one = ({"w": torch.tensor([x], dtype=torch.float64)} for x in (0.0, 1e-17))
            >>> noise = Noise.between(zero, one)
            >>> noise.has_effect({"w": zero["w"] + 1e-15}), noise.has_effect({"w": zero["w"] + 1e-13})
            (False, True)
        """
        most = {
            name: max(_apart(value, other[name]), ROUNDING * _apart(value, 0))
            for name, value in right.items()
        }
        return Noise(right, most)

    def has_effect(self, found: Mapping[str, torch.Tensor] | None) -> bool:
        """Whether anything is further off than rounding explains, or the random stream is another one."""
        if found is None:
            return True
        return any(
            not _apart(value, found[name]) <= FAR * self.most[name] for name, value in self.right.items()
        )


def _apart(one: torch.Tensor, other: torch.Tensor | float) -> float:
    """The largest difference of two tensors."""
    return float((one.double() - other).abs().max()) if one.numel() else 0.0


def seeded(subject: Subject, source: str, fault: str, noise: Noise, count: int, rng: random.Random) -> Row:
    """Seed a kind of fault at up to so many places where it has an effect; return how many were told.

    Args:
        subject: what the program is of.
        source: the right program.
        fault: its kind.
        noise: of right programs: a place where a fault changes no more than that is none.
        count: places with an effect.
        rng: their order.
    """
    told = without = 0
    unseen: list[str] = []
    for other in faulty(source, fault, rng):
        if told + len(unseen) == count:
            break
        if subject.error(other) > BOUND:
            told += 1
        elif noise.has_effect(subject.results(other)):
            unseen.append(_difference(source, other))
        else:
            without += 1
    row: Row = {"seeded": told + len(unseen), "caught": told, "places without effect": without}
    return {**row, "unseen": unseen} if unseen else row


def faults(workload: str, optimizer: str, count: int, seed: int) -> list[Row]:
    """Return, for each kind of fault, how many were seeded into a workload's programs, and how many seen.

    Args:
        workload: its name.
        optimizer: its optimizer.
        count: places with an effect for each kind.
        seed: of the random stream.
    """
    subject, rng = subject_of(workload, optimizer), random.Random(f"{workload}/{optimizer}/{seed}")
    whole = subject.source(Plan(subject.graph.digest, updates="early"))
    split = subject.source(split_plan(subject))
    clean = max(subject.error(whole), subject.error(split))
    noise = noise_of(subject, whole, split)
    row: Row = {"workload": workload, "optimizer": optimizer, "count": count, "seed": seed}
    row["clean_error"] = clean
    for fault in FAULTS:
        row[fault] = seeded(subject, split if fault in SPLIT else whole, fault, noise, count, rng)
    return [row]


def noise_of(subject: Subject, whole: str, split: str) -> Noise:
    """Return the noise between a program that is not split and one that is.

    Raises:
        ValueError: one of them draws other numbers.
    """
    right, other = subject.results(whole), subject.results(split)
    if right is None or other is None:
        raise ValueError("a program without a fault leaves another random stream")
    return Noise.between(right, other)


def _difference(clean: str, other: str) -> str:
    """The lines that a fault changes."""
    lines = unified_diff(ast.unparse(ast.parse(clean)).splitlines(), other.splitlines(), n=0, lineterm="")
    return "; ".join(line.strip() for line in lines if line[:1] in "+-" and line[:3] not in ("+++", "---"))


def split_plan(subject: Subject) -> Plan:
    """Return the plan that splits all that can be along the batch, one region after the other."""
    axis = next((one for one in subject.long if one.name == "batch"), subject.long[0])
    pieces = stages(subject.prepared, axis)
    regions = tuple(Region(axis.name, PARTS, piece.runs, None, piece.anchor) for piece in pieces)
    return Plan(subject.graph.digest, regions=regions)


# --- what an emitted step is made of ---------------------------------------------------------------


def _body(tree: ast.Module) -> Body:
    step = next(node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == "step")
    return step.body


def _loops(body: Sequence[ast.stmt]) -> Iterator[ast.For]:
    for statement in body:
        if isinstance(statement, ast.For):
            yield statement
            yield from _loops(statement.body)


def _calls_in_loops(body: Body, name: str) -> Iterator[ast.Call]:
    for statement in body:
        if isinstance(statement, ast.For):
            for node in ast.walk(statement):
                if isinstance(node, ast.Call) and _name(node.func) == name and _is_of_part(node):
                    yield node


def _is_of_part(call: ast.Call) -> bool:
    """Whether a slice begins where the part does."""
    begins = ast.walk(call.args[2]) if len(call.args) > 3 else ()
    return any(_name(node).startswith("start") for node in begins)


def _sums(body: Body) -> Iterator[tuple[Body, int, str]]:
    """Statements of loops that add to a tensor that begins as zeros: where they stand, and its name."""
    zeros = {
        _name(target)
        for node in body
        if isinstance(node, ast.Assign) and "zero" in ast.unparse(node.value)
        for target in node.targets
    }
    for loop in _loops(body):
        for place, statement in enumerate(loop.body):
            call = _call(statement)
            if call is not None and call.args and _is_written(call) and _name(call.args[0]) in zeros:
                yield loop.body, place, _name(call.args[0])


def _updates(body: Body) -> dict[int, str]:
    """The first statement that writes each tensor of the caller, by its place."""
    given = {
        _name(node.targets[0])
        for node in body
        if isinstance(node, ast.Assign)
        and isinstance(node.value, ast.Subscript)
        and _name(node.value.value) == "tensors"
    }
    found: dict[str, int] = {}
    for at, statement in enumerate(body):
        for name in given:
            if _writes(statement, name):
                found.setdefault(name, at)
    return {at: name for name, at in sorted(found.items(), key=lambda item: item[1])}


def _writes(statement: ast.stmt, name: str) -> bool:
    call = _call(statement)
    if call is None or isinstance(statement, ast.For):
        return False
    if isinstance(call.func, ast.Attribute):
        return call.func.attr == "copy_" and _name(call.func.value) == name
    return bool(call.args) and _is_written(call) and _name(call.args[0]) == name


def _is_written(call: ast.Call) -> bool:
    """Whether a call writes its first argument."""
    return _name(call.func).split("__")[0].endswith("_") or "__" in _name(call.func)


def _reads(statement: ast.stmt, name: str) -> bool:
    """Whether a statement depends on a tensor: no gradient of a normalization has its bias in it."""
    call = _call(statement)
    unread = call is not None and "norm_backward" in _name(call.func) and "bias" in name
    return name in _loads(statement) and not _writes(statement, name) and not unread


def _draws(statement: ast.stmt) -> bool:
    call = _call(statement)
    return call is not None and _name(call.func).startswith(DRAWS)


def _call(statement: ast.stmt) -> ast.Call | None:
    value = statement.value if isinstance(statement, ast.Assign | ast.Expr) else None
    return value if isinstance(value, ast.Call) else None


def _name(node: ast.AST) -> str:
    return node.id if isinstance(node, ast.Name) else ""


def _loads(statement: ast.stmt) -> set[str]:
    if isinstance(statement, ast.Delete):
        return set()
    return {n.id for n in ast.walk(statement) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)}


def _stores(statement: ast.stmt) -> set[str]:
    return {n.id for n in ast.walk(statement) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}


def _movable(body: Body, at: int, before: int) -> list[int] | None:
    """The statements that must move with one to before another; None where it needs that."""
    needed, moved = _loads(body[at]), [at]
    for k in range(at - 1, before - 1, -1):
        if _stores(body[k]) & needed:
            if k == before or isinstance(body[k], ast.For):
                return None
            moved.append(k)
            needed |= _loads(body[k])
    return moved[::-1]


def _move(body: Body, moved: Sequence[int], before: int) -> None:
    taken = [body[k] for k in moved]
    for k in reversed(moved):
        del body[k]
    body[before:before] = taken
