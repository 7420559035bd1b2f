"""The kernel's notation for sets of CPUs."""

from __future__ import annotations

from domain.errors import InvalidRequest
from domain.resources import MAX_UNITS


def parse_cpu_list(text: str) -> tuple[int, ...]:
    """Read the kernel's list notation (``0-3,6``); raise InvalidRequest for anything else."""
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
