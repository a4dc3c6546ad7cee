"""The key of an operator's instance: everything that its seconds and hidden bytes depend on, as text."""

from collections.abc import Mapping
from dataclasses import dataclass

from peakfold.ir.graph import Arg, Graph, Node, Symbol, Value
from peakfold.ir.types import TensorType, Type
from peakfold.ops.inplace import LOOP, is_placed
from peakfold.ops.recurrent import keeps_workspace


@dataclass(frozen=True, slots=True)
class Machine:
    """What an operator runs on.

    Attributes:
        device: e.g. ``"cpu"`` or ``"cuda NVIDIA H200"``.
        cpu: model of the processor.
        torch: torch's version.
        threads: threads that torch uses.
    """

    device: str
    cpu: str
    torch: str
    threads: int

    def __str__(self) -> str:
        return f"{self.device}; {self.cpu}; torch {self.torch}; {self.threads} threads"


def key(graph: Graph, node: Node, machine: Machine) -> str:
    """Return the key of a node on a machine.

    Values that are read twice are named, since ``x * x`` reads half of what ``x * y`` does. Host
    numbers that are inputs count by their kind only.

    Example:
        >>> from peakfold.ir.graph import Input, Op
        >>> from peakfold.ir.types import tensor
        >>> x = Input(0, "x", "batch", tensor(2, 3))
        >>> mul = Node(1, "sq", Op("aten.mul.Tensor"), (Value(0), Value(0)), (), (tensor(2, 3),), (None,))
        >>> key(Graph((x,), (mul,), ()), mul, Machine("cpu", "EPYC", "2.13.0", 1))
        'aten.mul.Tensor(%0:float32[2,3]{3,1}@cpu, %0) on cpu; EPYC; torch 2.13.0; 1 threads'
    """
    names: dict[Value, str] = {}
    parts = [_text(graph, arg, names) for arg in node.args]
    parts += [f"{name}={_text(graph, arg, names)}" for name, arg in node.kwargs]
    parts += ["kept"] if keeps_workspace(node) else []
    parts += ["placed"] if is_placed(graph, node) else []
    return f"{node.op.name}({', '.join(parts)}) on {machine}"


def keys(graph: Graph, machine: Machine) -> Mapping[int, str]:
    """Return the key of each node that costs something by itself.

    Views and host numbers have none, nor have regions and control flow: they cost what is in them.
    """
    return {node.id: key(graph, node, machine) for node in graph.nodes if _costs_by_itself(node)}


def _costs_by_itself(node: Node) -> bool:
    return not (node.is_view or node.is_host or node.op.name == LOOP or node.bodies)


def _text(graph: Graph, arg: Arg, names: dict[Value, str]) -> str:
    if isinstance(arg, Value):
        if arg in names:
            return names[arg]
        names[arg] = f"%{len(names)}"
        return f"{names[arg]}:{_type(graph.type(arg))}"
    if isinstance(arg, tuple):
        return f"({', '.join(_text(graph, item, names) for item in arg)})"
    if isinstance(arg, Symbol):
        return f"{arg.kind}.{arg.name}"
    return repr(arg)


def _type(kind: Type) -> str:
    if not isinstance(kind, TensorType):
        return kind.kind
    shape, strides = (",".join(map(str, numbers)) for numbers in (kind.shape, kind.strides))
    return f"{kind.dtype}[{shape}]{{{strides}}}@{kind.device}"
