"""Visible GPUs of a program: those of its chunk.

A program outside a sandbox sees all device files; environment variables restrict it to its chunk, by
numbers in NVML's order. Inside a sandbox it gets the device files of its chunk only. CUDA skips what it
cannot open and renumbers the rest, so there the variable names GPUs by their UUIDs, which mean the
same in both views. GPUs that are only declared have no files.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from domain.ports import RunOrder

#: Files that every CUDA program opens, whichever GPU it uses; those that configure cards left out.
_COMMON: Final = ("/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools")

#: Begins a setting that names GPUs.
_CHOSEN: Final = "nvml:"


class Device(NamedTuple):
    """The system's names of a GPU."""

    #: The number in the name of its device file, which need not be that of NVML's order.
    minor: int
    uuid: str


#: By the GPU's number in NVML's order.
Devices = Mapping[int, Device]


def gpu_variables(units: Sequence[int], names: Sequence[str] = ()) -> dict[str, str]:
    """Return the variables that restrict CUDA programs to ``units``, or to GPUs of these ``names``."""
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


def is_measured(setting: str) -> bool:
    """Whether a node's GPUs are those of NVML, all or some: ``nvml:0,3`` names some, a count declares GPUs."""
    return not setting or setting.startswith(_CHOSEN)


def chosen_gpus(setting: str) -> frozenset[str] | None:
    """Return the GPUs that a setting names, as numbers or UUIDs; None: all."""
    if not setting.startswith(_CHOSEN):
        return None
    names = setting.removeprefix(_CHOSEN).split(",")
    return frozenset(name.strip() for name in names if name.strip())


def find_devices(settings: Mapping[str, str]) -> dict[int, Device]:
    """Return the names of a node's GPUs from NVML; declared ones have none."""
    if not is_measured(settings.get("gpus", "").strip()):
        return {}
    import pynvml

    return read_devices(pynvml)


def read_devices(nvml: Any) -> dict[int, Device]:
    """Read the names from NVML, given as the module ``pynvml``; a lost GPU has none."""
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
    """Decode an answer: older libraries return bytes."""
    return answer.decode() if isinstance(answer, bytes) else answer
