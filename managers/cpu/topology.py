"""Physical cores and their threads.

Two threads of one core share its caches and its units, so work on one slows the other, and a secret
may leak from one to the other. Where whole cores are granted, a core is therefore counted once, by its
lowest thread, and whoever gets it gets all its threads.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Final

from domain.errors import InvalidRequest
from managers.cpu.cpulist import parse_cpu_list

_DEVICES: Final = Path("/sys/devices/system/cpu")


def physical_cores(threads: Iterable[int], devices: Path = _DEVICES) -> dict[int, frozenset[int]]:
    """Return the cores that ``threads`` make up: lowest thread → all of its threads among them.

    A thread whose core the kernel does not tell is a core of its own.
    """
    usable = set(threads)
    cores: dict[int, frozenset[int]] = {}
    for thread in sorted(usable):
        try:
            text = (devices / f"cpu{thread}" / "topology" / "thread_siblings_list").read_text()
            together = usable.intersection(parse_cpu_list(text)) | {thread}
        except (OSError, InvalidRequest):
            together = {thread}
        cores.setdefault(min(together), frozenset(together))
    return cores


def without_reserved(cores: Iterable[int], reserved: str) -> tuple[int, ...]:
    """Return ``cores`` without those that the operator keeps for the machine itself.

    ``reserved`` is in the kernel's list notation. Raises InvalidRequest when it names others, or
    when nothing is left.
    """
    there, kept = set(cores), set(parse_cpu_list(reserved))
    if kept - there:
        raise InvalidRequest(
            f"reserved_cpus {reserved!r} names cores that are not there: {sorted(kept - there)}"
        )
    if not there - kept:
        raise InvalidRequest(f"reserved_cpus {reserved!r} leaves no core to grant")
    return tuple(sorted(there - kept))
