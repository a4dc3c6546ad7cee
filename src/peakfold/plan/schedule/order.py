"""Orders of first runs that may need fewer bytes than the program's own."""

from peakfold.plan.schedule.frame import Frame


def leaves_first(frame: Frame) -> tuple[int, ...]:
    """Return the order in which what only updates read is computed as soon as its operands are there.

    A program often computes the gradient of an input before that of the weight; the other way round the
    activation that the weight's gradient reads dies before the input's gradient needs its place.

    Returns:
        Node ids of all steps.
    """
    tables = frame.tables
    base = frame.base.tolist()
    place = {step: i for i, step in enumerate(base)}
    keys = {step: (_ready(frame, step, place), not _is_leaf(frame, step), i) for step, i in place.items()}
    keys |= {step: (i, True, i) for step, i in place.items() if not _is_leaf(frame, step)}
    ordered = sorted(base, key=lambda step: keys[step])
    late = [step for step in range(tables.steps) if frame.late[step]]
    return tuple(int(tables.nodes[step]) for step in (*ordered, *late))


def _is_leaf(frame: Frame, step: int) -> bool:
    """Whether update steps alone read what a step makes."""
    tables = frame.tables
    made = tables.outputs[tables.output_begin[step] : tables.output_begin[step + 1]].tolist()
    users = [u for v in made for u in tables.users[tables.user_begin[v] : tables.user_begin[v + 1]].tolist()]
    return bool(users) and not tables.random[step] and all(frame.late[user] for user in users)


def _ready(frame: Frame, step: int, place: dict[int, int]) -> float:
    """The place of the last maker of a step's operands; a leaf runs right after it."""
    tables = frame.tables
    reads = tables.operands[tables.operand_begin[step] : tables.operand_begin[step + 1]].tolist()
    makers = [int(tables.producer[v]) for v in reads if tables.producer[v] >= 0]
    return max((place[maker] for maker in makers), default=place[step]) + 0.5
