"""What a node worker reports of its machine with its sign of life; `tangram doctor --cluster` judges it.

A worker of an earlier version reports nothing of it, and one of a later version may report more.
"""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta


class ClockDifference(msgspec.Struct, frozen=True, array_like=True):
    """The clock of a process, compared with that of Redis."""

    #: Above 0: it is ahead of Redis.
    seconds: float
    #: The comparison is right within this.
    within_seconds: float = 0.0


class DiskFacts(msgspec.Struct, frozen=True, array_like=True):
    """One file system of a node, as the guard of its disks saw it last."""

    path: str
    free_bytes: int
    total_bytes: int
    #: Below this the node takes no new work.
    floor_bytes: int


class CgroupFacts(msgspec.Struct, frozen=True, omit_defaults=True):
    """Control groups of a machine, as the node worker may use them."""

    #: 0: none are mounted.
    version: Annotated[int, Meta(ge=0, le=2)] = 0
    #: The worker may make groups that limit memory.
    delegated: bool = False
    #: The worker runs in a container or pod, whose group limits all of its commands together.
    contained: bool = False
    #: The job of Slurm whose groups they are.
    job: str = ""


class MachineFacts(msgspec.Struct, frozen=True, omit_defaults=True):
    """One machine. None: not known."""

    clock: ClockDifference | None = None
    disks: tuple[DiskFacts, ...] | None = None
    #: Why the guard of the disks refuses new work; empty: it does not.
    disk_refusal: str = ""
    cgroups: CgroupFacts | None = None
    #: Why the worker may not make user namespaces, with the cure; empty: it may.
    no_user_namespaces: str = ""


def clock_difference(before: float, after: float, redis_time: tuple[int, int]) -> ClockDifference:
    """Compare a clock, read before and after a call, with the time that Redis answered (seconds, microseconds)."""
    there = redis_time[0] + redis_time[1] / 1e6
    half = max(0.0, after - before) / 2
    return ClockDifference(round(before + half - there, 3), round(half, 3))
