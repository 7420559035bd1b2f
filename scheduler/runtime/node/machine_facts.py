"""Reads what a node worker reports of its machine: control groups, user namespaces, disks and the clock.

All of it may change while the worker runs (a sysctl, a full disk, a clock that is set), so it is read again and again.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Final, Protocol

import redis.asyncio

from contract.machine_facts import (
    CgroupFacts,
    ClockDifference,
    DiskFacts,
    MachineFacts,
    clock_difference,
)
from managers.cpu.apptainer.program import forbidden_namespaces
from managers.cpu.cgroup_files import SLURM_JOB, find_mounts, group_paths, read_if_there

_MEMORY: Final = "memory"


class WatchedDisks(Protocol):
    """The guard of the disks of a node."""

    refusal: str

    def disk_facts(self) -> tuple[DiskFacts, ...]:
        """Return the file systems as they were seen last."""


async def clock_against_redis(
    client: redis.asyncio.Redis, clock: Callable[[], float]
) -> ClockDifference:
    """Compare a clock with that of Redis. Raises RedisError."""
    before = clock()
    there = await client.time()
    return clock_difference(before, clock(), there)


def machine_facts(disks: WatchedDisks, clock: ClockDifference | None) -> MachineFacts:
    """Return the facts of this machine. Reads some small files of the kernel."""
    return MachineFacts(
        clock,
        disks.disk_facts(),
        disks.refusal,
        cgroup_facts(),
        forbidden_namespaces(for_root=os.geteuid() == 0),
    )


def cgroup_facts(proc: Path = Path("/proc/self")) -> CgroupFacts:
    """Return which control groups this process has, and whether it may limit memory by them."""
    if job := os.environ.get(SLURM_JOB):
        return CgroupFacts(job=job)
    try:
        mounts = find_mounts((_MEMORY,), proc / "mounts")
        paths = group_paths((proc / "cgroup").read_text())
    except OSError:
        return CgroupFacts()
    if (root := mounts.by_controller.get(_MEMORY)) is not None:
        own = root / paths.get(_MEMORY, "").lstrip("/")
        places = [each for each in (own, root) if each.is_dir()]
        return CgroupFacts(1, any(os.access(each, os.W_OK) for each in places))
    root = mounts.unified
    if root is None:
        return CgroupFacts(1 if mounts.mounted else 0)
    own = root / paths.get("", "").lstrip("/")
    # The group at the root of the machine has no limit; one that looks like it from within a container has.
    contained = own == root and (root / "memory.max").exists()
    has_memory = _MEMORY in read_if_there(root / "cgroup.controllers").split()
    beside = (own, own.parent, root) if own != root else (root,)
    return CgroupFacts(2, has_memory and any(_may_divide(each) for each in beside), contained)


def _may_divide(group: Path) -> bool:
    """Whether this process may make groups below ``group``."""
    return os.access(group, os.W_OK) and os.access(group / "cgroup.subtree_control", os.W_OK)
