"""What the processes of a stack cost: CPU time and wake-ups, by the part that a process hosts."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import psutil


def part_of(process: psutil.Process) -> str:
    """Return the part that a process hosts: ``web``, ``loop``, ``redis`` …, else the name of its program."""
    try:
        words = process.cmdline()
    except psutil.ZombieProcess:
        return "ended"
    if "-n" in words:
        return words[words.index("-n") + 1].partition("@")[0]
    if "tangram_web.serving" in words:
        return "web"
    for word, part in (("uvicorn", "web"), ("redis-server", "redis"), ("supervisor", "supervisor")):
        if any(word in each for each in words):
            return part
    return process.name()


def cpu_seconds(process: psutil.Process) -> float:
    """Return the CPU seconds that all threads of a process took, to the nanosecond where Linux counts so."""
    try:
        tasks = list(Path(f"/proc/{process.pid}/task").iterdir())
        return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) / 1e9
    except (OSError, ValueError, IndexError):
        times = process.cpu_times()
        return float(times.user + times.system)


def wake_ups(process: psutil.Process) -> int:
    """Return how often the threads of a process waited and were woken."""
    woken = 0
    for task in Path(f"/proc/{process.pid}/task").iterdir():
        lines = (task / "status").read_text().splitlines()
        woken += sum(int(line.split()[1]) for line in lines if line.startswith("voluntary"))
    return woken


class Costs:
    """CPU seconds and wake-ups of a process and its children, by part, since this was made."""

    def __init__(self, root_pid: int) -> None:
        root = psutil.Process(root_pid)
        self._before = {
            process: (cpu_seconds(process), wake_ups(process))
            for process in (root, *root.children(recursive=True))
        }

    def since(self) -> tuple[Counter[str], Counter[str]]:
        """Return (CPU seconds, wake-ups) by part. Processes that began later are left out."""
        seconds: Counter[str] = Counter()
        woken: Counter[str] = Counter()
        for process, (spent, waited) in self._before.items():
            if process.is_running() and process.status() != psutil.STATUS_ZOMBIE:
                part = part_of(process)
                seconds[part] += cpu_seconds(process) - spent  # type: ignore[assignment]
                woken[part] += wake_ups(process) - waited
        return seconds, woken
