"""The bytes of random schedules against a naive execution that really goes round its loops."""

from hypothesis import given, settings
from hypothesis import strategies as st

from peakfold.cost.costs import Costs
from peakfold.ir.graph import Graph, Input, Node, Op, Output, Value
from peakfold.ir.plan import Buffer, Compute, Free, Loop, Reuse, Run, Schedule
from peakfold.ir.types import tensor
from peakfold.plan.schedule.simulate import simulate
from peakfold.plan.schedule.timeline import composition

INPUTS, NODES = 2, 6


@st.composite
def graphs(draw):
    sizes = st.integers(0, 50)
    inputs = tuple(Input(i, f"x{i}", "parameter", tensor(draw(sizes))) for i in range(INPUTS))
    nodes = []
    for i in range(INPUTS, INPUTS + NODES):
        reads = draw(st.lists(st.integers(0, i - 1), min_size=1, max_size=2))
        types = tuple(tensor(draw(sizes)) for _ in range(draw(st.integers(1, 2))))
        args = tuple(Value(v) for v in reads)
        nodes.append(Node(i, f"n{i}", Op("any.op.default"), args, (), types, (None,) * len(types)))
    return Graph(inputs, tuple(nodes), (Output("y", Value(INPUTS + NODES - 1)),))


@st.composite
def schedules(draw, graph):
    """Legal for an allocator; what is read does not matter to it."""
    runs = dict.fromkeys(graph.node, 0)
    alive: list[Buffer] = []

    def body(depth):
        steps = []
        for _ in range(draw(st.integers(0, 8))):
            action = draw(st.sampled_from(["compute", "compute", "free", "loop", "donate"]))
            if action == "free" and alive:
                steps.append(Free(alive.pop(draw(st.integers(0, len(alive) - 1)))))
            elif action == "loop" and depth < 3:
                steps.append(Loop("r", draw(st.integers(2, 3)), body(depth + 1)))
            elif action == "donate" and depth == 0:
                steps += donate()
            elif action == "compute":
                steps.append(compute())
        return tuple(steps)

    def compute(reuses=()):
        node = draw(st.sampled_from(sorted(graph.node)))
        run = Run(node, runs[node])
        runs[node] += 1
        taken = {reuse.output for reuse in reuses}
        outputs = range(len(graph.node[node].types))
        alive.extend(Buffer(Value(node, i), run.k) for i in outputs if i not in taken)
        alive.extend(Buffer(Value(node, i), run.k) for i in sorted(taken))
        return Compute(run, reuses)

    def donate():
        latest = [b for b in alive if b.k == runs[b.value.node] - 1]
        if not latest:
            return []
        given_up = draw(st.sampled_from(latest))
        alive.remove(given_up)
        return [compute((Reuse(0, given_up.value, "donate"),))]

    return Schedule(body(0))


class Naive:
    """An allocator with names, and loops that go round."""

    def __init__(self, graph, workspace):
        self.graph, self.workspace = graph, workspace
        self.held = {Buffer(Value(i)): graph.nbytes(Value(i)) for i in graph.input}
        self.latest = {}
        self.peak = sum(self.held.values())

    def run(self, steps, outer=frozenset(), late=None):
        for step in steps:
            if isinstance(step, Loop):
                before, freed = frozenset(self.held), set()
                for _ in range(step.parts):
                    self.run(step.steps, before, freed)
                for buffer in freed:
                    self.drop(buffer, outer, late)
            elif isinstance(step, Free):
                self.drop(step.buffer, outer, late)
            else:
                self.compute(step)

    def drop(self, buffer, outer, late):
        if buffer in outer:
            late.add(buffer)
        else:
            del self.held[buffer]

    def compute(self, step):
        node = self.graph.node[step.run.node]
        sizes = {Buffer(v, step.run.k): self.graph.nbytes(v) for v in node.outputs}
        for reuse in step.reuses:
            old = Buffer(reuse.operand, self.latest[reuse.operand])
            sizes[Buffer(Value(node.id, reuse.output), step.run.k)] = self.held.pop(old)
        for buffer, nbytes in sizes.items():
            self.held.setdefault(buffer, nbytes)
        self.latest.update((v, step.run.k) for v in node.outputs)
        self.peak = max(self.peak, sum(self.held.values()) + self.workspace[node.id])


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_bytes_are_those_of_an_allocator(data):
    graph = data.draw(graphs())
    schedule = data.draw(schedules(graph))
    workspace = {node: data.draw(st.integers(0, 99)) for node in graph.node}
    timeline = simulate(graph, Costs({}, workspace), schedule)
    naive = Naive(graph, workspace)
    naive.run(schedule.steps)
    assert timeline.peak == naive.peak
    if timeline.live:
        assert timeline.live[-1] == sum(naive.held.values())
    for row, nbytes in enumerate(timeline.during):
        assert sum(span.nbytes for span in timeline.alive(row)) + timeline.workspace[row] == nbytes
        assert sum(composition(graph, timeline, row).values()) == nbytes
