"""A small training step, spelled out by hand: a chain of layers, its backward, SGD."""

from peakfold.cost.costs import Costs
from peakfold.ir.graph import Graph, Input, Node, Op, Origin, Output, State, Value
from peakfold.ir.plan import Buffer, Compute, Free, Plan, Recompute, Reuse, Run, Schedule, Step
from peakfold.ir.types import ScalarType, tensor
from peakfold.report import model as m
from peakfold.report.decisions import decisions_of
from peakfold.report.explain import live_at_peak
from peakfold.report.spans import timeline_of

LAYERS = 8
WIDTH = 512
BATCH = 2048


class Chain:
    """y = relu(x w_i) for each layer, mean loss, gradients, update."""

    def __init__(self, layers: int = LAYERS) -> None:
        self.layers = layers
        self.x, self.lr = 0, 1
        self.w = [2 + i for i in range(layers)]
        base = 2 + layers
        self.mm = [base + 2 * i for i in range(layers)]
        self.relu = [base + 2 * i + 1 for i in range(layers)]
        self.loss = base + 2 * layers
        self.drelu = [self.loss + 1 + 3 * i for i in range(layers)]
        self.dw = [self.loss + 2 + 3 * i for i in range(layers)]
        self.dx = [self.loss + 3 + 3 * i for i in range(layers)]
        self.new = [self.loss + 1 + 3 * layers + i for i in range(layers)]

    def inputs_of(self, layer: int) -> Value:
        return Value(self.relu[layer - 1]) if layer else Value(self.x)

    def graph(self) -> Graph:
        inputs = (
            Input(self.x, "x", "batch", tensor(BATCH, WIDTH)),
            Input(self.lr, "lr", "scalar", ScalarType("float")),
            *(
                Input(w, f"layers.{i}.weight", "parameter", tensor(WIDTH, WIDTH))
                for i, w in enumerate(self.w)
            ),
        )
        big, small = tensor(BATCH, WIDTH), tensor(WIDTH, WIDTH)
        nodes: list[Node] = []

        def add(node: int, name: str, op: str, args: tuple, kind, layer: int, phase: str = "forward") -> None:
            origin = Origin(f"layers.{layer}", f"model.py:{10 + layer}", phase)
            nodes.append(Node(node, name, Op(f"aten.{op}"), args, (), (kind,), (None,), origin=origin))

        for i in range(self.layers):
            given = self.inputs_of(i)
            add(self.mm[i], f"layers.{i}.mm", "mm.default", (given, Value(self.w[i])), big, i)
            add(self.relu[i], f"layers.{i}.relu", "relu.default", (Value(self.mm[i]),), big, i)
        last = self.layers - 1
        add(self.loss, "loss", "mean.default", (Value(self.relu[last]),), tensor(), last)
        flow = Value(self.loss)
        for i in reversed(range(self.layers)):
            back = (flow, Value(self.relu[i]))
            add(
                self.drelu[i],
                f"layers.{i}.relu_backward",
                "threshold_backward.default",
                back,
                big,
                i,
                "backward",
            )
            grads = (self.inputs_of(i), Value(self.drelu[i]))
            add(self.dw[i], f"layers.{i}.weight_grad", "mm.default", grads, small, i, "backward")
            if i:
                down = (Value(self.drelu[i]), Value(self.w[i]))
                add(self.dx[i], f"layers.{i}.mm_backward", "mm.default", down, big, i, "backward")
                flow = Value(self.dx[i])
        for i in range(self.layers):
            step = (Value(self.w[i]), Value(self.dw[i]), Value(self.lr))
            add(self.new[i], f"layers.{i}.weight_new", "sub.Tensor", step, small, i, "update")
        state = tuple(State(w, Value(new)) for w, new in zip(self.w, self.new, strict=True))
        return Graph(inputs, tuple(nodes), (Output("loss", Value(self.loss)),), state)

    def costs(self) -> Costs:
        graph = self.graph()
        seconds = {node.id: 2e-3 if node.op.name == "aten.mm.default" else 2e-4 for node in graph.nodes}
        return Costs(seconds, dict.fromkeys(self.dw, 1000000), "by hand")

    def update(self, layer: int) -> list[Step]:
        reuse = Reuse(0, Value(self.w[layer]), "update")
        return [Compute(Run(self.new[layer]), (reuse,)), Free(Buffer(Value(self.dw[layer])))]

    def schedule(self, again: bool) -> Schedule:
        """Eager's order, or the plan that drops every second activation and updates early."""
        steps: list[Step] = []
        dropped = [i for i in range(self.layers - 1) if again and i % 2]
        for i in range(self.layers):
            steps += [Compute(Run(self.mm[i]))]
            steps += [Compute(Run(self.relu[i])), Free(Buffer(Value(self.mm[i])))]
            if i - 1 in dropped:
                steps.append(Free(Buffer(Value(self.relu[i - 1]))))
        steps.append(Compute(Run(self.loss)))
        flow = None
        for i in reversed(range(self.layers)):
            if i - 1 in dropped:
                steps += [Compute(Run(self.mm[i - 1], 1)), Compute(Run(self.relu[i - 1], 1))]
                steps.append(Free(Buffer(Value(self.mm[i - 1]), 1)))
            steps.append(Compute(Run(self.drelu[i])))
            if flow is not None:
                steps.append(Free(flow))
            steps.append(Free(Buffer(Value(self.relu[i]), int(i in dropped))))
            steps.append(Compute(Run(self.dw[i])))
            flow = Buffer(Value(self.dx[i]))
            if i:
                steps.append(Compute(Run(self.dx[i])))
            steps.append(Free(Buffer(Value(self.drelu[i]))))
            if again:
                steps += self.update(i)
        if not again:
            for i in range(self.layers):
                steps += self.update(i)
        return Schedule(tuple(steps))

    def plan(self) -> Plan:
        gaps = [Recompute(self.relu[i], self.drelu[i]) for i in range(self.layers - 1) if i % 2]
        chain = [Recompute(self.mm[i], self.relu[i]) for i in range(self.layers - 1) if i % 2]
        return Plan(self.graph().digest, tuple(sorted(gaps + chain)))


