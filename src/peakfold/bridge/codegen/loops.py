"""Regions as loops of the emitted step."""

from collections.abc import Callable, Iterator

from peakfold.bridge.codegen.frame import Frame
from peakfold.bridge.codegen.writer import INDENT, deletion, margin, section
from peakfold.ir.graph import Value
from peakfold.ir.plan import Compute
from peakfold.ir.types import TensorType, contiguous_strides
from peakfold.plan.fission.derived import Initial
from peakfold.plan.fission.program import Nest

WriteBody = Callable[[Frame, Nest], Iterator[str]]
"""Yields the lines of one part, as those of a step."""


def place_lines(name: str) -> Iterator[str]:
    """Yield the function that writes a part into its place."""
    yield from (
        "",
        "",
        f"def {name}(whole, part, dim=0, start=None, stop=None, step=1):",
        '    """Write a part into its place of a tensor, and return the tensor."""',
        "    torch.ops.aten.slice.Tensor(whole, dim, start, stop, step).copy_(part)",
        "    return whole",
    )


def loop_lines(frame: Frame, step: Compute, write: WriteBody, marks: bool) -> Iterator[str]:
    """Yield the lines of a loop: what it fills, taken before the first part, and a mark; one part."""
    repeat = frame.loops[step.run.node]
    body = repeat.body
    node = frame.graph.node[step.run.node]
    live = frame.live
    for index, value in enumerate(node.outputs):
        frame.namer.call(value, body.name_of(index))
    taken = {reuse.output: reuse for reuse in step.reuses}
    begins = {index: frame.read(node.inputs[place]) for index, place in body.begins.items()}
    names = frame.define(node, step.run)
    ended = {index: frame.take(node, step.run, reuse) for index, reuse in taken.items()}
    frame.rename(node, [reuse for reuse in step.reuses if frame.is_nested])
    yield section(f"{body.region.axis} in {len(body.starts)} parts of {body.size}")
    for index, (name, kind, initial) in enumerate(zip(names, node.types, body.initial, strict=True)):
        assert isinstance(kind, TensorType)
        if index in taken:
            if frame.read(Value(node.id, index)) == name:
                yield f"{INDENT}{name} = {begins[index]}"
            yield from deletion(ended[index])
            continue
        live += kind.nbytes
        made = f"{begins[index]}.clone()" if initial == "given" else _allocation(kind, initial)
        yield margin(f"{INDENT}{name} = {made}", kind.nbytes, live)
    if marks:
        yield f"{INDENT}mark()"
    start, stop = frame.namer.fresh("start"), frame.namer.fresh("stop")
    yield f"{INDENT}for {start} in range(0, {body.length}, {body.size}):"
    rest = body.length % body.size
    end = f"min({start} + {body.size}, {body.length})" if rest else f"{start} + {body.size}"
    lines = [f"{INDENT}{stop} = {end}", *write(_inside(frame, step, start, stop), repeat.nest)]
    yield from map(indented, lines)


def _inside(frame: Frame, step: Compute, start: str, stop: str) -> Frame:
    """Return the names inside a part: operands and results are those of the outside."""
    repeat = frame.loops[step.run.node]
    body = repeat.body
    node = frame.graph.node[step.run.node]
    given = {
        ident: frame.read(value)
        for ident, value in zip(body.operands, node.inputs, strict=True)
        if ident not in body.results
    }
    given |= {ident: frame.read(value) for ident, value in zip(body.results, node.outputs, strict=True)}
    given |= {number.input: number.text(start, stop) for number in body.numbers}
    return frame.nested(repeat.nest, given, "_part")


def _allocation(kind: TensorType, initial: Initial) -> str:
    device = "" if kind.device == "cpu" else f", device={kind.device!r}"
    rest = f"dtype=torch.{kind.dtype}{device}"
    dense = kind.strides == contiguous_strides(kind.shape)
    if dense and initial in ("empty", "zeros", "ones"):
        return f"torch.{initial}({list(kind.shape)}, {rest})"
    text = f"torch.empty_strided({list(kind.shape)}, {list(kind.strides)}, {rest})"
    return text if initial == "empty" else f"{text}.fill_({_filled(kind, initial)})"


def _filled(kind: TensorType, initial: Initial) -> str:
    """Return the number that a tensor is filled with, as text."""
    if initial in ("zeros", "ones"):
        return "0" if initial == "zeros" else "1"
    if kind.dtype == "bool":
        return str(initial == "highest")
    if "float" in kind.dtype:
        return f"float('{'-' if initial == 'lowest' else ''}inf')"
    return f"torch.iinfo(torch.{kind.dtype}).{'min' if initial == 'lowest' else 'max'}"


def indented(line: str) -> str:
    """Return a line one level deeper, with what stands at its margin where it stood.

    Example:
        >>> indented("    x = f()        # +4 B")
        '        x = f()    # +4 B'
    """
    code, mark, rest = line.partition("  # ")
    if mark and code.strip() and code.endswith(INDENT):
        code = code[: -len(INDENT)]
    return f"{INDENT}{code}{mark}{rest}"
