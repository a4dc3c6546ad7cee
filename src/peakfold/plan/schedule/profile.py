"""Decoding, its second half: from runs to deaths, live bytes, peak and excess."""

from peakfold.plan.schedule.code import Code, Scratch
from peakfold.plan.schedule.kernel import compiled
from peakfold.plan.schedule.runs import fill, note_reads


@compiled
def _place_states(code: Code, scratch: Scratch, length: int) -> int:
    """Find which new values are written in place, and after which runs the others are copied.

    Returns the bytes that live at the end beyond the inputs.
    """
    runs, first, last_read = scratch.runs, scratch.first, scratch.last_read
    head, link, placed, needed = scratch.head, scratch.link, scratch.placed, scratch.needed
    kept, nbytes = code.kept, code.nbytes
    pair_new, pair_maker, pair_head = code.pair_new, code.pair_maker, code.pair_head
    chain_begin, chain_of, producer = code.chain_begin, code.chain, code.producer
    note_reads(runs, length, code.state_begin, code.state, first, last_read)
    fill(head, length, -1)
    fill(placed, len(placed), -1)
    live = 0
    for v in range(len(kept)):
        needed[v] = kept[v]
        if kept[v]:
            live += nbytes[v]
    for i in range(len(pair_new)):
        at = last_read[i]
        new = pair_new[i]
        if pair_head[i] >= 0 and at >= 0 and runs[at] == pair_head[i]:
            for j in range(chain_begin[i], chain_begin[i + 1]):
                placed[chain_of[j]] = first[producer[chain_of[j]]]
                needed[chain_of[j]] = True
            if kept[new]:
                live -= nbytes[new]
        elif pair_maker[i] >= 0:
            at = max(at, first[pair_maker[i]], 0)
            link[i] = head[at]
            head[at] = i
    return live


@compiled
def profile(code: Code, scratch: Scratch, length: int, target: float) -> tuple[int, float, int]:
    """Walk the runs backwards: deaths, live bytes, peak and excess."""
    runs, during, needed, head, link = (
        scratch.runs,
        scratch.during,
        scratch.needed,
        scratch.head,
        scratch.link,
    )
    dies, copied, placed = scratch.dies, scratch.copied, scratch.placed
    need_begin, need, made_begin, made = code.need_begin, code.need, code.made_begin, code.made
    nbytes, workspace, pair_new = code.nbytes, code.workspace, code.pair_new
    way_begin, way_output, way_operand, reuse = code.way_begin, code.way_output, code.way_operand, code.reuse
    live = code.resident + _place_states(code, scratch, length)
    fill(dies, len(dies), -1)
    fill(copied, len(copied), -1)
    peak = code.resident
    peak_at = 0
    excess = 0.0
    for at in range(length - 1, -1, -1):
        step = runs[at]
        freed = 0
        i = head[at]
        while i >= 0:
            v = pair_new[i]
            copied[v] = at
            if not needed[v]:
                freed += nbytes[v]
                needed[v] = True
            i = link[i]
        for j in range(need_begin[step], need_begin[step + 1]):
            v = need[j]
            if not needed[v]:
                freed += nbytes[v]
                needed[v] = True
                dies[v] = at
        taken = 0
        for j in range(made_begin[step], made_begin[step + 1]):
            v = made[j]
            if not needed[v]:
                freed += nbytes[v]
            needed[v] = False
            if placed[v] != at:
                taken += nbytes[v]
        saved = 0
        if reuse:
            for j in range(way_begin[step], way_begin[step + 1]):
                new, old = way_output[j], way_operand[j]
                if placed[new] == at:
                    break
                if dies[old] == at and copied[old] != at:
                    saved = nbytes[new]
                    break
        now = live + freed - saved + workspace[step]
        live += freed - taken
        during[at] = now
        if now >= peak:
            peak = now
            peak_at = at
        if now > target:
            excess += now - target
    return peak, excess, peak_at
