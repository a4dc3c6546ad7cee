"""Costs by the roofline of a described device, for machines and sizes that cannot be measured.

Time of a kernel = launch + max(flops / (peak * eff_max * f / (f + flops_half)), bytes / (bandwidth *
bw_eff)). ``flops_half`` is the work at which half of the efficiency is lost, so that splitting has its
price; it applies to matrix products and convolutions only. Other kernels take flops / (fp32 peak *
eff_max), in practice their bytes.
"""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from peakfold.cost.costs import Costs, Link
from peakfold.errors import UsageError
from peakfold.ir.graph import Graph, Node
from peakfold.ops.flops import Kernel, kernels

TRANSFER_LATENCY = 10e-6


@dataclass(frozen=True, slots=True)
class Peak:
    """Arithmetic in one precision.

    Attributes:
        peak: floating-point operations a second.
        eff_max: part of it that large kernels reach.
        flops_half: operations at which a matrix product reaches half of that.
    """

    peak: float
    eff_max: float
    flops_half: float


@dataclass(frozen=True)
class Device:
    """A described device.

    Attributes:
        name: its name.
        memory: bytes that it has.
        bandwidth: bytes a second of its memory.
        bw_eff: part of it that kernels reach.
        launch: seconds that each kernel takes beyond its work.
        pcie: bytes a second between it and the host.
        peaks: arithmetic, by precision: ``"fp32"``, ``"tf32"``, ``"bf16"``.
    """

    name: str
    memory: int
    bandwidth: float
    bw_eff: float
    launch: float
    pcie: float
    peaks: Mapping[str, Peak]


CPU = Device(
    name="cpu",
    memory=0,
    bandwidth=12e9,
    bw_eff=0.8,
    launch=5e-6,
    pcie=8e9,
    peaks={"fp32": Peak(peak=100e9, eff_max=0.7, flops_half=1e5)},
)
"""One core of a CPU, roughly: for operators that cannot be measured there."""


@cache
def devices() -> Mapping[str, Device]:
    """Return the described devices by name.

    Example:
        >>> sorted(devices())
        ['a100', 'h200', 'rtx3090']
        >>> devices()["a100"].peaks["tf32"].flops_half
        1500000000.0
    """
    text = files("peakfold.cost").joinpath("devices.toml").read_text(encoding="utf-8")
    return {name: _device(name, row) for name, row in tomllib.loads(text).items()}


def _device(name: str, row: Mapping[str, float | Mapping[str, float]]) -> Device:
    numbers = {key: value for key, value in row.items() if not isinstance(value, Mapping)}
    peaks = {key: Peak(**value) for key, value in row.items() if isinstance(value, Mapping)}
    return Device(
        name=name,
        memory=int(numbers["memory_gib"] * 2**30),
        bandwidth=numbers["bandwidth"],
        bw_eff=numbers["bw_eff"],
        launch=numbers["launch_us"] * 1e-6,
        pcie=numbers["pcie"],
        peaks=peaks,
    )


def estimate(graph: Graph, device_name: str, precision: str | None = None) -> Costs:
    """Return the costs of a graph on a described device; hidden workspace counts as nothing.

    Args:
        graph: the program.
        device_name: a key of `devices`, e.g. ``"rtx3090"``.
        precision: of matrix products and convolutions on float32; by default ``"tf32"`` where the
            device has it. Products on 16-bit floats are ``"bf16"``.

    Raises:
        UsageError: there is no such device or precision.
    """
    device = described(device_name)
    if precision is not None and precision not in device.peaks:
        raise UsageError(
            stage="estimate",
            what=f"the device {device_name} has no such precision",
            expected=", ".join(device.peaks),
            got=repr(precision),
            hint="choose one of these",
        )
    chosen = precision or ("tf32" if "tf32" in device.peaks else "fp32")
    seconds = {node.id: seconds_of(graph, node, device, chosen) for node in graph.nodes if not node.is_view}
    link = Link(device.pcie, TRANSFER_LATENCY, device.bandwidth * device.bw_eff / 2)
    return Costs(seconds, {}, f"sim:{device_name} {chosen}", link)


def described(name: str) -> Device:
    """Return a described device.

    Raises:
        UsageError: there is none of this name.
    """
    if name in devices():
        return devices()[name]
    raise UsageError(
        stage="estimate",
        what="there is no description of the device",
        expected=", ".join(sorted(devices())),
        got=repr(name),
        hint="choose one of these, e.g. --device sim:rtx3090",
    )


def seconds_of(graph: Graph, node: Node, device: Device, precision: str = "fp32") -> float:
    """Return the seconds of one run of a node: those of its kernels, one after the other."""
    return sum(kernel_seconds(kernel, device, precision) for kernel in kernels(graph, node))


def kernel_seconds(kernel: Kernel, device: Device, precision: str = "fp32") -> float:
    """Return the seconds of one kernel.

    Args:
        kernel: its work.
        device: where it runs.
        precision: of a product on float32.
    """
    memory = kernel.nbytes / (device.bandwidth * device.bw_eff)
    if not kernel.product:
        plain = device.peaks["fp32"]
        return device.launch + max(kernel.flops / (plain.peak * plain.eff_max), memory)
    wanted = {"float32": precision, "bfloat16": "bf16", "float16": "bf16"}.get(kernel.dtype, "fp32")
    rate = device.peaks.get(wanted, device.peaks["fp32"])
    arithmetic = (kernel.flops + rate.flops_half) / (rate.peak * rate.eff_max)
    return device.launch + max(arithmetic, memory)
