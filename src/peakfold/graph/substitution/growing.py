"""Growing all terms of a size from smaller ones, compiled by numba: classes of equal terms, equal pairs."""

from typing import TYPE_CHECKING

import numpy as np

from peakfold.graph.substitution.kernel import MOST, compiled, mixed
from peakfold.graph.substitution.tensors import applied

if TYPE_CHECKING:
    import numpy.typing as npt

    from peakfold.graph.substitution.kernel import Floats, Ints, Word, Words

    Small = npt.NDArray[np.int8]
    Setting = tuple[Ints, Words, Words, Floats, Ints, Small]
    Held = tuple[Ints, Small, Words, Floats]
    Left = tuple[npt.NDArray[np.bool_], Ints, Words, Floats]
    Scratch = tuple[Ints, Ints, Words, Floats, Ints]
    Result = tuple[Ints, Ints, Words, Floats, Words]

ORDERS = 6
AT_ONCE = 1 << 18
"""Terms after which the caller is asked, who may have been interrupted."""
_EMPTY = -1

# columns of counters
TERMS, LEGAL, CLASSES, PAIRS, POOL, AT_LEFT, AT_RIGHT = range(7)


@compiled
def hashed(n: int, r: "Ints", o: "Words", salts: "Words") -> np.uint64:
    """Return the hash of a tensor: of its shape and a random sum of its elements."""
    total = np.uint64(r[0] * 10007 + r[1] * 101 + r[2] + 1)
    for at in range(n):
        total += o[at, 0] * salts[at]
    return mixed(total)


@compiled
def renamed_hashes(worlds: "Words", composed: "Ints", salts: "Words", found: "Words") -> None:
    """Hash a term as it is under each order of the inputs."""
    for order in range(ORDERS):
        total = np.uint64(0)
        for world in range(len(worlds)):
            base, place = world // ORDERS, world % ORDERS
            total += mixed(worlds[base * ORDERS + composed[place, order]] ^ salts[world])
        found[order] = total


@compiled
def leads(order: int, left: "Small", right: "Small", composed: "Ints") -> bool:
    """Return whether an order of the second operand is the first of those that renaming makes the same."""
    first = True
    for other in range(ORDERS):
        first = first and (left[other] != 0 or right[composed[other, order]] >= order)
    return first


@compiled
def looked_up(key: "Word", keys: "Words", values: "Ints") -> np.int64:
    """Return the slot of a key in a table of open addresses, or the empty slot where it belongs."""
    mask = np.uint64(len(keys) - 1)
    slot = np.int64(mixed(np.uint64(key)) & mask)
    while values[slot] != _EMPTY and keys[slot] != key:
        slot = np.int64(np.uint64(slot + 1) & mask)
    return slot


@compiled
def rehashed(keys: "Words", values: "Ints", new_keys: "Words", new_values: "Ints") -> None:
    """Move a table into a larger one."""
    for slot in range(len(keys)):
        if values[slot] != _EMPTY:
            place = looked_up(keys[slot], new_keys, new_values)
            new_keys[place] = keys[slot]
            new_values[place] = values[slot]


@compiled
def spread(
    c: int,
    world: int,
    offsets: "Ints",
    shapes: "Small",
    pool: "Words",
    reals: "Floats",
    s: "Ints",
    a: "Words",
    x: "Floats",
) -> bool:
    """Copy what a class is in a world; return whether it is legal there."""
    start = offsets[c, world]
    if start < 0:
        return False
    s[0], s[1], s[2] = shapes[c, world, 0], shapes[c, world, 1], shapes[c, world, 2]
    for at in range(s[0] * s[1] * s[2]):
        a[at, 0], a[at, 1], x[at] = pool[start + at, 0], pool[start + at, 1], reals[start + at]
    return True


@compiled
def loaded(c: int, held: "Held", left: "Left") -> None:
    """Copy what a class is in every world."""
    offsets, shapes, pool, reals = held
    there, s, a, x = left
    for world in range(len(there)):
        there[world] = spread(c, world, offsets, shapes, pool, reals, s[world], a[world], x[world])


@compiled
def evaluated(
    kind: "Ints", left: "Left", j: int, order: int, setting: "Setting", held: "Held", scratch: "Scratch",
    result: "Result",
) -> bool:  # fmt: skip
    """Apply an operator in every world, to what is loaded and a class under an order of the inputs.

    ``result`` takes the number of elements in each world (-1 where it is not legal), sizes, residues, reals
    and the hash in each world.

    Returns:
        Whether it is legal in some world.
    """
    composed, salts, constant, real, index, inputs = setting
    offsets, shapes, pool, reals = held
    there, s, a, x = left
    t, r, b, y, parts = scratch
    wide, sizes, o, z, found = result
    worlds = len(there)
    legal = False
    for world in range(worlds):
        wide[world] = -1
        found[world] = np.uint64(0)
        base, place = world // ORDERS, world % ORDERS
        if not there[world]:
            continue
        if kind[4] == 2:
            other = base * ORDERS + composed[place, order]
            if not spread(j, other, offsets, shapes, pool, reals, t, b, y):
                continue
        for axis in range(3):
            parts[0, axis] = inputs[world, kind[6], axis]
            parts[1, axis] = inputs[world, kind[7], axis]
        if applied(
            kind[1], kind[2], kind[3], inputs[world, 0, 3] == 3, constant[base : base + 1],
            real[base : base + 1], index, parts, s[world], a[world], x[world], t, b, y, r, o[world], z[world],
        ):  # fmt: skip
            n = r[0] * r[1] * r[2]
            wide[world] = n
            sizes[world, 0], sizes[world, 1], sizes[world, 2] = r[0], r[1], r[2]
            found[world] = hashed(n, r, o[world], salts[worlds:])
            legal = True
    return legal


