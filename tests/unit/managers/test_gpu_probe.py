"""Which GPUs a node offers, as NVML or its operator says."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from domain.errors import InvalidRequest
from domain.ids import ResourceId
from domain.ports import DriverContext
from managers.gpu.ledger import ChunkLedger
from managers.gpu.probe import inventory_of, probe_gpu, read_gpus

GIB = 2**30


class NvmlError(Exception):
    """What every call may raise."""


class NotSupported(NvmlError):
    """The device has no such thing."""


class FakeNvml:
    """As much of ``pynvml`` as is asked, over devices that are plain dictionaries."""

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
        return SimpleNamespace(total=device.get("gib", 80) * GIB)

    def nvmlDeviceGetMigMode(self, device: dict[str, Any]) -> tuple[int, int]:  # noqa: N802
        if "mig" not in device:
            raise NotSupported
        return device["mig"], device["mig"]

    def nvmlDeviceGetRemappedRows(self, device: dict[str, Any]) -> tuple[int, ...]:  # noqa: N802
        return 0, 0, int(device.get("pending", 0)), 0

    def nvmlDeviceGetComputeRunningProcesses(self, device: dict[str, Any]) -> Any:  # noqa: N802
        return [SimpleNamespace(pid=pid) for pid in device.get("pids", ())]


def context(**settings: str) -> DriverContext:
    return DriverContext("n1", Path("unused"), {}, settings)


def test_devices_keep_their_numbers_and_the_smallest_memory_counts() -> None:
    nvml = FakeNvml({"gib": 80}, {"gib": 40, "mig": 0})
    inventory = inventory_of(read_gpus(nvml))
    assert (inventory.capacity, inventory.groups) == (2000, ((0, 1),))
    assert (inventory.memory_bytes, inventory.unhealthy) == (40 * GIB, ())
    assert not nvml.open


@pytest.mark.parametrize(
    ("device", "trouble"),
    [
        ({"lost": True}, "GPU is lost"),
        ({"mig": 1}, "it is cut into MIG devices"),
        ({"pending": True}, "its memory waits for a reset to be repaired"),
        ({"pids": (17, 18)}, "processes work on it: 17, 18"),
    ],
    ids=lambda each: str(each),
)
def test_a_gpu_in_trouble_keeps_its_place_and_is_not_offered(device, trouble) -> None:
    gpus = read_gpus(FakeNvml({}, device, {}, {}))
    assert gpus[1].trouble == trouble
    ledger = ChunkLedger(ResourceId("gpu:n1"), inventory_of(gpus))
    assert ledger.counts == (1, 1, 0, 0)
    assert ledger.allocate("a", 2000).units == (2, 3)


def test_a_node_without_the_library_has_no_gpus() -> None:
    inventory = inventory_of(read_gpus(FakeNvml(broken=True)))
    assert (inventory.capacity, inventory.groups) == (0, ())


def test_declared_gpus_are_counted_and_shown_as_declared() -> None:
    inventory = probe_gpu(context(gpus="3", gpu_memory_bytes="1000"))
    assert (inventory.capacity, inventory.groups) == (3000, ((0, 1, 2),))
    assert inventory.oversubscribed
    assert inventory.memory_bytes == 1000


def test_an_operator_may_declare_that_there_are_none() -> None:
    assert probe_gpu(context(gpus="0")).capacity == 0


@pytest.mark.parametrize(
    "settings", [{"gpus": "two"}, {"gpus": "-1"}, {"gpus": "1", "gpu_memory_bytes": "80 GiB"}],
    ids=str,
)  # fmt: skip
def test_what_is_no_number_is_refused_by_name(settings) -> None:
    with pytest.raises(InvalidRequest, match="give a whole number"):
        probe_gpu(context(**settings))
