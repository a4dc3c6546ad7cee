"""Choosing the outputs of graphs, compiled by numba: sets of operators that read all of what is inside."""

from typing import TYPE_CHECKING

import numpy as np

from peakfold.graph.substitution.growing import ORDERS, renamed_hashes
from peakfold.graph.substitution.kernel import compiled

if TYPE_CHECKING:
    import numpy.typing as npt

    from peakfold.graph.substitution.kernel import Ints, Words

    Flags = npt.NDArray[np.bool_]


@compiled
def smallest(roots: "Ints", hashes: "Words") -> np.uint64:
    """Return the hash of a set of operators, the same under each order of the inputs."""
    least = np.uint64(0xFFFFFFFFFFFFFFFF)
    for order in range(ORDERS):
        total = np.uint64(0)
        for root in roots:
            if root >= 0:
                total += hashes[root, order]
        least = min(least, total)
    return least


@compiled
def fingerprints(
    roots: "Ints", worlds: "Words", composed: "Ints", salts: "Words", joint: "Words", hashes: "Words"
) -> bool:
    """Hash what a set of operators computes under each order of the inputs, where all of them are legal.

    ``worlds`` has the hash of each operator in every world, 0 where it is not legal; ``joint`` is room for
    those of the set.

    Returns:
        Whether there is such a world.
    """
    legal = False
    for world in range(len(joint)):
        total, there = np.uint64(0), True
        for root in roots:
            if root >= 0:
                there = there and worlds[root, world] != np.uint64(0)
                total += worlds[root, world]
        joint[world] = total if there else np.uint64(0)
        legal = legal or there
    renamed_hashes(joint, composed, salts, hashes)
    return legal


@compiled
def combined(
    count: int, here: "Ints", reads: "Ints", outputs: "Ints", nodes: "Ints", every: int, worlds: "Words",
    texts: "Words", composed: "Ints", salts: "Words", found: "Ints", keys: "Words", at: int,
) -> int:  # fmt: skip
    """Take so many operators of those here that read all inside and have two outputs or more.

    ``reads`` has a bit for each operator inside that one reads, ``every`` has all bits; ``nodes`` tells
    operators apart of which one is another output; ``worlds`` and ``texts`` are hashes of what they compute
    and of how they are written. ``found`` takes the sets, ``keys`` the hashes of both kinds; sets that are
    legal in no world are left out.

    Returns:
        How many there are now; one more than there is room for where they did not fit.
    """
    chosen = np.full(4, -1, np.int64)
    joint, hashes = np.empty(worlds.shape[1], np.uint64), np.empty(ORDERS, np.uint64)
    places = np.arange(count)
    if count > len(here):
        return at
    while True:
        for place in range(count):
            chosen[place] = here[places[place]]
        bits, total, apart = 0, 0, True
        for place in range(count):
            bits |= reads[chosen[place]]
            total += outputs[chosen[place]]
            for before in range(place):
                apart = apart and nodes[chosen[before]] != nodes[chosen[place]]
        fits = bits == every and total > 1 and apart
        if fits and fingerprints(chosen, worlds, composed, salts, joint, hashes):
            if at == len(found):
                return at + 1
            found[at, :] = chosen
            keys[at, 0] = hashes.min()
            keys[at, 1] = smallest(chosen, texts)
            at += 1
        place = count - 1
        while place >= 0 and places[place] == len(here) - count + place:
            place -= 1
        if place < 0:
            return at
        places[place] += 1
        for later in range(place + 1, count):
            places[later] = places[later - 1] + 1


@compiled
def share_text(
    a: "Ints", b: "Ints", worlds: "Words", texts: "Words", composed: "Ints", salts: "Words"
) -> bool:
    """Return whether two sets that compute the same have an operator written alike, in an order that fits."""
    joint = np.empty(worlds.shape[1], np.uint64)
    wanted, given = np.empty(ORDERS, np.uint64), np.empty(ORDERS, np.uint64)
    fingerprints(a, worlds, composed, salts, joint, wanted)
    fingerprints(b, worlds, composed, salts, joint, given)
    for order in range(ORDERS):
        if given[order] != wanted[0]:
            continue
        for left in a:
            for right in b:
                if left >= 0 and right >= 0 and texts[left, 0] == texts[right, order]:
                    return True
    return False


@compiled
def leaders(
    order: "Ints", keys: "Words", found: "Ints", worlds: "Words", texts: "Words", composed: "Ints",
    salts: "Words", pairs: "Ints",
) -> "Ints":  # fmt: skip
    """Go through graphs sorted by hashes; count graphs, pairs and pairs without a common subgraph.

    ``pairs`` takes the latter: the first graph of those that compute the same, and another one.
    """
    counts = np.zeros(4, np.int64)
    first = -1
    for at in range(len(order)):
        here = order[at]
        if at > 0:
            before = order[at - 1]
            if keys[here, 0] == keys[before, 0] and keys[here, 1] == keys[before, 1]:
                continue
        counts[0] += 1
        if first < 0 or keys[here, 0] != keys[first, 0]:
            first = here
            counts[1] += 1
            continue
        counts[2] += 1
        if share_text(found[first], found[here], worlds, texts, composed, salts):
            continue
        if counts[3] < len(pairs):
            pairs[counts[3], 0], pairs[counts[3], 1] = first, here
        counts[3] += 1
    return counts
