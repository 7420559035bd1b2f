"""A fake of NVML over devices that are plain dictionaries."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

GIB = 2**30


class NvmlError(Exception):
    """What every call may raise."""


class NotSupported(NvmlError):
    """The device has no such thing."""


class FakeNvml:
    """In place of the module ``pynvml``."""

    NVMLError = NvmlError
    NVMLError_NotSupported = NotSupported

    def __init__(self, *devices: dict[str, Any], broken: bool = False) -> None:
        self.devices, self.broken, self.open = devices, broken, False

    def nvmlInit(self) -> None:  # noqa: N802
        if self.broken:
            raise NvmlError("NVML Shared Library Not Found")
        self.open = True

    def nvmlShutdown(self) -> None:  # noqa: N802
        self.open = False

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802
        return len(self.devices)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> dict[str, Any]:  # noqa: N802
        if self.devices[index].get("lost"):
            raise NvmlError("GPU is lost")
        return self.devices[index]

    def nvmlDeviceGetMemoryInfo(self, device: dict[str, Any]) -> Any:  # noqa: N802
        total = device.get("gib", 80) * GIB
        return SimpleNamespace(total=total, free=total - device.get("used_gib", 0) * GIB)

    def nvmlDeviceGetUtilizationRates(self, device: dict[str, Any]) -> Any:  # noqa: N802
        if "busy" not in device:
            raise NotSupported
        return SimpleNamespace(gpu=device["busy"], memory=0)

    def nvmlDeviceGetMigMode(self, device: dict[str, Any]) -> tuple[int, int]:  # noqa: N802
        if "mig" not in device:
            raise NotSupported
        return device["mig"], device["mig"]

    def nvmlDeviceGetRemappedRows(self, device: dict[str, Any]) -> tuple[int, ...]:  # noqa: N802
        return 0, 0, int(device.get("pending", 0)), 0

    def nvmlDeviceGetComputeMode(self, device: dict[str, Any]) -> int:  # noqa: N802
        return int(device.get("compute_mode", 0))

    def nvmlDeviceGetMinorNumber(self, device: dict[str, Any]) -> int:  # noqa: N802
        return int(device["minor"])

    def nvmlDeviceGetUUID(self, device: dict[str, Any]) -> bytes:  # noqa: N802
        return f"GPU-{device['minor']}".encode()

    def nvmlDeviceGetComputeRunningProcesses(self, device: dict[str, Any]) -> Any:  # noqa: N802
        return [SimpleNamespace(pid=pid) for pid in device.get("pids", ())]
