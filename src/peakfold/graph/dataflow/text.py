"""Dataflow as Python: each loop is a function that ends in a merge with itself."""

import math
from collections.abc import Iterator, Mapping, Sequence

from peakfold.graph.dataflow.form import Apply, Dataflow, Enter, Loop, Merge, Step, Switch, Wire
from peakfold.ir.graph import Arg, Symbol, Value


def print_dataflow(program: Dataflow) -> str:
    """Return a program as Python functions.

    They run where ``aten``, ``torch``, ``switch``, ``merge`` and ``alive`` are there: ``switch(p, x)`` gives
    the value for a predicate that does not hold, and the one for one that holds, one of them dead;
    ``merge(a, b)`` takes two values or two tuples, the second as a function of nothing where it is only
    asked for if the first is dead; ``alive(x, f)`` is a function that gives dead values where x is dead, else
    what f gives. Operators, and functions of loops, give dead values where they are given one.

    Example:
        >>> print(print_dataflow(Dataflow(("p", "x"), (Switch("p", "x", "a", "b"),), ("b",), ())))
        def program(p, x):
            a, b = switch(p, x)
            return (b,)
        <BLANKLINE>
    """
    functions = [_loop(loop) for loop in program.loops]
    functions.append(
        [
            f"def program({', '.join(program.inputs)}):",
            *map(_indented, _steps(program.steps)),
            f"    return ({_listed(program.outputs)})",
        ]
    )
    return "\n\n\n".join("\n".join(lines) for lines in functions) + "\n"


def _loop(loop: Loop) -> list[str]:
    parameters, following = ", ".join(loop.parameters), ", ".join(loop.goes_on)
    return [
        f"def {loop.name}({parameters}):",
        *map(_indented, _steps(loop.steps)),
        f"    return merge(({_listed(loop.leaves)}), lambda: {loop.name}({following}))",
    ]


def _steps(steps: Sequence[Step]) -> Iterator[str]:
    for step in steps:
        if isinstance(step, Apply):
            yield _apply(step)
        elif isinstance(step, Switch):
            yield f"{step.false}, {step.true} = switch({step.predicate}, {step.value})"
        elif isinstance(step, Merge):
            yield f"{step.made} = merge({step.first}, {step.second})"
        else:
            yield _enter(step)


def _apply(step: Apply) -> str:
    node = step.node
    wires = dict(zip(node.inputs, step.reads, strict=True))
    arguments = [_argument(arg, wires) for arg in node.args]
    arguments += [f"{name}={_argument(arg, wires)}" for name, arg in node.kwargs]
    function = node.op.name if step.gate is None else f"alive({step.gate}, {node.op.name})"
    return f"{_targets(step.makes)} = {function}({', '.join(arguments)})"


def _enter(step: Enter) -> str:
    return f"{_listed(step.makes)} = {step.loop}({', '.join(step.reads)})"


def _targets(makes: Sequence[Wire]) -> str:
    return makes[0] if len(makes) == 1 else ", ".join(makes)


def _argument(arg: Arg, wires: Mapping[Value, Wire]) -> str:
    if isinstance(arg, Value):
        return wires[arg]
    if isinstance(arg, tuple):
        return f"[{', '.join(_argument(item, wires) for item in arg)}]"
    if isinstance(arg, Symbol):
        return f"torch.device({arg.name!r})" if arg.kind == "device" else f"torch.{arg.name}"
    if isinstance(arg, float) and not math.isfinite(arg):
        return f'float("{arg}")'
    return repr(arg)


def _listed(wires: Sequence[Wire]) -> str:
    return f"{wires[0]}," if len(wires) == 1 else ", ".join(wires)


def _indented(line: str) -> str:
    return f"    {line}"
