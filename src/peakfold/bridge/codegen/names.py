"""Python identifiers: the user's names for values, the operators' names for functions."""

import keyword
import re
from collections.abc import Iterable

from peakfold.ir.graph import Graph, Node, Value
from peakfold.ir.names import unique

RESERVED = frozenset(
    (
        *("torch", "math", "step", "tensors", "scalars", "mark", "redraw", "rng", "now"),
        *("host", "run", "flat", "pack_bits", "unpack_bits"),
        *("holds", "goes_on", "over"),
    )
)


def identifier(text: str) -> str:
    """Return a Python identifier that reads like ``text``.

    Example:
        >>> identifier("encoder.layer.0.addmm"), identifier("0.weight"), identifier("class")
        ('encoder_layer_0_addmm', 'v0_weight', 'class_')
    """
    name = re.sub(r"\W+", "_", text, flags=re.ASCII).strip("_") or "v"
    if name[0].isdigit():
        name = f"v{name}"
    return f"{name}_" if keyword.iskeyword(name) else name


def operator_names(operators: Iterable[str]) -> dict[str, str]:
    """Return a short function name for each operator; the overload is in it only where two collide.

    Example:
        >>> operator_names(["aten.add.Tensor", "aten.mm.default", "aten.add.Scalar"])
        {'aten.add.Tensor': 'add', 'aten.mm.default': 'mm', 'aten.add.Scalar': 'add_Scalar'}
    """
    taken = set(RESERVED)
    found: dict[str, str] = {}
    for name in operators:
        namespace, base, overload = name.split(".", 2)
        short = _function(base if namespace in ("aten", "peakfold") else f"{namespace}_{base}")
        if short in taken and overload != "default":
            short = _function(f"{base}_{overload}")
        found[name] = unique(short, taken)
    return found


def _function(text: str) -> str:
    name = re.sub(r"\W+", "_", text, flags=re.ASCII)
    return f"{name}_" if keyword.iskeyword(name) else name


def run_name(base: str, k: int) -> str:
    """Return the name of a value's ``k``-th run.

    Example:
        >>> [run_name("x", k) for k in range(3)]
        ['x', 'x_again', 'x_again_2']
    """
    if k == 0:
        return base
    return f"{base}_again" if k == 1 else f"{base}_again_{k}"


class Namer:
    """Gives each value of each run one identifier, unique in the function."""

    def __init__(self, graph: Graph, functions: Iterable[str]) -> None:
        self._graph = graph
        self._taken = set(RESERVED) | set(functions)
        self._part = ""
        self._names: dict[tuple[Value, int], str] = {}

    def value(self, value: Value, k: int = 0) -> str:
        """Return the identifier of a value as run ``k`` makes it."""
        known = self._names.get((value, k))
        if known is not None:
            return known
        base = identifier(self._graph.name_of(value)) if k == 0 else self.value(value)
        if k == 0 and base in self._taken:
            base += self._part
        self._names[value, k] = unique(run_name(base, k), self._taken)
        return self._names[value, k]

    def call(self, value: Value, text: str) -> None:
        """Give a value's first run an identifier that reads like ``text``, unless it has one."""
        if (value, 0) not in self._names:
            self._names[value, 0] = self.fresh(text)

    def fresh(self, text: str) -> str:
        """Return an identifier that is used nowhere else."""
        return unique(identifier(text), self._taken)

    def share(self, value: Value, name: str) -> None:
        """Give a value's first run an identifier that is in use outside, where it means the same."""
        self._names[value, 0] = name

    def nested(self, graph: Graph, suffix: str) -> "Namer":
        """Return a namer of a graph in the same function; a name that is taken outside gets a suffix."""
        found = Namer(graph, ())
        found._taken, found._part = self._taken, suffix
        return found

    def stream(self, node: Node) -> str:
        """Return the identifier of the generator as it was before a node's first draw."""
        return unique(f"rng_{identifier(node.name)}", self._taken)
