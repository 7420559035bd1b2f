"""Which GPUs a program sees: those of its chunk, in NVML's order."""

from __future__ import annotations

from collections.abc import Sequence

from domain.ports import RunOrder


def gpu_variables(units: Sequence[int]) -> dict[str, str]:
    """Return the variables by which CUDA programs keep to ``units``."""
    return {
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "CUDA_VISIBLE_DEVICES": ",".join(map(str, units)),
    }


def granted_gpus(order: RunOrder) -> dict[str, str]:
    """Return the variables for an action that was granted GPUs; none for one that was not."""
    granted = order.allocation("gpu")
    return {} if granted is None else gpu_variables(granted.units)
