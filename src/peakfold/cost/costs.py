"""What each node of a graph costs."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Link:
    """How fast bytes move.

    Attributes:
        bandwidth: bytes a second between device and host, each direction on its own.
        latency: seconds that a transfer takes beyond its bytes.
        copy: bytes a second of a copy within the device.
    """

    bandwidth: float = 13e9
    latency: float = 10e-6
    copy: float = 10e9


@dataclass(frozen=True)
class Costs:
    """Seconds and hidden bytes of one run of each node.

    Attributes:
        seconds: by node id; views and host numbers cost 0 and may be absent.
        workspace: by node id: bytes allocated beyond the outputs while the node runs; 0 when absent.
        source: where the figures come from, for reports: ``"measured on cpu ..."`` or ``"sim:rtx3090"``.
        link: transfers between device and host, and copies.
        estimated: names of operators whose figures are estimates because they could not be measured.
    """

    seconds: Mapping[int, float]
    workspace: Mapping[int, int]
    source: str = ""
    link: Link = Link()
    estimated: tuple[str, ...] = ()
