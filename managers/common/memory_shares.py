"""Shares of a node's memory: one for environments of trajectories, one for GPU services.

Environments reserve theirs in the ledger ``memory``; services keep copies of weights in the other,
which their driver counts (`managers.gpu.host_memory`). An operator declares either share or both. A
share that is not declared is the rest; without any declaration each is half. Without GPUs everything
is for environments.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from domain.errors import InvalidRequest

_MEMINFO: Final = Path("/proc/meminfo")
_OWN_GROUPS: Final = Path("/proc/self/cgroup")
#: Roots of control groups of version 2 and 1, and the file with the limit of each group.
_UNIFIED: Final = (Path("/sys/fs/cgroup"), "memory.max")
_BY_CONTROLLER: Final = (Path("/sys/fs/cgroup/memory"), "memory.limit_in_bytes")


class MemoryShares(NamedTuple):
    """Parts of a node's memory, in bytes."""

    environments_bytes: int
    #: None: memory of services is not counted; there are none, or more is declared than exists.
    services_bytes: int | None
    #: More is declared for environments, or for both, than exists: for tests and demos.
    oversubscribed: bool = False


def memory_shares(settings: Mapping[str, str], real: int, *, has_gpus: bool) -> MemoryShares:
    """Divide ``real`` bytes by the settings ``memory_bytes`` and ``service_memory_bytes``.

    Raises InvalidRequest for a setting that is no count of bytes, and when environments get nothing.
    """
    environments = _declared(settings, "memory_bytes", least=1)
    services = _declared(settings, "service_memory_bytes", least=0)
    if not has_gpus:
        return MemoryShares(environments or real, None, (environments or 0) > real)
    if environments is not None and environments > real and services is None:
        return MemoryShares(environments, None, oversubscribed=True)
    if services is None:
        services = real // 2 if environments is None else real - environments
    elif environments is None and services >= real:
        raise InvalidRequest(
            f"service_memory_bytes is {services}, the node has {real}: leave some to environments"
        )
    if environments is None:
        environments = real - services
    return MemoryShares(environments, services, environments + services > real)


def _declared(settings: Mapping[str, str], name: str, *, least: int) -> int | None:
    text = settings.get(name, "").strip()
    if not text:
        return None
    if not text.isdigit() or int(text) < least:
        above = " above 0" if least else ""
        raise InvalidRequest(f"{name} is {text!r}: give a whole number of bytes{above}")
    return int(text)


def real_memory_bytes(meminfo: Path = _MEMINFO, limits: Sequence[Path] | None = None) -> int:
    """Return the machine's memory, or the smallest limit of this process's control groups (default of ``limits``)."""
    total = _meminfo_total(meminfo)
    if limits is None:
        limits = limits_above(_OWN_GROUPS.read_text() if _OWN_GROUPS.exists() else "")
    for limit in limits:
        try:
            text = limit.read_text().strip()
        except OSError:
            continue
        # "max", and numbers near 2**63, both say: no limit.
        if text.isdigit():
            total = min(total, int(text))
    return total


def limits_above(groups: str) -> list[Path]:
    """Return the files that may limit a process: of its group and of those above it. ``groups``: ``/proc/<pid>/cgroup``.

    Inside a container its group is the root. A job of Slurm sees the whole tree, and its limit is that of a group above.
    """
    found: list[Path] = []
    for line in groups.splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers and "memory" not in controllers.split(","):
            continue
        root, name = _BY_CONTROLLER if controllers else _UNIFIED
        own = root / path.lstrip("/")
        above = [own, *own.parents]
        found += [each / name for each in above[: above.index(root) + 1]]
    return found


def _meminfo_total(meminfo: Path) -> int:
    for line in meminfo.read_text().splitlines():
        name, _, rest = line.partition(":")
        if name == "MemTotal":
            return int(rest.split()[0]) * 1024
    raise InvalidRequest(f"{meminfo} has no MemTotal: declare memory_bytes")
