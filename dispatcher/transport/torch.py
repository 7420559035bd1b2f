"""Torch transport: `all_to_all_single` with splits, over a process group of torch, with a side heartbeat that names a rank that fails.

The group moves the bytes; a `GroupMembership` over TCP beside it compares what the ranks are about to do, finds ranks that are dead or silent, and
has all ranks end together. Its addresses and its secret are exchanged through the group.

Rules
1. Ranks are those of the process group, from 0. They meet in rounds of at most ``round_bytes`` that each rank sends, so that memory beside the
   arrays is bounded: pieces are packed into one flat tensor, as the call demands, each stream with its CRC-32 behind it.
2. A lost rank is `RankLost` on each rank. A process group cannot go on without it, so that replicas do not help here.
3. gloo has no means to abort a call: the thread that is in it ends when the group's own timeout does. Where a group can be aborted, it is.
   A process that ends before has to leave by `os._exit`.
4. With NCCL the flat tensors are on ``device``; the call is the same. It was never run by the authors.

This module alone imports torch. It runs with torch 1.13, whose gloo has `all_to_all_single` and no `all_to_all`.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Mapping
from functools import partial
from types import TracebackType
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from dispatcher.cost import ALL_TO_ALL, NOTHING
from dispatcher.transfer_plan import TransferPlan
from dispatcher.transport import agreement
from dispatcher.transport.connections import CONTROL, Acceptor, Address, connect, listen
from dispatcher.transport.errors import (
    Corrupted,
    DispatchError,
    RankLost,
    as_dispatch_error,
)
from dispatcher.transport.frames import checksum
from dispatcher.transport.membership import GroupMembership
from dispatcher.transport.report import ExchangeReport
from dispatcher.transport.spans import Array, ScatterTarget, readable
from dispatcher.transport.steps import copy_in_place, steps
from dispatcher.transport.streams import PackedStream, TensorPiece, size

_CHECKSUM_BYTES = 4
_SECRET_BYTES = 32
_ADDRESS_BYTES = 256


class TorchTransport:
    """One rank's end of a process group. A context manager: leaving it ends the heartbeat, and leaves the process group as it is."""

    def __init__(
        self,
        process_group: Any = None,
        *,
        host: str = "127.0.0.1",
        device: str = "cpu",
        round_bytes: int = 256 << 20,
        silence_seconds: float = 3.0,
        connect_seconds: float = 30.0,
    ) -> None:
        """Return when all ranks of the group are connected; collective. ``host`` is this rank's address for the heartbeat of the others."""
        self.rank: int = dist.get_rank(process_group)
        self.ranks = tuple(range(dist.get_world_size(process_group)))
        self.report = ExchangeReport(NOTHING)
        self._group, self._device, self._round_bytes = process_group, device, round_bytes
        self._silence_seconds, self._using = silence_seconds, threading.Lock()
        listener = listen(host)
        self._addresses, self._secret = self._introduce(listener.getsockname()[:2])
        self._membership = GroupMembership(
            self.rank, self.ranks, self._connect, agreement.judge, silence_seconds, connect_seconds
        )
        self._acceptor = Acceptor(
            listener,
            self._secret,
            self.rank,
            silence_seconds,
            lambda rank, purpose: self._membership.admit(rank),
            lambda rank, purpose, connection: self._membership.adopt(rank, connection),
        )
        try:
            self._membership.open()
        except BaseException:
            self.close()
            raise

    @property
    def lost(self) -> dict[int, str]:
        """Ranks that the group lost, and why."""
        return self._membership.lost

    def exchange(
        self, plan: TransferPlan, tensors: Mapping[str, Any], *, timeout_seconds: float = 600.0
    ) -> dict[str, Any]:
        """Return this rank's arrays of the target layout, as `TcpTransport.exchange` does: numpy arrays from numpy arrays."""
        with self._using:
            try:
                return self._exchange(plan, tensors, timeout_seconds)
            except BaseException as error:
                self._membership.fail(as_dispatch_error(error, self.rank))
                self.close()
                self._abort()
                raise

    def close(self) -> None:
        """End the heartbeat, and with it this group of transports, for all ranks. Idempotent."""
        self._membership.close()
        self._acceptor.close()

    def __enter__(self) -> TorchTransport:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _exchange(
        self, plan: TransferPlan, tensors: Mapping[str, Any], timeout_seconds: float
    ) -> dict[str, Any]:
        began = time.perf_counter()
        unknown = sorted(set(plan.ranks) - set(self.ranks))
        if unknown:
            raise ValueError(f"ranks {unknown} of the plan are not in this process group")
        options = f"torch, rounds of {self._round_bytes} bytes"
        about = agreement.describe(plan, self.rank, tensors, options)
        self._agree({"about": about}, timeout_seconds)
        report = self.report = ExchangeReport(ALL_TO_ALL if plan.bytes_crossing else NOTHING)
        want = plan.target.empty(self.rank) if self.rank in plan.target.mesh.ranks else {}
        sends: dict[int, list[TensorPiece]] = {}
        receives: dict[int, list[TensorPiece]] = {}
        if self.rank in plan.ranks:
            (step,) = steps(plan, ALL_TO_ALL, self.rank, tensors, want)
            sends, receives = step.sends, step.receives
            copy_in_place(plan, self.rank, tensors, want)
        self._rounds(sends, receives, max(plan.pair_bytes().values(), default=0))
        report.add(
            {to: size(pieces) for to, pieces in sends.items()},
            {sender: size(pieces) for sender, pieces in receives.items()},
        )
        self._agree({}, timeout_seconds)
        report.seconds = time.perf_counter() - began
        return want

    def _rounds(
        self,
        sends: dict[int, list[TensorPiece]],
        receives: dict[int, list[TensorPiece]],
        longest: int,
    ) -> None:
        """Move all streams, of which the ``longest`` of the group says how many rounds there are."""
        share = max(1, self._round_bytes // len(self.ranks))
        sources = {to: PackedStream(pieces) for to, pieces in sends.items()}
        targets = {
            sender: ScatterTarget(piece.view for piece in pieces)
            for sender, pieces in receives.items()
        }
        for start in range(0, longest, share):
            goes = _counts(self.ranks, sends, start, share)
            comes = _counts(self.ranks, receives, start, share)
            flat = self._pack(sources, goes)
            got = self._watched(partial(self._call, flat, goes, comes))
            self._unpack(got, targets, receives, comes)

    def _pack(self, sources: dict[int, PackedStream], counts: list[int]) -> Array:
        flat = np.empty(sum(map(_with_checksum, counts)), np.uint8)
        at = 0
        for to, count in zip(self.ranks, counts, strict=True):
            if count:
                stream = flat[at : at + count]
                sources[to].read_into(stream)
                found = checksum([readable(stream)])
                flat[at + count : at + count + _CHECKSUM_BYTES] = np.frombuffer(
                    found.to_bytes(_CHECKSUM_BYTES, "big"), np.uint8
                )
                at += count + _CHECKSUM_BYTES
        return flat

    def _unpack(
        self,
        flat: Array,
        targets: dict[int, ScatterTarget],
        receives: dict[int, list[TensorPiece]],
        counts: list[int],
    ) -> None:
        at = 0
        for sender, count in zip(self.ranks, counts, strict=True):
            if count:
                stream = readable(flat[at : at + count])
                sent = bytes(flat[at + count : at + count + _CHECKSUM_BYTES])
                if checksum([stream]) != int.from_bytes(sent, "big"):
                    names = ", ".join(sorted({piece.tensor for piece in receives[sender]}))
                    raise Corrupted(sender, names)
                done = 0
                for part in targets[sender].take(count):
                    part[:] = stream[done : done + len(part)]
                    done += len(part)
                targets[sender].commit()
                at += count + _CHECKSUM_BYTES

    def _call(self, flat: Array, goes: list[int], comes: list[int]) -> Array:
        """Exchange flat bytes; blocks. The one call that NCCL shares."""
        given = torch.from_numpy(flat).to(self._device)
        splits = [_with_checksum(count) for count in comes]
        got = torch.empty(sum(splits), dtype=torch.uint8, device=self._device)
        dist.all_to_all_single(
            got, given, splits, [_with_checksum(count) for count in goes], group=self._group
        )
        found: Array = got.cpu().numpy()
        return found

    def _watched(self, call: Callable[[], Array]) -> Array:
        """Return what a blocking call of the group returns, unless a rank is lost or the group ends before."""
        changed, found, errors = self._membership.changed, list[Array](), list[Exception]()

        def run() -> None:
            try:
                found.append(call())
            except Exception as error:
                errors.append(error)
            with changed:
                changed.notify_all()

        threading.Thread(target=run, name="dispatcher-collective", daemon=True).start()
        with changed:
            changed.wait_for(lambda: bool(found or errors or self._has_ended()))
            if errors and not self._has_ended():
                # The connections of a dead rank break before its heartbeat is missed: the heartbeat knows its number.
                changed.wait_for(self._has_ended, timeout=self._silence_seconds + 1)
        if found:
            return found[0]
        self._raise_lost()
        raise DispatchError(f"the process group failed on rank {self.rank}: {errors[0]}")

    def _has_ended(self) -> bool:
        return bool(self._membership.lost) or self._membership.error is not None

    def _raise_lost(self) -> None:
        """Raise the error that ended the group, or the loss of a rank."""
        for rank, reason in sorted(self._membership.lost.items()):
            raise RankLost(rank, reason)
        if self._membership.error is not None:
            raise self._membership.error

    def _agree(self, vote: dict[str, Any], timeout_seconds: float) -> None:
        _, lost = self._membership.agree(vote, timeout_seconds)
        for rank, reason in sorted(lost.items()):
            raise RankLost(rank, reason)

    def _abort(self) -> None:
        """Abort the calls of a group that can be; gloo's end by the group's timeout."""
        abort = getattr(self._group or dist.group.WORLD, "abort", None)
        if abort is not None:
            abort()

    def _introduce(self, address: Address) -> tuple[dict[int, Address], bytes]:
        """Exchange addresses, and take the secret that the lowest rank made."""
        mine = f"{address[0]} {address[1]}".encode().ljust(_ADDRESS_BYTES) + os.urandom(
            _SECRET_BYTES
        )
        given = torch.from_numpy(np.frombuffer(mine, np.uint8).copy()).to(self._device)
        every = [torch.empty_like(given) for _ in self.ranks]
        dist.all_gather(every, given, group=self._group)
        read = [each.cpu().numpy().tobytes() for each in every]
        addresses = {}
        for rank, each in enumerate(read):
            host, port = each[:_ADDRESS_BYTES].decode().split()
            addresses[rank] = (host, int(port))
        return addresses, read[0][_ADDRESS_BYTES:]

    def _connect(self, to: int, until: float) -> Any:
        return connect(
            self._addresses[to],
            self._secret,
            (self.rank, to),
            CONTROL,
            until,
            self._silence_seconds,
        )


def _counts(
    ranks: tuple[int, ...], streams: dict[int, list[TensorPiece]], start: int, share: int
) -> list[int]:
    """Return how many bytes of each rank's stream are in the round that begins at ``start``."""
    return [min(share, max(0, size(streams.get(rank, ())) - start)) for rank in ranks]


def _with_checksum(count: int) -> int:
    return count + _CHECKSUM_BYTES if count else 0
