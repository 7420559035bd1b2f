"""A limit of memory as a GPU has one, for a process: the kernel refuses what the model takes beyond it.

`RLIMIT_DATA` counts private memory that can be written, whether used or not; it is set above what the program has before the model, as the
memory of a GPU has no interpreter in it.
"""

from __future__ import annotations

import os
import resource
import signal
from pathlib import Path

#: Exit status of a process that says that it lacks memory.
OUT_OF_MEMORY = 77
#: What libraries say when an allocation fails.
_WORDS = ("can't allocate memory", "std::bad_alloc", "MemoryError", "Cannot allocate memory")


class MemoryMeter:
    """Memory of this process beyond what it has when the meter is made, in bytes."""

    def __init__(self) -> None:
        self._resident = _status("VmRSS")
        self._data = _status("VmData")

    def limit(self, memory_bytes: int) -> None:
        """Let the process have ``memory_bytes`` more of memory than at the meter's start; 0: no limit."""
        if memory_bytes:
            most = self._data + memory_bytes
            resource.setrlimit(resource.RLIMIT_DATA, (most, most))

    def begin(self) -> None:
        """Forget the peak so far, where the kernel permits it."""
        try:
            Path("/proc/self/clear_refs").write_text("5")
        except OSError:
            pass

    def peak(self) -> int:
        """Return the most memory in use since `begin`."""
        return max(0, _status("VmHWM") - self._resident)


def lacks_memory(error: BaseException) -> bool:
    """Say whether an error is a failed allocation."""
    return isinstance(error, MemoryError) or any(word in str(error) for word in _WORDS)


def evidence(status: int, last_words: str, kernel_kills: int) -> str:
    """Return what shows that a process ended for lack of memory; empty: nothing does.

    status: as of `subprocess`; last_words: the end of its errors; kernel_kills: kills for lack of memory that its control group counted.
    """
    if status == OUT_OF_MEMORY:
        return f"it ended with status {status} after an allocation failed"
    words = next((word for word in _WORDS if word in last_words), "")
    if status != 0 and words:
        return f"its last words are of an allocation that failed: {words}"
    if status == -signal.SIGKILL and kernel_kills > 0:
        return "the kernel killed it, and counted that as a lack of memory of its control group"
    return ""


def kernel_kills() -> int:
    """Return how many processes of this control group the kernel has ended for lack of memory; 0 where it does not say."""
    try:
        own = Path("/proc/self/cgroup").read_text().strip().rpartition("::")[2]
        events = Path(f"/sys/fs/cgroup{own}/memory.events").read_text()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in events.splitlines() if "oom_kill " in line), 0)


def _status(name: str) -> int:
    """Return a member of the kernel's status of this process, in bytes."""
    with open(f"/proc/{os.getpid()}/status", encoding="ascii") as lines:
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{name}:"))