def make_report(layers: int = LAYERS) -> m.Report:
    """A report of the chain; the measured figures are made up, the timelines are not."""
    chain = Chain(layers)
    graph, costs = chain.graph(), chain.costs()
    before = timeline_of(graph, chain.schedule(again=False), costs)
    after = timeline_of(graph, chain.schedule(again=True), costs)
    return m.Report(
        target="chain",
        limits=m.Limits(int(0.85 * before.peak_bytes), 1.2, "85%"),
        eager=m.Eager(before.peak_bytes, 0.0321, measured=True),
        optimized=m.Optimized(after.peak_bytes, after.peak_bytes - 4096, 0, 0.0349, 1.081),
        equal=m.Equality(True, 0.0, 1e-9, "full", 3, True),
        seconds=m.StageSeconds(1.25, 0.5, 2.0, 0.01, 3.5),
        search=m.SearchSummary("the budget is met and no move is left", 1234),
        lower_bound_bytes=int(0.4 * before.peak_bytes),
        graph=m.GraphSize(len(graph.nodes), len(list(graph.storages()))),
        timelines=m.Timelines(before, after),
        live_at_peak=live_at_peak(graph, chain.schedule(again=True), costs),
        decisions=decisions_of(graph, chain.plan(), costs),
        barriers=("custom.op",),
        notes=("the budget was met with <no> effort & nothing else",),
        environment={"torch": "2.13.0", "cpu": "a <fast> one", "threads": "1"},
        texts=m.Texts("update each parameter early\n", "def step(tensors, scalars):\n    ...\n", "graph\n"),
    )
