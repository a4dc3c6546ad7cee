"""`Step`: the optimized program in place of the loop body that users write."""

import threading
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path

import torch
from torch.utils import _pytree as pytree

from peakfold.bridge.capture.batches import arguments, flatten
from peakfold.bridge.capture.binding import BatchLeaf, GradientOf, Verbatim
from peakfold.bridge.runtime.arena import Arena, Recorder, Results, Ways
from peakfold.bridge.runtime.bind import Binder, Subject
from peakfold.bridge.runtime.clock import Clock
from peakfold.bridge.runtime.compiled import Compiled
from peakfold.bridge.runtime.held import Copies, Holder
from peakfold.bridge.runtime.home import Home
from peakfold.bridge.runtime.lent import as_tensors
from peakfold.bridge.runtime.offload import HostError
from peakfold.bridge.runtime.save import save
from peakfold.bridge.runtime.source import failing_line, host_error, load_source, tell
from peakfold.errors import CacheError, CaptureError, UsageError
from peakfold.ir.plan import Plan

Recapture = Callable[[object], Compiled]
"""Makes a program for a batch, under what the model and the optimizer are now."""


MOST_PROGRAMS = 16
"""Programs that a step keeps: of more, the one that ran longest ago goes, to be made anew when wanted."""


class Step:
    """An optimized training step, or inference, on the user's own model.

    ``loss = step(*batch)`` (``step(batch)`` for a dict) does what ``loss.backward();
    optimizer.step(); optimizer.zero_grad()`` does, and updates the same Parameter objects and
    optimizer state in place: state_dict, checkpoints, learning-rate schedulers and eager steps in
    between keep working. A loss that is NaN or infinite is returned as eager returns it.

    A program holds for what it was captured under. When something else is seen, a new program is
    made and kept beside the others; the `MOST_PROGRAMS` that ran last are kept.

    Attributes:
        outputs: what ``loss_fn`` returned beside the loss in the last step, detached.
    """

    def __init__(
        self,
        subject: Subject,
        first: Compiled,
        recapture: Recapture | None = None,
        *,
        inference: bool = False,
        recorder: Recorder | Clock | None = None,
    ) -> None:
        self.outputs: object = None
        self._subject = subject
        self._recapture = recapture
        self._home = Home()
        self._holder = Holder()
        self._programs: list[_Program] = []
        self._admit(_Program(first, subject, self._home, self._holder, recorder))
        self._by_keyword = _takes_keywords(first.binding.batch)
        self._lock = threading.Lock()

    @property
    def report(self) -> object:
        """What is known about the program that ran last."""
        return self._programs[0].compiled.report

    @property
    def source(self) -> str:
        """The emitted file of the program that ran last."""
        return self._programs[0].compiled.source

    @property
    def plan(self) -> Plan:
        """The plan of the program that ran last."""
        return self._programs[0].compiled.plan

    @property
    def compiled(self) -> Compiled:
        """The program that ran last."""
        return self._programs[0].compiled

    @property
    def arena(self) -> Arena | None:
        """The arena in which the program that ran last has its allocations; None for torch's allocator."""
        return self._programs[0].arena

    @property
    def arena_bytes(self) -> int:
        """Bytes of the arena of this step, and of all steps that share it."""
        return self._home.nbytes

    @property
    def held_bytes(self) -> int:
        """Bytes of the caller's own tensors that lie in the arena since the last step."""
        return self._holder.nbytes

    def move_to(self, home: Home) -> None:
        """Have the arena of every program of this step elsewhere from now on; no step may be running."""
        programs, self._programs = self._programs, []
        self._home, self._holder = home, Holder()
        for program in reversed(programs):
            program.move_to(home, self._holder)
            self._admit(program)

    def place(self, *args: object, **kwargs: object) -> object:
        """Copy a batch to where the arena has room for it; return it as tensors there.

        Write the next batches into these, and call the step with them: then nothing is copied. A step whose
        arena does not hold the batch gives it back as it is.

        Returns:
            The batch as it was given: a tuple of positions, or a dict of keywords.
        """
        batch, _ = as_tensors(self._as_batch(args, kwargs))
        leaves, tree = pytree.tree_flatten(arguments(batch))
        placed, named = pytree.tree_unflatten(self._program_for(batch).placed(leaves), tree)
        return named or placed

    def save(self, path: str | Path) -> None:
        """Write the program that ran last to a file that `peakfold.load` reads."""
        save(self.compiled, Path(path))

    def __call__(self, *args: object, **kwargs: object) -> object:
        """Run one step; return the loss (of inference: the outputs).

        Raises:
            UsageError: another thread is in a step of this model.
            CacheError: what the program offloads found no room; whether the step was done, it says.
            CaptureError: the program does not hold for what is seen, and none can be made.
        """
        if not self._lock.acquire(blocking=False):
            raise UsageError(
                stage="step",
                what="the step is running in another thread",
                expected="one step at a time: each updates the same model",
                hint="call it from one thread, or make a step for a copy of the model",
            )
        try:
            return self._run(args, kwargs)
        finally:
            self._lock.release()

    def _run(self, args: tuple[object, ...], kwargs: dict[str, object]) -> object:
        self.outputs = None
        batch, copies = as_tensors(self._as_batch(args, kwargs))
        program = self._program_for(batch)
        results, outputs = program.run(batch, copies)
        if self._subject.optimizer is not None:
            self._subject.optimizer._opt_called = True  # type: ignore[attr-defined]
        if program.compiled.inference:
            return outputs
        self.outputs = outputs
        return results[0]

    def _as_batch(self, args: tuple[object, ...], kwargs: dict[str, object]) -> object:
        """Return the batch of a call: a dict where it is passed by keywords, or as one dict."""
        if kwargs and not args:
            return kwargs
        return args[0] if self._by_keyword and len(args) == 1 and isinstance(args[0], Mapping) else args

    def _program_for(self, batch: object) -> "_Program":
        """Return the program whose guards hold, the one that ran last first; make one if none does."""
        reason = ""
        for program in self._programs:
            broken = program.broken(batch)
            if broken is None:
                self._move_to_front(program)
                return program
            reason = reason or broken
        if self._recapture is None:
            raise CaptureError(
                stage="step",
                what="the step does not hold for this call",
                expected="what it was captured under",
                got=reason,
                hint="call optimize_step again",
            )
        made = self._recapture(batch)
        self._admit(_Program(made, self._subject, self._home, self._holder))
        return self._programs[0]

    def _admit(self, program: "_Program") -> None:
        """Have room for a program, and put it in front."""
        gone = self._home.admit(program, program.compiled.layout, self._holder)
        kept = [program, *(one for one in self._programs if one not in gone)]
        self._programs = kept[:MOST_PROGRAMS]

    def _move_to_front(self, program: "_Program") -> None:
        if self._programs[0] is not program:
            self._programs.remove(program)
            self._programs.insert(0, program)