@compiled
def workspace(worlds: int) -> "tuple[Left, Scratch, Result]":
    """Return room for one operand in every world, for the other one, and for a result."""
    left = (
        np.empty(worlds, np.bool_),
        np.empty((worlds, 3), np.int64),
        np.empty((worlds, MOST, 2), np.uint64),
        np.empty((worlds, MOST)),
    )
    scratch = (
        np.empty(3, np.int64),
        np.empty(3, np.int64),
        np.empty((MOST, 2), np.uint64),
        np.empty(MOST),
        np.empty((2, 3), np.int64),
    )
    result = (
        np.empty(worlds, np.int64),
        np.empty((worlds, 3), np.int64),
        np.empty((worlds, MOST + 1, 2), np.uint64),
        np.empty((worlds, MOST + 1)),
        np.empty(worlds, np.uint64),
    )
    return left, scratch, result


@compiled
def hashes_of(kind: "Ints", operands: "Ints", setting: "Setting", held: "Held", hashes: "Words") -> None:
    """Hash terms in every world; 0 where one is not legal.

    ``operands`` has for each term two classes and the order of the second.
    """
    left, scratch, result = workspace(held[0].shape[1])
    for row in range(len(operands)):
        loaded(operands[row, 0], held, left)
        evaluated(kind, left, operands[row, 1], operands[row, 2], setting, held, scratch, result)
        hashes[row, :] = result[4]


@compiled
def grow(
    kind: "Ints",
    lefts: "Ints",
    rights: "Ints",
    last: bool,
    setting: "Setting",
    held: "Held",
    names: "Words",
    cosets: "Small",
    own: "Words",
    made: "Ints",
    keys: "Words",
    values: "Ints",
    pairs: "Ints",
    counters: "Ints",
) -> bool:
    """Apply an operator to all operands of two ranges of classes, from where the counters stand.

    ``kind`` is the operator's place in the list, its number, two attributes, arity, whether it commutes,
    and the inputs that a split goes by; ``lefts`` and ``rights`` are the first class of each operand and
    the one after the last; with ``last`` no values are kept. ``setting`` describes the worlds: composition
    of orders, salts, the constant, the index, shapes of inputs. Of each class, ``held`` says where in the
    pool and the reals it starts in each world (-1 where it is not legal), and its shape there,
    ``names`` its hash under each order of the inputs, ``cosets`` for each order the first under which it is
    the same; these are not kept with ``last``. ``own`` is its hash, ``made`` its operator, operands and the
    order of the second. ``keys`` and ``values`` are a table from the least hash of a class to the class.
    ``pairs`` are terms that equal a class: operator, operands, order, class, order of the term.

    Returns:
        Whether all was done; False where an array is full or `AT_ONCE` terms were made.
    """
    composed, salts = setting[0], setting[1]
    offsets, shapes, pool, reals = held
    worlds = offsets.shape[1]
    left, scratch, result = workspace(worlds)
    wide, sizes, o, z, found = result
    hashes = np.empty(ORDERS, np.uint64)
    binary = kind[4] == 2
    begun = counters[TERMS]
    i = counters[AT_LEFT]
    while i < lefts[1]:
        loaded(i, held, left)
        j = counters[AT_RIGHT]
        while j < rights[1]:
            if (
                counters[TERMS] - begun > AT_ONCE
                or counters[CLASSES] + ORDERS >= len(own)
                or counters[PAIRS] + ORDERS >= len(pairs)
                or 2 * (counters[CLASSES] + ORDERS) >= len(keys)
                or (not last and counters[POOL] + ORDERS * worlds * MOST >= len(pool))
            ):
                counters[AT_LEFT], counters[AT_RIGHT] = i, j
                return False
            if kind[5] and lefts[0] == rights[0] and j > i:
                break
            for order in range(ORDERS if binary else 1):
                if binary and not leads(order, cosets[i], cosets[j], composed):
                    continue
                counters[TERMS] += 1
                if not evaluated(kind, left, j, order, setting, held, scratch, result):
                    continue
                counters[LEGAL] += 1
                renamed_hashes(found, composed, salts, hashes)
                least = hashes[0]
                for under in range(1, ORDERS):
                    least = min(least, hashes[under])
                slot = looked_up(least, keys, values)
                c = values[slot]
                if c != _EMPTY:
                    n = counters[PAIRS]
                    pairs[n, 0], pairs[n, 1], pairs[n, 2], pairs[n, 3], pairs[n, 4] = kind[0], i, j, order, c
                    pairs[n, 5] = -1
                    for under in range(ORDERS):
                        if hashes[under] == own[c]:
                            pairs[n, 5] = under
                    counters[PAIRS] += 1
                    continue
                c = counters[CLASSES]
                counters[CLASSES] += 1
                keys[slot], values[slot] = least, c
                made[c, 0], made[c, 1], made[c, 2], made[c, 3] = kind[0], i, j, order
                own[c] = hashes[0]
                if last:
                    continue
                names[c, :] = hashes
                for under in range(ORDERS):
                    cosets[c, under] = under
                    for before in range(under - 1, -1, -1):
                        if hashes[before] == hashes[under]:
                            cosets[c, under] = before
                for world in range(worlds):
                    offsets[c, world] = -1
                    if wide[world] < 0:
                        continue
                    at = counters[POOL]
                    offsets[c, world] = at
                    for axis in range(3):
                        shapes[c, world, axis] = sizes[world, axis]
                    for e in range(wide[world]):
                        pool[at + e, 0], pool[at + e, 1] = o[world, e, 0], o[world, e, 1]
                        reals[at + e] = z[world, e]
                    counters[POOL] += wide[world]
            j += 1
        i += 1
        counters[AT_RIGHT] = rights[0]
    return True
