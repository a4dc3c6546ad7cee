"""A least cut of a network: two labels for many things, where each has a price and disagreeing has one."""

from collections import deque
from collections.abc import Hashable
from dataclasses import dataclass, field

_LEAST = 1e-15


@dataclass
class Network:
    """Edges with capacities; the least cut separates ``source`` from ``sink``.

    Edmonds and Karp (1972): shortest augmenting paths.

    Example:
        >>> network = Network()
        >>> network.add("s", "a", 3.0)
        >>> network.add("a", "b", 1.0)
        >>> network.add("b", "t", 2.0)
        >>> sorted(network.side("s", "t"))
        ['a', 's']
    """

    _capacity: dict[Hashable, dict[Hashable, float]] = field(default_factory=dict)

    def add(self, a: Hashable, b: Hashable, capacity: float) -> None:
        """Add an edge; that of the same ends grows."""
        ahead, back = self._capacity.setdefault(a, {}), self._capacity.setdefault(b, {})
        ahead[b] = ahead.get(b, 0.0) + capacity
        back.setdefault(a, 0.0)

    def side(self, source: Hashable, sink: Hashable) -> frozenset[Hashable]:
        """Return what is on the source's side of a least cut, the fewest where several are least."""
        while True:
            came = self._reached(source)
            if sink not in came:
                return frozenset(came)
            path = [(came[sink], sink)]
            while path[-1][0] != source:
                path.append((came[path[-1][0]], path[-1][0]))
            least = min(self._capacity[a][b] for a, b in path)
            for a, b in path:
                self._capacity[a][b] -= least
                self._capacity[b][a] += least

    def _reached(self, source: Hashable) -> dict[Hashable, Hashable]:
        """Return what can be reached from the source, each with what it was reached from."""
        came: dict[Hashable, Hashable] = {source: source}
        waiting = deque([source])
        while waiting:
            here = waiting.popleft()
            for there, capacity in self._capacity.get(here, {}).items():
                if capacity > _LEAST and there not in came:
                    came[there] = here
                    waiting.append(there)
        return came
