"""Flat weights: all tensors of a module in one buffer, in host memory and, while restored, on a device.

Tensors that share their memory, such as tied embeddings, share their slot of the buffer. Slots are
aligned, so that each can be viewed as its own type; the gaps between them are zero.
"""

from __future__ import annotations

import contextlib
import hashlib
import time
from typing import Any, NamedTuple

import torch

#: Start of each tensor: what the device's own allocator aligns to.
ALIGNMENT_BYTES = 256
#: Large enough for full bandwidth, small enough that the sums of pieces locate a wrong copy.
PIECE_BYTES = 256 * 2**20


class TensorSlot(NamedTuple):
    """The place of a tensor in the buffer."""

    begin: int
    nbytes: int
    dtype: Any
    shape: Any


class Copied(NamedTuple):
    """Bytes and time of a restore."""

    nbytes: int
    seconds: float


class FlatWeights:
    """The weights of one module. After `restore` they are on the device, before it on the host."""

    def __init__(self, module: Any, device: Any, piece_bytes: int = PIECE_BYTES) -> None:
        """Move the parameters and buffers of ``module`` into one flat copy in host memory.

        ``module`` may be a list of tensors as well.
        """
        self._device = torch.device(device)
        self._piece_bytes = piece_bytes
        self._parts: list[tuple[Any, TensorSlot]] = []
        whole = isinstance(module, torch.nn.Module)
        tensors = [*module.parameters(), *module.buffers()] if whole else module
        self.nbytes = self._lay_out(tensors)
        self._memory = PinnedMemory(self.nbytes, self._device)
        self._host = self._memory.flat
        for tensor, part in self._parts:
            view = _view(self._host, part)
            view.copy_(tensor.detach())
            tensor.data = view  # the original is dropped here, one at a time
        self._resident: Any = None
        #: Checksum of the host's copy.
        self.checksum = checksum(self._host, piece_bytes)

    @property
    def most_nbytes(self) -> int:
        """Bytes on the fullest device: the only one."""
        return self.nbytes

    @property
    def resident(self) -> bool:
        """They are on the device."""
        return self._resident is not None

    def restore(self) -> Copied:
        """Copy them to the device. Raises torch's own error when memory is short."""
        began = time.perf_counter()
        if self._resident is not None:
            return Copied(0, 0.0)
        flat = torch.empty(self.nbytes, dtype=torch.uint8, device=self._device)
        stream_in(flat, self._host, self._piece_bytes)
        self._point_at(flat)
        self._resident = flat
        return Copied(self.nbytes, time.perf_counter() - began)

    def rehash(self) -> None:
        """Take note of new values in the host's copy, while they are not on the device."""
        self.checksum = checksum(self._host, self._piece_bytes)

    def unchanged(self) -> bool:
        """Say whether the weights on the device have the checksum of the host's copy."""
        return bool(checksum(self._resident, self._piece_bytes) == self.checksum)

    def release(self) -> int:
        """Free the device's memory, without writing anything back; return how much."""
        if self._resident is None:
            return 0
        self._point_at(self._host)
        self._resident = None
        give_back(self._device)
        return self.nbytes

    def close(self) -> None:
        """Release them, and unlock the host's copy; no restore follows."""
        self.release()
        synchronize(self._device)
        self._memory.close()

    def _point_at(self, flat: Any) -> None:
        for tensor, part in self._parts:
            tensor.data = _view(flat, part)

    def _lay_out(self, tensors: list[Any]) -> int:
        """Assign each tensor a slot; return the bytes of all."""
        known: dict[Any, TensorSlot] = {}
        end = 0
        for tensor in tensors:
            same = (tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride())
            part = known.get(same)
            if part is None:
                nbytes = tensor.numel() * tensor.element_size()
                part = TensorSlot(end, nbytes, tensor.dtype, tensor.shape)
                end += -(-nbytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
                if nbytes:  # empty tensors have no address
                    known[same] = part
            self._parts.append((tensor, part))
        return end


def stream_in(flat: Any, host: Any, piece_bytes: int) -> None:
    """Copy ``host`` into ``flat`` in pieces, on a CUDA stream of its own."""
    pieces = zip(flat.split(piece_bytes), host.split(piece_bytes))
    if flat.device.type != "cuda":
        for into, out_of in pieces:
            into.copy_(out_of)
        return
    stream = torch.cuda.Stream(flat.device)
    stream.wait_stream(torch.cuda.current_stream(flat.device))
    with torch.cuda.stream(stream):
        for into, out_of in pieces:
            into.copy_(out_of, non_blocking=True)
    stream.synchronize()


class PinnedMemory:
    """Zeroed host memory for asynchronous copies: page-locked where the device is a GPU.

    Registered rather than allocated as pinned: torch's allocator rounds up to a power of two. It must
    be unregistered before it is freed (`close`), unless the process ends.
    """

    def __init__(self, nbytes: int, device: Any) -> None:
        self.flat = torch.zeros(nbytes, dtype=torch.uint8)
        self._registered = device.type == "cuda" and nbytes > 0 and self._register(device)
        if device.type == "cuda" and not self._registered:
            self.flat = self.flat.pin_memory()

    def close(self) -> None:
        """Unregister the memory."""
        if self._registered:
            torch.cuda.cudart().cudaHostUnregister(self.flat.data_ptr())
            self._registered = False

    def _register(self, device: Any) -> bool:
        torch.cuda.init()
        cuda = torch.cuda.cudart()
        if int(cuda.cudaHostRegister(self.flat.data_ptr(), self.flat.numel(), 0)) == 0:
            return True
        with contextlib.suppress(RuntimeError):
            torch.zeros(1, device=device)  # clears the error that a refusal leaves behind
        return False


def give_back(device: Any) -> None:
    """Return unused memory of the allocator to the device, for other processes."""
    if device.type != "cuda":
        return
    synchronize(device)
    # Workspaces of matrix products are kept for each stream, megabytes of each.
    clear = getattr(torch._C, "_cuda_clearCublasWorkspaces", None)
    if clear is not None:
        clear()
    torch.cuda.empty_cache()


def synchronize(device: Any) -> None:
    """Wait until the device has finished all its work."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def checksum(flat: Any, piece_bytes: int = PIECE_BYTES) -> str:
    """Return a checksum, computed on the device of ``flat``, which it reads once."""
    words = flat.view(torch.int32).split(max(1, piece_bytes // 4))
    sums = [words_.sum(dtype=torch.int64) for words_ in words]
    numbers = torch.stack(sums).tolist() if sums else []
    return hashlib.sha256(repr(numbers).encode()).hexdigest()


def _view(flat: Any, part: TensorSlot) -> Any:
    return flat[part.begin : part.begin + part.nbytes].view(part.dtype).view(part.shape)
