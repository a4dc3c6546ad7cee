"""Copies to the host and back beside the computation; emitted files carry what they use of this text.

It needs torch and the standard library alone, and no builtin that an operator has the name of: in an
emitted file ``sum`` may be torch's. The program's own thread takes and gives back all bytes of
the device, so that they do not depend on how fast copies are: a copy is only ever waited for.
"""

import ctypes
import mmap
import os
import tempfile
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Protocol

import torch


class HostError(OSError):
    """Values could not wait on the host.

    Attributes:
        results: what the step returned where it was completed all the same; None where nothing was
            changed.
    """

    results: tuple[torch.Tensor, ...] | None = None


class Copy(Protocol):
    """A copy under way."""

    def result(self) -> object:
        """Wait until it has ended, or until what is computed next waits for it; raise what went wrong."""


class Carrier(Protocol):
    """What copies between the device and an arena on the host."""

    def open(self) -> None:
        """Take the arena, and be ready to copy; raise OSError where it cannot be had."""

    def out(self, flat: torch.Tensor, offset: int) -> Copy:
        """Start to copy to the host."""

    def back(self, flat: torch.Tensor, offset: int) -> Copy:
        """Start to copy to the device."""

    def rest(self) -> None:
        """Wait for every copy."""


class Threads:
    """Copies by two threads, one each way, against memory of the host or, with a folder, a file in it.

    The memory is taken from the system, not from torch. The file has no name, so that it is gone when the
    process is, and its space is taken before anything is copied.
    """

    def __init__(self, nbytes: int, folder: str | None) -> None:
        self.nbytes = nbytes
        self.folder = folder
        self.address = 0
        self.file: int | None = None
        self.memory: mmap.mmap | None = None

    def open(self) -> None:
        """Take the arena once; start the two threads, for one step."""
        if self.folder is None and self.memory is None:
            self.memory = mmap.mmap(-1, self.nbytes or 1)
            self.address = ctypes.addressof(ctypes.c_char.from_buffer(self.memory))
        if self.folder is not None and self.file is None:
            with tempfile.TemporaryFile(dir=self.folder) as file:
                os.posix_fallocate(file.fileno(), 0, self.nbytes or 1)
                self.file = os.dup(file.fileno())
        self.outward = ThreadPoolExecutor(1, "peakfold-out")
        self.inward = ThreadPoolExecutor(1, "peakfold-in")

    def out(self, flat: torch.Tensor, offset: int) -> "Future[None]":
        """Copy to the host in one thread."""
        return self.outward.submit(self._write, flat.data_ptr(), offset, flat.nbytes)

    def back(self, flat: torch.Tensor, offset: int) -> "Future[None]":
        """Copy back in the other thread."""
        return self.inward.submit(self._read, flat.data_ptr(), offset, flat.nbytes)

    def rest(self) -> None:
        """Wait for every copy, and end the threads."""
        self.outward.shutdown()
        self.inward.shutdown()

    def _write(self, address: int, offset: int, nbytes: int) -> None:
        if self.file is None:
            ctypes.memmove(self.address + offset, address, nbytes)
            return
        view = memoryview((ctypes.c_char * nbytes).from_address(address)).cast("B")
        done = 0
        while done < nbytes:
            done += os.pwrite(self.file, view[done : done + (1 << 24)], offset + done)

    def _read(self, address: int, offset: int, nbytes: int) -> None:
        if self.file is None:
            ctypes.memmove(address, self.address + offset, nbytes)
            return
        view = memoryview((ctypes.c_char * nbytes).from_address(address)).cast("B")
        done = 0
        while done < nbytes:
            count = os.preadv(self.file, [view[done : done + (1 << 24)]], offset + done)
            if not count:
                raise OSError("the file of the offload has lost its end")
            done += count

    def __del__(self) -> None:
        if self.file is not None:
            os.close(self.file)


class Event:
    """A copy on a stream: what the current stream does next waits for it, the host does not."""

    def __init__(self, stream: torch.cuda.Stream) -> None:
        self.event = stream.record_event()

    def result(self) -> None:
        """Let the current stream wait."""
        torch.cuda.current_stream().wait_event(self.event)


class Streams:
    """Copies by two side streams of a CUDA device, against pinned memory of the host.

    A buffer is given back once the current stream waits for its copy, and the copy back waits for what
    the current stream was told before: bytes are reused in the order of the current stream.
    """

    def __init__(self, nbytes: int, device: str) -> None:
        self.nbytes = nbytes
        self.device = device
        self.memory: torch.Tensor | None = None

    def open(self) -> None:
        """Take pinned memory and two streams, once."""
        if self.memory is not None:
            return
        try:
            self.memory = torch.empty(self.nbytes or 1, dtype=torch.uint8, pin_memory=True)
        except RuntimeError as error:
            raise OSError(f"{self.nbytes} bytes of pinned memory cannot be had: {error}") from error
        self.outward = torch.cuda.Stream(self.device)  # type: ignore[no-untyped-call]
        self.inward = torch.cuda.Stream(self.device)  # type: ignore[no-untyped-call]

    def out(self, flat: torch.Tensor, offset: int) -> Event:
        """Copy to the host on one stream."""
        self.outward.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.outward):
            self._place(flat, offset).copy_(flat, non_blocking=True)
        return Event(self.outward)

    def back(self, flat: torch.Tensor, offset: int) -> Event:
        """Copy back on the other stream."""
        self.inward.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.inward):
            flat.copy_(self._place(flat, offset), non_blocking=True)
        return Event(self.inward)

    def rest(self) -> None:
        """Let the current stream wait for every copy."""
        torch.cuda.current_stream().wait_stream(self.outward)
        torch.cuda.current_stream().wait_stream(self.inward)

    def _place(self, flat: torch.Tensor, offset: int) -> torch.Tensor:
        assert self.memory is not None
        return self.memory[offset : offset + flat.nbytes].view(flat.dtype)


