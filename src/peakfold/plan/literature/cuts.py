"""Where the forward pass can be cut into stages: places that few bytes cross."""

from peakfold.plan.literature.subject import Subject


def crossing(subject: Subject) -> list[list[int]]:
    """Return, for each place of the forward pass, what is made up to it and read after it in the pass."""
    last = [
        max((place for place in places if place < subject.turn), default=-1) for places in subject.readers
    ]
    found: list[list[int]] = []
    live: list[int] = []
    for place, step in enumerate(subject.steps[: subject.turn]):
        live = [v for v in (*live, *subject.makes[step]) if last[v] > place]
        found.append(live)
    return found


def cuts(subject: Subject) -> list[int]:
    """Return the places after which a stage may end: the waists, where the crossing bytes are locally least.

    In a chain of layers these are the borders of its layers; where skip connections run beside, what they
    hold crosses too.
    """
    tables = subject.tables
    sizes = [sum(int(tables.nbytes[v]) for v in row) for row in crossing(subject)]
    found = []
    for place in range(len(sizes) - 1):
        falls = place == 0 or sizes[place] <= sizes[place - 1]
        if falls and sizes[place] <= sizes[place + 1]:
            found.append(place)
    return found
