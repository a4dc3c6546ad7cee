"""What was recorded, as a Graph: dead nodes dropped, unused numbers dropped, everything named."""

from collections import Counter
from collections.abc import Container, Iterable, Mapping
from dataclasses import replace

from peakfold.ir.control import operands
from peakfold.ir.graph import Graph, Input, Node, Output, State, Value


def finish(
    inputs: Iterable[Input],
    nodes: Iterable[Node],
    outputs: tuple[Output, ...],
    state: tuple[State, ...],
    kept: Container[int] = (),
) -> Graph:
    """Return the graph of what is needed for the outputs and the state.

    An operator that draws random numbers is kept although nothing reads it: without it, what is
    drawn after it would not be what the original draws.

    Args:
        inputs: of the graph.
        nodes: in program order.
        outputs: what the program returns.
        state: what it replaces.
        kept: ids of inputs that stay although nothing reads them.
    """
    given = tuple(inputs)
    needed = live(tuple(nodes), [out.value for out in outputs] + [pair.output for pair in state])
    read = {value.node for node in needed for value in node.inputs} | {out.value.node for out in outputs}
    stay = tuple(i for i in given if i.kind not in ("scalar", "constant") or i.id in read or i.id in kept)
    return Graph(stay, tuple(_named(needed, given)), outputs, state)


def live(nodes: tuple[Node, ...], roots: list[Value]) -> tuple[Node, ...]:
    """Return the nodes that values need, and those that draw random numbers."""
    needed = {value.node for value in roots}
    kept: list[Node] = []
    for node in reversed(nodes):
        if node.id in needed or node.op.random:
            needed.update(value.node for value in node.inputs)
            kept.append(node)
    return tuple(reversed(kept))


def _named(nodes: tuple[Node, ...], inputs: tuple[Input, ...]) -> Iterable[Node]:
    owners = _owners(nodes, inputs)
    names = {Value(given.id): given.name for given in inputs}
    counts: Counter[str] = Counter(given.name for given in inputs)
    taken = set(counts)
    for node in nodes:
        module = owners.get(node.id, "") if node.origin.phase == "update" else node.origin.module
        stem = ".".join(part for part in (module, *_PHASES[node.origin.phase], _operation(node)) if part)
        counts[stem] += 1
        name = stem if counts[stem] == 1 else f"{stem}_{counts[stem] - 1}"
        while name in taken:
            counts[stem] += 1
            name = f"{stem}_{counts[stem] - 1}"
        taken.add(name)
        counts[name] += name != stem
        origin = replace(node.origin, module=module)
        names |= {value: _output_name(name, value, len(node.types)) for value in node.outputs}
        bodies = tuple(_inside(body, node, names) for body in node.bodies)
        yield replace(node, name=name, origin=origin, bodies=bodies)


def _output_name(name: str, value: Value, outputs: int) -> str:
    return name if outputs == 1 else f"{name}.{value.index}"


def _inside(body: Graph, node: Node, names: Mapping[Value, str]) -> Graph:
    """Return a graph that a node runs with everything named; inputs are called as what they are given."""
    taken: set[str] = set()
    inputs = []
    for given, value in zip(body.inputs, operands(node), strict=True):
        name, count = names[value], 0
        while name in taken:
            count += 1
            name = f"{names[value]}.{count}"
        taken.add(name)
        inputs.append(replace(given, name=name))
    return replace(body, inputs=tuple(inputs), nodes=tuple(_named(body.nodes, tuple(inputs))))


_PHASES: dict[str, tuple[str, ...]] = {"forward": (), "backward": ("backward",), "update": ("update",)}


def _operation(node: Node) -> str:
    parts = node.op.name.split(".")
    return parts[1].strip("_") if len(parts) > 1 else parts[0]


def _owners(nodes: tuple[Node, ...], inputs: tuple[Input, ...]) -> dict[int, str]:
    """Return the parameter that each node of the update works for."""
    owner = {given.id: given.name for given in inputs if given.kind == "parameter"}
    owner |= {given.id: given.name.rpartition(".")[0] for given in inputs if given.kind == "optimizer"}
    for node in nodes:
        if node.origin.phase != "update":
            continue
        names = {owner[value.node]: None for value in node.inputs if value.node in owner}
        if len(names) == 1:
            owner[node.id] = next(iter(names))
    return owner