class Away:
    """One tensor's way to the host and back.

    Args:
        host: whose arena it waits in.
        tensor: what is moved; ``lent`` says that others hold it: its storage is emptied and filled again,
            the tensor itself stays.
        offset: where it waits.
    """

    def __init__(self, host: "Host", tensor: torch.Tensor, offset: int, lent: bool) -> None:
        self.host, self.offset, self.lent = host, offset, lent
        self.tensor: torch.Tensor | None = tensor
        self.form = (tensor.shape, tensor.stride(), tensor.dtype, tensor.device)
        self.nbytes = tensor.untyped_storage().nbytes()
        self.gone = False
        self.copy = host.carrier.out(flat(tensor), offset)

    def release(self) -> None:
        """Wait for the copy, and give the bytes back; where it went wrong, keep them and note why."""
        try:
            self.copy.result()
        except OSError as error:
            self.host.fault = self.host.fault or error
            return
        self.gone = True
        if self.lent and self.tensor is not None:
            self.tensor.untyped_storage().resize_(0)
        elif not self.lent:
            self.tensor = None

    def prefetch(self) -> torch.Tensor:
        """Take the bytes again, and start to copy back."""
        if self.gone and self.tensor is not None:
            self.tensor.untyped_storage().resize_(self.nbytes)
        if self.tensor is None:
            shape, strides, dtype, device = self.form
            self.tensor = torch.empty_strided(shape, strides, dtype=dtype, device=device)
        if self.gone:
            self.copy = self.host.carrier.back(flat(self.tensor), self.offset)
        return self.tensor

    def arrive(self) -> None:
        """Wait for the copy back."""
        if self.gone:
            self.copy.result()
        self.gone = False
        self.host.away.pop(self, None)
        self.tensor = None

    def restore(self) -> None:
        """Bring a lent tensor back wherever it is: the step was broken off."""
        if self.lent and self.gone:
            self.prefetch()
            self.arrive()


class Host:
    """What a program offloads to.

    Args:
        carrier: does the copies.
        lent: names of the caller's tensors that are moved.
    """

    def __init__(self, carrier: Carrier, lent: Collection[str] = ()) -> None:
        self.carrier = carrier
        self.lent = lent
        self.away: dict[Away, None] = {}
        self.fault: OSError | None = None

    def run(
        self,
        program: Callable[..., tuple[torch.Tensor, ...]],
        tensors: Mapping[str, torch.Tensor],
        *rest: object,
    ) -> tuple[torch.Tensor, ...]:
        """Run a program; whatever happens, the caller's tensors have their bytes afterwards.

        Raises:
            HostError: the arena cannot be had, and nothing was changed; or copies went wrong, and the
                step was completed with more bytes on the device.
        """
        self._prepare(tensors)
        try:
            results = program(tensors, *rest)
        except BaseException:
            for trip in tuple(self.away):
                trip.restore()
            raise
        finally:
            self.carrier.rest()
            self.away.clear()
        if self.fault is not None:
            error = HostError(f"offloading failed, and the step was completed without it: {self.fault}")
            error.results = results
            raise error from self.fault
        return results

    def offload(self, tensor: torch.Tensor, offset: int, lent: bool = False) -> Away:
        """Start to copy a tensor to the host; it may be read until it is released."""
        trip = Away(self, tensor, offset, lent)
        self.away[trip] = None
        return trip

    def _prepare(self, tensors: Mapping[str, torch.Tensor]) -> None:
        self.fault = None
        holders: dict[int, int] = {}
        for tensor in tensors.values() if self.lent else ():
            place = tensor.untyped_storage().data_ptr()
            holders[place] = holders.get(place, 0) + 1
        for name in self.lent:
            storage = tensors[name].untyped_storage()
            whole = storage.nbytes() == flat(tensors[name]).nbytes
            if not whole or not storage.resizable() or holders[storage.data_ptr()] > 1:
                raise HostError(f"{name} shares its storage, or it cannot be resized: it cannot be offloaded")
        try:
            self.carrier.open()
        except (OSError, ValueError) as error:
            raise HostError(f"no room to offload to, nothing was changed: {error}") from error


def flat(tensor: torch.Tensor) -> torch.Tensor:
    """Return all bytes of a tensor, gaps between its strides included, in one dimension."""
    extent = 1 if tensor.numel() else 0
    for length, stride in zip(tensor.shape, tensor.stride(), strict=True):
        extent += (length - 1) * stride if extent else 0
    return tensor.detach().as_strided((extent,), (1,))