class _Program:
    """A compiled program bound to the user's objects."""

    def __init__(
        self,
        compiled: Compiled,
        subject: Subject,
        home: Home,
        holder: Holder,
        recorder: Recorder | Clock | None = None,
    ) -> None:
        self.compiled = compiled
        self._function = load_source(compiled.source)
        self.move_to(home, holder)
        self._recorder = recorder
        if isinstance(recorder, Recorder):
            tell(self._function, recorder)
        elif compiled.layout is not None:
            tell(self._function, Ways(compiled.layout))
        self._subject = subject
        self._host_error = host_error(self._function)
        self._binder = Binder(compiled, subject)
        self._has_run = False
        updated = {name for group in compiled.portable.groups for name in group.parameters}
        read = (source.name for source in compiled.binding.sources if isinstance(source, GradientOf))
        self._cleared = [name for name in read if name in updated]

    @property
    def arena(self) -> Arena | None:
        """The arena in which it has its allocations; None for torch's allocator."""
        return self._home.arena(self)

    def move_to(self, home: Home, holder: Holder) -> None:
        """Have the arena elsewhere from now on."""
        self._home, self._holder = home, holder

    def placed(self, leaves: list[object]) -> list[object]:
        """Return the leaves of a batch, copied to their places in the arena where they have one."""
        found = list(leaves)
        for given, source in zip(self.compiled.graph.inputs, self.compiled.binding.sources, strict=True):
            if isinstance(source, BatchLeaf) and self._holder.holds(given.name):
                leaf = leaves[source.index]
                assert isinstance(leaf, torch.Tensor)
                found[source.index] = self._holder.view(given.name, leaf).copy_(leaf)
        return found

    def broken(self, batch: object) -> str | None:
        """Return what does not hold any more, or None."""
        subject = self._subject
        return self.compiled.guards.check(subject.model, subject.optimizer, batch)

    def run(self, batch: object, copies: Copies) -> tuple[tuple[torch.Tensor, ...], object]:
        """Run once, after so many copies.

        Returns:
            The outputs of the graph, and those of them that are the user's, as a tree.
        """
        if not self._binder.is_current():
            self._binder = Binder(self.compiled, self._subject)
        binding = self.compiled.binding
        leaves = list(flatten(batch).leaves)
        tensors, scalars = self._binder.fetch(leaves)
        tensors, brought = self._holder.bring(self.compiled.graph, binding, tensors)
        fault, arena = None, self.arena
        try:
            with _no_autocast():
                results = self._called(arena, tensors, scalars)
        except self._host_error as error:
            if error.results is None:
                self._binder.undo()
                raise _not_offloaded(error) from error
            results, fault = error.results, error
        except BaseException as error:
            self._binder.undo()
            if self._has_run or not isinstance(error, Exception):
                raise
            raise _not_run(error) from error
        self._has_run = True
        if arena is not None:
            made = copies + brought
            arena.use = replace(arena.use, copies=made.tensors, copied_bytes=made.nbytes)
        self._binder.take_back()
        self._leave_gradients(results, leaves)
        if fault is not None:
            raise _not_offloaded(fault) from fault
        if binding.outputs is None:
            return results, None
        picked = [
            leaf.value if isinstance(leaf, Verbatim) else results[leaf] for leaf in binding.output_leaves
        ]
        return results, pytree.tree_unflatten(picked, binding.outputs)

    def _called(
        self, arena: Arena | None, tensors: Mapping[str, torch.Tensor], scalars: Mapping[str, float]
    ) -> Results:
        if self._recorder is not None:
            return self._recorder.run(lambda mark: self._function(tensors, scalars, mark))  # type: ignore[call-arg]
        if arena is not None:
            return arena.run(lambda: self._function(tensors, scalars))
        return self._function(tensors, scalars)

    def _leave_gradients(self, results: tuple[torch.Tensor, ...], leaves: list[object]) -> None:
        """Leave in ``.grad`` what backward leaves there, and what ``zero_grad`` does."""
        model = self._subject.model
        for of, index in self.compiled.binding.gradients:
            owner = leaves[of] if isinstance(of, int) else model.get_parameter(of)
            assert isinstance(owner, torch.Tensor)
            if owner.grad is None:
                owner.grad = results[index]
            else:
                owner.grad.add_(results[index])
        for name in self._cleared:
            model.get_parameter(name).grad = None


