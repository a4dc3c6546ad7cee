"""The search kernel again, in plain Python with sets: the same decisions, step for step."""

FOUND, DEAD, LIMIT = "found", "dead", "limit"


class Plain:
    """Place the next buffer on its floor; at a dead end jump back and hold a buffer."""

    def __init__(self, buffers, order, capacity):
        self.buffers, self.capacity = buffers, capacity
        self.rank, self.lead, *_ = order
        self.everyone = range(len(buffers))
        self.near = [[j for j in self.everyone if j != i and self.meet(i, j)] for i in self.everyone]
        self.sections = self.largest_sections()
        self.trail = []
        self.state = {i: (0, 0, frozenset(), False) for i in self.everyone}
        self.level = {}
        self.offset = {}
        self.steps = 0

    def meet(self, i, j):
        a, b = self.buffers[i], self.buffers[j]
        return a.lower < b.upper and b.lower < a.upper

    def largest_sections(self):
        times = sorted({b.lower for b in self.buffers})
        live = [
            {i for i in self.everyone if self.buffers[i].lower <= t < self.buffers[i].upper} for t in times
        ]
        return [s for s in live if not any(s < other for other in live)]

    def run(self, steps):
        for _ in range(steps):
            self.steps += 1
            if len(self.level) == len(self.buffers):
                return FOUND
            conflict = self.conflict()
            if conflict is None:
                free = [i for i in self.everyone if i not in self.level and not self.state[i][3]]
                if free:
                    self.place(min(free, key=lambda i: (self.state[i][0] - self.lead[i], self.rank[i])))
                    continue
                conflict = set(range(len(self.level)))
            if not conflict:
                return DEAD
            self.retreat(conflict)
        return LIMIT

    def conflict(self):
        """The decisions that make some section dead; of several dead sections, of any."""
        for section in self.sections:
            left = [i for i in section if i not in self.level]
            room = self.capacity - sum(self.buffers[i].size for i in left)
            if left and min(self.state[i][1] for i in left) > room:
                placed = {self.level[i] for i in section if i in self.level}
                return placed.union(*(self.state[i][2] for i in left))
        return None

    def place(self, chosen):
        depth = len(self.level)
        self.trail.append((chosen, dict(self.state)))
        self.level[chosen] = depth
        self.offset[chosen] = self.state[chosen][0]
        top = self.offset[chosen] + self.buffers[chosen].size
        for i in self.near[chosen]:
            head, low, why, held = self.state[i]
            if i in self.level or not (head < top or held):
                continue
            floor = self.aligned(i, top)
            raised = (floor, frozenset({depth})) if low < floor else (low, why)
            self.state[i] = (max(head, floor), *raised, False)

    def aligned(self, i, offset):
        alignment = self.buffers[i].alignment
        return -(-offset // alignment) * alignment

    def retreat(self, conflict):
        depth = max(conflict)
        while len(self.trail) > depth:
            chosen, self.state = self.trail.pop()
            del self.level[chosen], self.offset[chosen]
        self.hold(chosen, conflict - {depth})

    def hold(self, chosen, because):
        left = [i for i in self.near[chosen] if i not in self.level]
        support = min((self.state[i][1] + self.buffers[i].size for i in left), default=2**62)
        head, low, why, _ = self.state[chosen]
        least = support if support == 2**62 else self.aligned(chosen, support)
        if least > low:
            placed = {self.level[i] for i in self.near[chosen] if i in self.level}
            small = [self.state[i][2] for i in left if self.buffers[i].size < support]
            low, why = least, frozenset(because).union(placed, *small)
        self.state[chosen] = (head, low, why, True)
