"""The machine of gpu_card: card, host memory, folder for temporary files, and clock."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

#: Limit and use of a control group's memory, of version 2 and of version 1.
_GROUPS = (
    ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
    (
        "/sys/fs/cgroup/memory/memory.limit_in_bytes",
        "/sys/fs/cgroup/memory/memory.usage_in_bytes",
    ),
)


class Missing(Exception):
    """Something that the run needs is not here."""


class Clock:
    """The time that the run may take."""

    def __init__(self, minutes: float) -> None:
        self._began = time.perf_counter()
        self._seconds = 60 * minutes

    def left(self) -> float:
        """Return the seconds that are left, at least 0."""
        return max(0.0, self._began + self._seconds - time.perf_counter())

    def spent_ratio(self) -> float:
        """Return which part of the time is over."""
        return 1.0 - self.left() / self._seconds


def find_device(named: str) -> Any:
    """Return the torch device. Raises Missing, saying what to do."""
    try:
        import torch
    except (ImportError, OSError) as error:  # OSError: one of its libraries
        raise Missing(
            f"no torch in {sys.executable}: {error}; run me by a Python that has it"
        ) from None
    if named == "cpu":
        return torch.device("cpu")
    if not torch.cuda.is_available():
        raise Missing(
            f"torch {torch.__version__} finds no NVIDIA card here; --device cpu runs the same steps small"
        )
    try:
        torch.zeros(1, device="cuda")
    except RuntimeError as error:  # a card that this torch was not built for, or that is taken
        words = str(error).partition("\n")[0]
        raise Missing(f"torch {torch.__version__} cannot use the card: {words}") from None
    return torch.device("cuda", torch.cuda.current_device())


def describe(device: Any) -> dict[str, Any]:
    """Return what is measured, by name."""
    import torch

    if device.type == "cpu":
        return {"card": "cpu", "torch": torch.__version__, "note": "host memory, not a card"}
    card = torch.cuda.get_device_properties(device)
    free, total = torch.cuda.mem_get_info(device)
    return {
        "card": card.name,
        "memory_bytes": total,
        "free_bytes": free,
        "host_free_bytes": host_bytes(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
    }


def host_bytes() -> int:
    """Return the host memory that can be had here, within the limit of this container."""
    lines = (line.split() for line in Path("/proc/meminfo").read_text().splitlines())
    free = next(int(words[1]) * 1024 for words in lines if words[0] == "MemAvailable:")
    for limit, used in _GROUPS:
        try:
            free = min(free, int(Path(limit).read_text()) - int(Path(used).read_text()))
        except (OSError, ValueError):  # no group of its own, or no limit: "max"
            continue
    return max(0, free)


def free_bytes(device: Any) -> int:
    """Return the free memory of the card; 0 for the processor."""
    import torch

    return 0 if device.type == "cpu" else int(torch.cuda.mem_get_info(device)[0])


def filesystem_of(folder: str) -> str:
    """Return the type of the file system of ``folder``: what is on a tmpfs is not loaded from disk."""
    path, best = Path(folder).resolve(), ("", "unknown")
    for line in Path("/proc/mounts").read_text().splitlines():
        _, mount, kind = line.split()[:3]
        if path.is_relative_to(mount) and len(mount) >= len(best[0]):
            best = mount, kind
    return best[1]
