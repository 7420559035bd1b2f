"""Which GPUs a program sees: those of its chunk.

A program that is not in a sandbox sees all device files; the variables keep it to its chunk, by the
numbers of NVML's order. In a sandbox it gets the device files of its chunk and no others. CUDA leaves
out what it cannot open and numbers the rest anew, so there the variable names GPUs by their UUIDs,
which mean the same in both views. GPUs that are only declared have no files.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from domain.ports import RunOrder

#: What every CUDA program opens, whichever GPU it uses. Not among them: what sets cards up.
_COMMON: Final = ("/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools")


class Device(NamedTuple):
    """How the system names a GPU."""

    #: The number in the name of its device file, which need not be that of NVML's order.
    minor: int
    uuid: str


#: By the GPU's number in NVML's order.
Devices = Mapping[int, Device]


def gpu_variables(units: Sequence[int], names: Sequence[str] = ()) -> dict[str, str]:
    """Return the variables by which CUDA programs keep to ``units``, or to GPUs of these ``names``."""
    return {
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "CUDA_VISIBLE_DEVICES": ",".join(names or map(str, units)),
    }


def granted_gpus(order: RunOrder, devices: Devices | None = None) -> dict[str, str]:
    """Return the variables for an action that was granted GPUs; none for one that was not.

    ``devices``: for one that has only the device files of its chunk.
    """
    granted = order.allocation("gpu")
    if granted is None:
        return {}
    known = devices or {}
    names = [known[unit].uuid for unit in granted.units if unit in known]
    return gpu_variables(granted.units, names)


def device_files(order: RunOrder, devices: Devices) -> tuple[str, ...]:
    """Return the device files of the GPUs that an action was granted; none without real ones."""
    granted = order.allocation("gpu")
    own = [
        f"/dev/nvidia{devices[u].minor}" for u in (granted.units if granted else ()) if u in devices
    ]
    return (*_COMMON, *own) if own else ()


def find_devices(settings: Mapping[str, str]) -> dict[int, Device]:
    """Ask NVML how the GPUs of a node are called; declared ones have no names."""
    if settings.get("gpus", "").strip():
        return {}
    import pynvml

    return read_devices(pynvml)


def read_devices(nvml: Any) -> dict[int, Device]:
    """Ask NVML, given as the module ``pynvml``; what is lost, or without its library, has no name."""
    try:
        nvml.nvmlInit()
    except nvml.NVMLError:
        return {}
    found = {}
    try:
        for index in range(nvml.nvmlDeviceGetCount()):
            try:
                handle = nvml.nvmlDeviceGetHandleByIndex(index)
                minor = int(nvml.nvmlDeviceGetMinorNumber(handle))
                found[index] = Device(minor, _text(nvml.nvmlDeviceGetUUID(handle)))
            except nvml.NVMLError:
                continue
    finally:
        nvml.nvmlShutdown()
    return found


def _text(answer: str | bytes) -> str:
    """Older libraries answer with bytes."""
    return answer.decode() if isinstance(answer, bytes) else answer
