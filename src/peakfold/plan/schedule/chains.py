"""Updates in several steps that each overwrite what the one before made, beginning with the old state.

``exp_avg_sq.mul_(beta2).addcmul_(grad, grad)`` is two steps in a graph: the first reads the old state,
the second makes the new one. Both may be written into the state's own bytes, as eager does, where
nothing reads the old value after the first, and only the second reads what lies between.
"""

from peakfold.plan.schedule.arrays import Tables

LONGEST = 16
"""Most steps of a chain that are looked for."""


def chain(tables: Tables, old: int, new: int) -> tuple[int, ...]:
    """Return the storages that may be written, one after the other, into a state input's bytes.

    The last is the new value; the first is made by a step that reads the old one. Empty where the new
    value cannot be made in place. That nothing reads the old value after the first is for the caller to see.

    Args:
        tables: the graph.
        old: storage of the state input.
        new: storage of its new value.
    """
    if tables.replaces[new] != old or tables.producer[new] < 0:
        return ()
    links = [new]
    while len(links) < LONGEST:
        operands = _overwritten(tables, links[-1])
        if old in operands:
            return tuple(reversed(links))
        between = [v for v in operands if _between(tables, v, links[-1])]
        if not between:
            return ()
        links.append(between[0])
    return ()


def _overwritten(tables: Tables, made: int) -> list[int]:
    """Operands that the producer of a storage can write it into."""
    step = int(tables.producer[made])
    begin, end = tables.reuse_begin[step], tables.reuse_begin[step + 1]
    pairs = zip(
        tables.reuse_output[begin:end].tolist(), tables.reuse_operand[begin:end].tolist(), strict=True
    )
    return [operand for output, operand in pairs if output == made]


def _between(tables: Tables, v: int, made: int) -> bool:
    """Whether a storage serves only to make another one, in the update. What feeds that runs once."""
    maker, user = int(tables.producer[v]), int(tables.producer[made])
    readers = tables.users[tables.user_begin[v] : tables.user_begin[v + 1]].tolist()
    return (
        maker >= 0
        and bool(tables.update[maker] or tables.update[user])
        and readers == [user]
        and not tables.is_output[v]
        and tables.replaces[v] < 0
    )
