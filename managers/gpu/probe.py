"""GPUs of a node: its inventory at start, and their use while it runs, as NVML reports them.

GPUs keep the order and the numbers of NVML, so that chunks are aligned as the machine is. A GPU is
unhealthy when it is lost, split (MIG), waits for a reset of its memory, or runs a foreign process when
the node worker starts. Services of a dead predecessor are not foreign: they are ended before the node
joins. A node without NVIDIA's library has no GPUs.

The inventory includes the host memory for services (`managers.common.memory_shares`).

Where the engine of the cluster granted some of a machine's GPUs, ``settings["gpus"]`` names them, by number or UUID:
``nvml:2,3``. The others are not looked at.

Declared GPUs (a count in ``settings["gpus"]``, for tests and demos) have the declared memory; their existence is
not checked.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple

from msgspec.structs import replace

from domain.errors import InvalidRequest
from domain.inventory import ResourceInventory
from domain.ports import DriverContext, UnitUse
from domain.resources import MAX_UNITS, MILLI
from managers.common.memory_shares import memory_shares, real_memory_bytes
from managers.common.visible_gpus import chosen_gpus, is_measured
from managers.gpu.engines.leftovers import left_by

_log = logging.getLogger(__name__)

#: ``NVML_COMPUTEMODE_PROHIBITED``: no process may compute on it.
_PROHIBITED: Final = 2
#: Memory of a declared GPU of which no memory is declared.
_DECLARED_BYTES: Final = 80 * 2**30


class Gpu(NamedTuple):
    """One device, in NVML's order."""

    number: int
    memory_bytes: int
    #: Why it must not be granted; empty when it may.
    trouble: str = ""


def probe_gpu(context: DriverContext) -> ResourceInventory:
    """Return the GPUs that a node offers; ``settings["gpus"]`` chooses among them, or declares their number."""
    declared = context.settings.get("gpus", "").strip()
    if declared and not is_measured(declared):
        memory = context.settings.get("gpu_memory_bytes", "").strip() or str(_DECLARED_BYTES)
        found = _declared(_count("gpus", declared), _count("gpu_memory_bytes", memory))
    else:
        found = _found(context, chosen_gpus(declared))
    if not found.capacity:
        return found
    shares = memory_shares(context.settings, real_memory_bytes(), has_gpus=True)
    return replace(found, host_memory_bytes=shares.services_bytes)


def _found(context: DriverContext, chosen: frozenset[str] | None) -> ResourceInventory:
    """Return the inventory that NVML reports."""
    import pynvml

    found = read_gpus(pynvml, left_by(context.state_directory), chosen)
    if chosen is not None and len(found) < len(chosen):
        _log.warning("of the GPUs %s NVML has %d", ", ".join(sorted(chosen)), len(found))
    for gpu in found:
        if gpu.trouble:
            _log.warning("GPU %d is not offered: %s", gpu.number, gpu.trouble)
    return inventory_of(found)


def inventory_of(gpus: list[Gpu]) -> ResourceInventory:
    """Return the inventory of one node; its memory is that of the smallest healthy GPU."""
    healthy = [gpu.memory_bytes for gpu in gpus if not gpu.trouble]
    return ResourceInventory(
        len(gpus) * MILLI,
        (tuple(gpu.number for gpu in gpus),) if gpus else (),
        unhealthy=tuple(gpu.number for gpu in gpus if gpu.trouble),
        memory_bytes=min(healthy, default=0),
    )


def read_gpus(
    nvml: Any,
    ours: Callable[[int], bool] = lambda _: False,
    chosen: frozenset[str] | None = None,
) -> list[Gpu]:
    """Read GPUs from NVML, given as the module ``pynvml``; without its library or driver, none.

    ``ours`` returns whether this node worker, or a predecessor, started a process. ``chosen``: numbers or UUIDs; None: all.
    """
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        _log.info("no GPUs are offered: %s", error)
        return []
    try:
        return [
            _read(nvml, index, ours)
            for index in range(nvml.nvmlDeviceGetCount())
            if chosen is None or chosen & {str(index), _uuid(nvml, index)}
        ]
    finally:
        nvml.nvmlShutdown()


