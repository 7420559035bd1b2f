"""Transports: they move the bytes of a `TransferPlan` between ranks, without pickle, and end complete or with a typed error.

tcp     ranks with addresses, connected to each other by TCP; faults are found within seconds, replicas take a lost rank's place
torch   `all_to_all_single` of a process group of torch (gloo, NCCL)

Rules
1. `exchange` is collective: each rank calls it with an equal plan, in the same order. Its result is the same as `dispatcher.local.execute`'s.
2. Layouts, dtypes and plan are compared before a byte of a tensor leaves; `Mismatch` names rank, tensor and both values.
3. A batch is returned whole or not at all: each rank has the tensors that the target layout says, or the same `DispatchError`.
4. A tensor that is already right where it is is returned as the array that was given, not as a copy.
"""

from __future__ import annotations

from dispatcher.transport.errors import (
    Closed,
    Corrupted,
    DispatchError,
    JoinRefused,
    Mismatch,
    RankLost,
    TimedOut,
)
from dispatcher.transport.report import ExchangeReport

__all__ = [
    "Closed",
    "Corrupted",
    "DispatchError",
    "ExchangeReport",
    "JoinRefused",
    "Mismatch",
    "RankLost",
    "TimedOut",
]
