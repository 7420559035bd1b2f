"""Storage of results, with a description of the machine."""

from __future__ import annotations

import json
import os
import platform
import sys
import time
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"


def _processor_time() -> tuple[int, int]:
    """Return ticks of all cores since boot: those that other machines of the host took, and all."""
    words = Path("/proc/stat").read_text().split("\n", 1)[0].split()
    ticks = [int(word) for word in words[1:9]]
    return ticks[7], sum(ticks)


#: When this program began.
_BEGAN = _processor_time()


def stolen() -> float:
    """Return the share of the processor time that the host gave to others while this program ran."""
    taken, every = (now - began for now, began in zip(_processor_time(), _BEGAN, strict=True))
    return round(taken / every, 3) if every else 0.0


def machine() -> dict[str, Any]:
    """Describe this machine."""
    model = next(
        (
            line.partition(":")[2].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if line.startswith("model name")
        ),
        platform.processor(),
    )
    return {
        "cpu": model,
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "kernel": platform.release(),
        "python": platform.python_version(),
    }


def store(name: str, body: dict[str, Any], variant: str = "", folder: Path | None = None) -> Path:
    """Write one result; the latest run of a benchmark replaces the one before of its ``variant``."""
    folder = folder or RESULTS
    folder.mkdir(exist_ok=True)
    path = folder / f"{name}{variant and '-'}{variant}.json"
    command = "python -m " + " ".join([f"benchmarks.{name}", *sys.argv[1:]])
    record = {
        "command": command,
        "measured_at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "machine": machine(),
        "stolen": stolen(),
        **body,
    }
    path.write_text(json.dumps(record, indent=2) + "\n")
    return path


def quantiles(seconds: list[float]) -> dict[str, float]:
    """Return milliseconds at the usual quantiles."""
    ordered = sorted(seconds)
    return {
        f"p{share}_ms": round(ordered[min(len(ordered) - 1, len(ordered) * share // 100)] * 1e3, 3)
        for share in (50, 95, 99)
    }
