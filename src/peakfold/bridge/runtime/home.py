"""Where programs that run in turn have their arena: one block, as large as they need in turn."""

import threading
import warnings
from weakref import WeakKeyDictionary

from peakfold.bridge.runtime.arena import Arena, Memory, require_works
from peakfold.bridge.runtime.held import Holder
from peakfold.errors import UsageError
from peakfold.plan.memory.block import Block, block_beside, block_of, most, placed_from, together
from peakfold.plan.memory.layout import Held, Layout


class Home:
    """One block of bytes for the programs of a step, or of several.

    A program that needs more has the block replaced by a larger one: the old one is freed, with the last
    result in it that the caller still has, and all programs use the new one from their next run on.

    Attributes:
        fault: why there is no arena; empty where there is one.
    """

    def __init__(self, *, shared: bool = False) -> None:
        """Have no bytes before the first program is known.

        Args:
            shared: by several steps. The block is then as large as what passes in any of them and the
                results of any of them, and what each step holds for the caller lies in a block of its own.
                Else it is never larger than the largest arena of a program: where two do not fit in that
                together, for what they hold, the older one gives way.
        """
        self.fault = ""
        self._shared = shared
        self._lock = threading.RLock()
        self._block = Block()
        self._device = "cpu"
        self._memory: Memory | None = None
        self._layouts: WeakKeyDictionary[object, Layout] = WeakKeyDictionary()
        self._arenas: WeakKeyDictionary[object, Arena] = WeakKeyDictionary()
        self._beside: WeakKeyDictionary[Holder, tuple[Memory, tuple[Held, ...]]] = WeakKeyDictionary()

    @property
    def nbytes(self) -> int:
        """Bytes of all blocks here."""
        own = 0 if self._memory is None else self._memory.size
        return own + sum(memory.size for memory, _ in self._beside.values())

    def admit(self, guest: object, layout: Layout | None, holder: Holder) -> list[object]:
        """Have room for a program, and for what it holds; warn where there can be no arena.

        Args:
            guest: the program.
            layout: where its allocations lie; None for one without an arena.
            holder: knows the places of what the programs of its step hold.

        Returns:
            Programs for which there is no room any more.
        """
        if layout is None:
            return []
        with self._lock:
            try:
                return self._admitted(guest, layout, holder)
            except UsageError as error:
                if not self.fault:
                    message = f"the step runs without its arena: {error}"
                    warnings.warn(message, RuntimeWarning, stacklevel=2)
                self.fault = str(error)
                return []

    def arena(self, guest: object) -> Arena | None:
        """Return the arena of a program; None for one without."""
        with self._lock:
            layout, memory = self._layouts.get(guest), self._memory
            if layout is None or memory is None:
                return None
            if guest not in self._arenas:
                self._arenas[guest] = Arena(layout, memory, self._block.lift(layout))
            return self._arenas[guest]

    def _admitted(self, guest: object, layout: Layout, holder: Holder) -> list[object]:
        require_works(layout.device)
        self._layouts[guest], self._device = layout, layout.device
        if self._shared:
            self._hold(layout, holder)
            block = block_beside(list(self._layouts.values()))
            if self._memory is None or block.own > self._block.own:
                self._replace(block)
            return []
        if self._memory is not None and _fits(layout, self._block):
            return []
        newest = list(self._layouts.items())[::-1]
        chosen = together([of for _, of in newest])
        block = block_of(chosen)
        holder.take(self._replace(block), block.held)
        gone = [one for one, of in newest if not any(of is other for other in chosen)]
        for one in gone:
            del self._layouts[one]
        return gone

    def _replace(self, block: Block) -> Memory:
        """Have another block; the old one is freed first."""
        self._arenas.clear()
        self._memory = None
        self._memory, self._block = Memory(block.size, self._device), block
        return self._memory

    def _hold(self, layout: Layout, holder: Holder) -> None:
        """Have places in a block of its own for what a step holds."""
        _, before = self._beside.get(holder, (None, ()))
        held = placed_from(0, most((*before, *layout.held)))
        if held != before:
            memory = Memory(sum(one.room for one in held), self._device)
            self._beside[holder] = memory, held
            holder.take(memory, held)


def _fits(layout: Layout, block: Block) -> bool:
    rooms = {one.name: one.size for one in block.held}
    return layout.own <= block.own and all(one.size <= rooms.get(one.name, -1) for one in layout.held)
