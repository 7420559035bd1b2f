"""How much memory of a GPU is free, who has the rest, and how busy it is: as NVML measures it."""

from __future__ import annotations

from typing import Any

from domain.ports import UnitUse


class NvmlMeter:
    """Measures GPUs by their numbers in NVML's order."""

    def __init__(self, nvml: Any = None) -> None:
        """``nvml`` stands in for the module ``pynvml``."""
        if nvml is None:
            import pynvml

            nvml = pynvml
        nvml.nvmlInit()
        self._nvml = nvml
        self._handles: dict[int, Any] = {}

    def free_bytes(self, unit: int) -> int:
        """Return the bytes of a GPU that nobody has."""
        return int(self._nvml.nvmlDeviceGetMemoryInfo(self._handle(unit)).free)

    def use(self, unit: int) -> UnitUse | None:
        """Return what a GPU does; None when it does not answer."""
        nvml = self._nvml
        try:
            memory = nvml.nvmlDeviceGetMemoryInfo(self._handle(unit))
            used_bytes = int(memory.total) - int(memory.free)
        except nvml.NVMLError:
            return None
        try:
            rates = nvml.nvmlDeviceGetUtilizationRates(self._handle(unit))
        except nvml.NVMLError:
            return UnitUse(None, used_bytes)
        return UnitUse(rates.gpu / 100, used_bytes)

    def pids(self, unit: int) -> list[int]:
        """Return who computes on a GPU; nobody where that cannot be found out."""
        try:
            found = self._nvml.nvmlDeviceGetComputeRunningProcesses(self._handle(unit))
        except self._nvml.NVMLError:
            return []
        return [each.pid for each in found]

    def _handle(self, unit: int) -> Any:
        if unit not in self._handles:
            self._handles[unit] = self._nvml.nvmlDeviceGetHandleByIndex(unit)
        return self._handles[unit]
