"""How much memory of a GPU is free: as NVML measures it, or as is declared and not taken."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def nvml_free_bytes() -> Callable[[int], int]:
    """Return a function that measures the free bytes of the GPU of a number in NVML's order."""
    import pynvml

    pynvml.nvmlInit()
    handles: dict[int, Any] = {}

    def measure(unit: int) -> int:
        if unit not in handles:
            handles[unit] = pynvml.nvmlDeviceGetHandleByIndex(unit)
        return int(pynvml.nvmlDeviceGetMemoryInfo(handles[unit]).free)

    return measure
