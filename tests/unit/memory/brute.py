"""The least arena by trying every order, for a few buffers."""


def least_arena(problem):
    """Every packing can be pushed down, so some order of placing each on its floor is optimal."""
    buffers = problem.buffers
    best = [sum(b.size + b.alignment for b in buffers)]

    def go(placed, left, top):
        if top >= best[0]:
            return
        if not left:
            best[0] = top
        for i in left:
            offset = floor(i, placed)
            go({**placed, i: offset}, left - {i}, max(top, offset + buffers[i].size))

    def floor(i, placed):
        a = buffers[i]
        below = [o + buffers[j].size for j, o in placed.items() if live_together(a, buffers[j])]
        return -(-max(below, default=0) // a.alignment) * a.alignment

    go({}, frozenset(range(len(buffers))), 0)
    return best[0]


def live_together(a, b):
    return a.lower < b.upper and b.lower < a.upper


def legal(problem, offsets):
    """Whether no two live buffers overlap and all are aligned, by looking at every pair."""
    rows = list(zip(problem.buffers, offsets, strict=True))
    apart = all(
        not live_together(a, b) or o + a.size <= p or p + b.size <= o
        for i, (a, o) in enumerate(rows)
        for b, p in rows[:i]
    )
    return apart and all(o >= 0 and o % b.alignment == 0 for b, o in rows)