def _not_offloaded(error: HostError) -> CacheError:
    """Say what went wrong with what was to wait on the host, and where that leaves the user's state."""
    done = error.results is not None
    return CacheError(
        stage="step",
        what="values could not wait on the host",
        got=str(error),
        expected="room for all that is offloaded",
        hint=(
            "the step is complete, its update too: go on after making room, or optimize without offloading"
            if done
            else "nothing was changed: make room and call the step again, or optimize without offloading"
        ),
    )


def _not_run(error: Exception) -> CaptureError:
    """Say which operator of a new program fails: fake tensors accept types that kernels do not."""
    return CaptureError(
        stage="step",
        what="the program of this call fails when it is run for the first time",
        where=failing_line(error),
        expected="a batch that the step accepts without peakfold",
        got=f"{type(error).__name__}: {error}",
        hint="run the step without peakfold on this batch: it has to work there first",
    )


def _takes_keywords(batch: pytree.TreeSpec) -> bool:
    _, kwargs = pytree.tree_unflatten([None] * batch.num_leaves, batch)
    return bool(kwargs)


def _no_autocast() -> AbstractContextManager[object]:
    """Keep the casts that were captured the only ones."""
    for device in ("cpu", "cuda"):
        if torch.is_autocast_enabled(device):
            return torch.autocast(device, enabled=False)
    return nullcontext()
