"""What each node of a graph costs."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Costs:
    """Seconds and hidden bytes of one run of each node.

    Attributes:
        seconds: by node id; views and host numbers cost 0 and may be absent.
        workspace: by node id: bytes allocated beyond the outputs while the node runs; 0 when absent.
        source: where the figures come from, for reports: ``"measured on cpu ..."`` or ``"sim:rtx3090"``.
    """

    seconds: Mapping[int, float]
    workspace: Mapping[int, int]
    source: str = ""
