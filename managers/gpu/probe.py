"""What a node has: its GPUs as NVML names them, or as many as an operator declares.

GPUs keep the order and the numbers of NVML, so that chunks are aligned as the machine is. One that
is lost, is cut up (MIG), waits for a reset of its memory, or is worked on by a process of somebody else
when the node worker starts, is not ours to give: it is unhealthy. Services that a dead predecessor
left are no such process: they are ended before the node joins. A node without NVIDIA's library has none.

What services may take of the node's host memory is part of the inventory (`managers.common.memory_shares`).

Declared GPUs (``settings["gpus"]``, for tests and demos) are counted and have the declared memory;
nothing looks whether they exist.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple

from msgspec.structs import replace

from domain.errors import InvalidRequest
from domain.inventory import ResourceInventory
from domain.ports import DriverContext
from domain.resources import MAX_UNITS, MILLI
from managers.common.memory_shares import memory_shares, real_memory_bytes
from managers.gpu.engines.leftovers import left_by

_log = logging.getLogger(__name__)

#: ``NVML_COMPUTEMODE_PROHIBITED``: nobody may compute on it.
_PROHIBITED: Final = 2
#: Memory of a declared GPU of which no memory is declared.
_DECLARED_BYTES: Final = 80 * 2**30


class Gpu(NamedTuple):
    """One device, in NVML's order."""

    number: int
    memory_bytes: int
    #: Why it must not be handed out; empty when it may.
    trouble: str = ""


def probe_gpu(context: DriverContext) -> ResourceInventory:
    """Say which GPUs a node offers; ``settings["gpus"]`` declares a count of them."""
    declared = context.settings.get("gpus", "").strip()
    if declared:
        memory = context.settings.get("gpu_memory_bytes", "").strip() or str(_DECLARED_BYTES)
        found = _declared(_count("gpus", declared), _count("gpu_memory_bytes", memory))
    else:
        found = _found(context)
    if not found.capacity:
        return found
    shares = memory_shares(context.settings, real_memory_bytes(), has_gpus=True)
    return replace(found, host_memory_bytes=shares.services_bytes)


def _found(context: DriverContext) -> ResourceInventory:
    """Return what NVML finds."""
    import pynvml

    found = read_gpus(pynvml, left_by(context.state_directory))
    for gpu in found:
        if gpu.trouble:
            _log.warning("GPU %d is not offered: %s", gpu.number, gpu.trouble)
    return inventory_of(found)


def inventory_of(gpus: list[Gpu]) -> ResourceInventory:
    """Return one node's GPUs; memory is that of the smallest healthy one."""
    healthy = [gpu.memory_bytes for gpu in gpus if not gpu.trouble]
    return ResourceInventory(
        len(gpus) * MILLI,
        (tuple(gpu.number for gpu in gpus),) if gpus else (),
        unhealthy=tuple(gpu.number for gpu in gpus if gpu.trouble),
        memory_bytes=min(healthy, default=0),
    )


def read_gpus(nvml: Any, ours: Callable[[int], bool] = lambda _: False) -> list[Gpu]:
    """Ask NVML, given as the module ``pynvml``; a node without its library or driver has none.

    ``ours`` says of a process whether we started it.
    """
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        _log.info("no GPUs are offered: %s", error)
        return []
    try:
        return [_read(nvml, index, ours) for index in range(nvml.nvmlDeviceGetCount())]
    finally:
        nvml.nvmlShutdown()


def _read(nvml: Any, index: int, ours: Callable[[int], bool]) -> Gpu:
    try:
        device = nvml.nvmlDeviceGetHandleByIndex(index)
        memory = int(nvml.nvmlDeviceGetMemoryInfo(device).total)
        return Gpu(index, memory, "; ".join(_troubles(nvml, device, ours)))
    except nvml.NVMLError as error:
        return Gpu(index, 0, str(error))


def _troubles(nvml: Any, device: Any, ours: Callable[[int], bool]) -> Iterator[str]:
    if _asked(nvml, lambda: nvml.nvmlDeviceGetMigMode(device)[0]):
        yield "it is cut into MIG devices"
    if _asked(nvml, lambda: nvml.nvmlDeviceGetRemappedRows(device)[2]):
        yield "its memory waits for a reset to be repaired"
    if _asked(nvml, lambda: nvml.nvmlDeviceGetComputeMode(device)) == _PROHIBITED:
        yield "its compute mode is prohibited"
    processes = _asked(nvml, lambda: nvml.nvmlDeviceGetComputeRunningProcesses(device)) or ()
    pids = [each.pid for each in processes if not ours(each.pid)]
    if pids:
        yield f"processes work on it: {', '.join(map(str, pids))}"


def _asked(nvml: Any, question: Callable[[], Any]) -> Any:
    """Return an answer; None where the device knows nothing of the question."""
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