def _uuid(nvml: Any, index: int) -> str:
    try:
        uuid = nvml.nvmlDeviceGetUUID(nvml.nvmlDeviceGetHandleByIndex(index))
    except nvml.NVMLError:
        return ""
    return uuid.decode() if isinstance(uuid, bytes) else str(uuid)


def _read(nvml: Any, index: int, ours: Callable[[int], bool]) -> Gpu:
    try:
        device = nvml.nvmlDeviceGetHandleByIndex(index)
        memory = int(nvml.nvmlDeviceGetMemoryInfo(device).total)
        return Gpu(index, memory, "; ".join(_troubles(nvml, device, ours)))
    except nvml.NVMLError as error:
        return Gpu(index, 0, str(error))


def _troubles(nvml: Any, device: Any, ours: Callable[[int], bool]) -> Iterator[str]:
    if _query(nvml, lambda: nvml.nvmlDeviceGetMigMode(device)[0]):
        yield "it is split into MIG devices"
    if _query(nvml, lambda: nvml.nvmlDeviceGetRemappedRows(device)[2]):
        yield "its memory waits for a reset to be repaired"
    if _query(nvml, lambda: nvml.nvmlDeviceGetComputeMode(device)) == _PROHIBITED:
        yield "its compute mode is prohibited"
    processes = _query(nvml, lambda: nvml.nvmlDeviceGetComputeRunningProcesses(device)) or ()
    pids = [each.pid for each in processes if not ours(each.pid)]
    if pids:
        yield f"processes work on it: {', '.join(map(str, pids))}"


def _query(nvml: Any, question: Callable[[], Any]) -> Any:
    """Return the answer to a query; None where the device does not support it."""
    with contextlib.suppress(nvml.NVMLError_NotSupported):
        return question()
    return None


def _declared(count: int, memory_bytes: int) -> ResourceInventory:
    groups = (tuple(range(count)),) if count else ()
    return ResourceInventory(
        count * MILLI, groups, oversubscribed=bool(count), memory_bytes=memory_bytes if count else 0
    )


def _count(name: str, text: str) -> int:
    most = MAX_UNITS if name == "gpus" else 2**53
    if not text.isdigit() or int(text) > most:
        raise InvalidRequest(f"{name} is {text!r}: give a whole number up to {most}")
    return int(text)


class NvmlMeter:
    """Measures GPUs, by their numbers in NVML's order."""

    def __init__(self, nvml: Any = None) -> None:
        """``nvml`` stands in for the module ``pynvml``."""
        if nvml is None:
            import pynvml

            nvml = pynvml
        nvml.nvmlInit()
        self._nvml = nvml
        self._handles: dict[int, Any] = {}

    def free_bytes(self, unit: int) -> int:
        """Return the free memory of a GPU."""
        return int(self._nvml.nvmlDeviceGetMemoryInfo(self._handle(unit)).free)

    def use(self, unit: int) -> UnitUse | None:
        """Return the use of a GPU; None when it does not answer."""
        nvml = self._nvml
        try:
            memory = nvml.nvmlDeviceGetMemoryInfo(self._handle(unit))
            total_bytes = int(memory.total)
            used_bytes = total_bytes - int(memory.free)
        except nvml.NVMLError:
            return None
        try:
            rates = nvml.nvmlDeviceGetUtilizationRates(self._handle(unit))
        except nvml.NVMLError:
            return UnitUse(None, used_bytes, total_bytes)
        return UnitUse(rates.gpu / 100, used_bytes, total_bytes)

    def pids(self, unit: int) -> list[int]:
        """Return the processes that compute on a GPU; empty where these are unknown."""
        try:
            found = self._nvml.nvmlDeviceGetComputeRunningProcesses(self._handle(unit))
        except self._nvml.NVMLError:
            return []
        return [each.pid for each in found]

    def _handle(self, unit: int) -> Any:
        if unit not in self._handles:
            self._handles[unit] = self._nvml.nvmlDeviceGetHandleByIndex(unit)
        return self._handles[unit]
