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
#: Members of a result that say how it was measured.
_HEAD = ("command", "measured_at", "machine", "stolen")


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


def name_paths() -> None:
    """Leave the names alone of paths among the arguments, so that a stored command has no local folder."""
    sys.argv[1:] = [
        word if word.startswith("-") else Path(word).name or word for word in sys.argv[1:]
    ]


def store(
    name: str, body: dict[str, Any], variant: str = "", folder: Path | None = None, module: str = ""
) -> Path:
    """Write one result; the latest run of a benchmark replaces the one before of its ``variant``.

    ``module`` is the benchmark that stores it, where its name is not that of the result.
    """
    folder = folder or RESULTS
    folder.mkdir(exist_ok=True)
    path = folder / f"{name}{variant and '-'}{variant}.json"
    command = "python -m " + " ".join([f"benchmarks.{module or name}", *sys.argv[1:]])
    record = {
        "command": command,
        "measured_at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "machine": machine(),
        "stolen": stolen(),
        **body,
    }
    path.write_text(json.dumps(record, indent=2) + "\n")
    return path


def store_parts(name: str, parts: dict[str, Any], folder: Path | None = None) -> Path:
    """Write the parts of one result that were measured now; the others stay as they were.

    ``measured`` says of each part when and by which command it was measured, and on which machine.
    """
    path = (folder or RESULTS) / f"{name}.json"
    before = json.loads(path.read_text()) if path.exists() else {}
    path = store(name, parts, folder=folder)
    now = json.loads(path.read_text())
    head = {each: now[each] for each in _HEAD}
    earlier = before.get("measured")
    if earlier is None:  # of a version that stored all parts together
        own = {each: before[each] for each in _HEAD if each in before}
        earlier = {part: own for part in before if part not in _HEAD}
    kept = {part: found for part, found in before.items() if part not in (*_HEAD, "measured")}
    merged = {**head, **kept, **parts, "measured": {**earlier, **dict.fromkeys(parts, head)}}
    path.write_text(json.dumps(merged, indent=2) + "\n")
    return path


def quantiles(seconds: list[float]) -> dict[str, float]:
    """Return milliseconds at the usual quantiles."""
    ordered = sorted(seconds)
    return {
        f"p{share}_ms": round(ordered[min(len(ordered) - 1, len(ordered) * share // 100)] * 1e3, 3)
        for share in (50, 95, 99)
    }
