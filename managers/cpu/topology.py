"""Physical cores and their threads, and the kernel's notation for sets of CPUs.

Two threads of one core share its caches and its units, so work on one slows the other, and a secret
may leak from one to the other. Where whole cores are granted, a core is therefore counted once, by its
lowest thread, and granted with all its threads.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Final

from domain.errors import InvalidRequest
from domain.resources import MAX_UNITS


def parse_cpu_list(text: str) -> tuple[int, ...]:
    """Parse the kernel's list notation (``0-3,6``). Raises InvalidRequest for anything else."""
    cores: set[int] = set()
    for part in filter(None, text.strip().split(",")):
        first, dash, last = part.partition("-")
        if not first.strip().isdigit() or (dash and not last.strip().isdigit()):
            raise InvalidRequest(f"{text!r} is not a list of cores: write it like 0-3,6")
        low, high = int(first), int(last) if dash else int(first)
        if not low <= high < MAX_UNITS:
            raise InvalidRequest(f"{part!r} is not a range of cores in {text!r}")
        cores.update(range(low, high + 1))
    return tuple(sorted(cores))


_DEVICES: Final = Path("/sys/devices/system/cpu")


def physical_cores(threads: Iterable[int], devices: Path = _DEVICES) -> dict[int, frozenset[int]]:
    """Return the physical cores of ``threads``: lowest thread → all of its threads among them.

    A thread without a known core is a core of its own.
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
    """Return ``cores`` without those that the operator reserves for the machine itself.

    ``reserved`` is in the kernel's list notation. Raises InvalidRequest when it names other cores, or
    no core is left.
    """
    there, kept = set(cores), set(parse_cpu_list(reserved))
    if kept - there:
        raise InvalidRequest(
            f"reserved_cpus {reserved!r} names cores that are not there: {sorted(kept - there)}"
        )
    if not there - kept:
        raise InvalidRequest(f"reserved_cpus {reserved!r} leaves no core to grant")
    return tuple(sorted(there - kept))
