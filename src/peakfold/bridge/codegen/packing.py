"""Values that are packed between two uses: the calls, and the functions that an emitted file defines."""

from collections.abc import Iterator

from peakfold.bridge.codegen.frame import Frame
from peakfold.bridge.codegen.writer import INDENT, deletion, margin
from peakfold.errors import PlanError
from peakfold.ir.graph import Graph
from peakfold.ir.plan import Buffer, Pack, Schedule, Step, Unpack
from peakfold.ops.packing import Packing, packing

BITS = (
    "",
    "",
    "def pack_bits(mask):",
    '    """Return one bit for each truth value: eight stretches of them above each other."""',
    "    bits = mask.as_strided((mask.untyped_storage().nbytes(),), (1,)).view(torch.uint8)",
    "    length = -(-bits.numel() // 8)",
    "    packed = bits[:length].clone()",
    "    for row in (1, 2, 3, 4, 5, 6, 7):",
    "        part = bits[row * length : (row + 1) * length]",
    "        packed[: part.numel()].add_(part, alpha=1 << row)",
    "    return packed",
    "",
    "",
    "def unpack_bits(packed, shape, strides):",
    '    """Return the truth values again."""',
    "    mask = torch.empty_strided(shape, strides, dtype=torch.bool, device=packed.device)",
    "    bits = mask.as_strided((mask.untyped_storage().nbytes(),), (1,)).view(torch.uint8)",
    "    length = packed.numel()",
    "    for row in (0, 1, 2, 3, 4, 5, 6, 7):",
    "        part = bits[row * length : (row + 1) * length]",
    "        torch.bitwise_right_shift(packed[: part.numel()], row, out=part)",
    "        part.bitwise_and_(1)",
    "    return mask",
)
"""Lines of the functions; neither takes memory beside its result."""


class Packings:
    """The packed values of a schedule."""

    def __init__(self, graph: Graph, schedule: Schedule, frame: Frame) -> None:
        self._graph = graph
        self._frame = frame
        self._names: dict[Buffer, str] = {}
        packed = (step.buffer for step in schedule.steps if isinstance(step, Pack))
        self._forms = {buffer: self._form(buffer) for buffer in packed}

    @property
    def is_used(self) -> bool:
        """Whether there are any."""
        return bool(self._forms)

    def definitions(self) -> Iterator[str]:
        """Yield the lines of what the program calls."""
        if any(found.form == "bits" for found in self._forms.values()):
            yield from BITS

    def step(self, step: Step) -> Iterator[str]:
        """Yield the lines that pack or unpack."""
        if isinstance(step, Pack):
            yield from self._pack(step.buffer)
        elif isinstance(step, Unpack):
            yield from self._unpack(step.buffer)

    def _form(self, buffer: Buffer) -> Packing:
        found = packing(self._graph, buffer.value)
        if found is None:
            raise PlanError(
                stage="codegen",
                what=f"{self._graph.name_of(buffer.value)} cannot be packed",
                expected="truth values, or numbers that are known to be small",
            )
        return found

    def _pack(self, buffer: Buffer) -> Iterator[str]:
        frame, found = self._frame, self._forms[buffer]
        read = frame.read(buffer.value)
        name = frame.namer.fresh(f"{read}_packed")
        self._names[buffer] = name
        call = f"pack_bits({read})" if found.form == "bits" else f"{read}.to(torch.{found.form})"
        frame.live += found.nbytes
        yield margin(f"{INDENT}{name} = {call}", found.nbytes, frame.live)
        ended, nbytes = frame.away(buffer)
        lines = deletion(ended)
        yield from lines[:-1]
        yield margin(lines[-1], -nbytes, frame.live)

    def _unpack(self, buffer: Buffer) -> Iterator[str]:
        frame, found = self._frame, self._forms[buffer]
        kind = self._graph.tensor_type(buffer.value)
        packed = self._names[buffer]
        name, nbytes = frame.back(buffer)
        call = f"{packed}.to(torch.{kind.dtype})"
        if found.form == "bits":
            call = f"unpack_bits({packed}, {kind.shape}, {kind.strides})"
        yield margin(f"{INDENT}{name} = {call}", nbytes, frame.live)
        frame.live -= found.nbytes
        yield margin(f"{INDENT}del {packed}", -found.nbytes, frame.live)
