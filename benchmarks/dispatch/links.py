"""Parts of the benchmark that move bytes with our own transport: against one controller, and against a raw socket."""

from __future__ import annotations

import subprocess
from statistics import median
from typing import Any, Final

from benchmarks.dispatch.cluster import Cluster, Run, cluster
from benchmarks.dispatch.hosts import loopback, shaped

#: EARL's Figure 4, in MiB for each rank, at an eighth.
FIGURE_4: Final = tuple(size / 8 for size in (46, 93, 187))
#: Ranks → how many times as fast as the controller.
SHAPED_GOALS: Final = {4: 7.0, 8: 11.2}
UNSHAPED_GOAL: Final = 2.5
RAW_GOAL: Final = 0.8
RAW_SHAPED_GOAL: Final = 0.95


def _ratio(group: Cluster, mebibytes: float, repeats: int, way: str = "checked") -> dict[str, Any]:
    """Measure a size both ways in turns; the results have to be equal, byte for byte."""
    ours: list[Run] = []
    theirs: list[Run] = []
    for _ in range(repeats):
        ours.append(group.run(way, mebibytes, digest=True))
        theirs.append(group.run("controller", mebibytes, digest=True))
    if len({run.digests for run in ours + theirs}) != 1:
        raise SystemExit(f"{mebibytes} MiB: the ways left different bytes")
    seconds, rival = (median(run.seconds for run in runs) for runs in (ours, theirs))
    found = {
        "mebibytes": round(mebibytes, 2),
        "ours_seconds": round(seconds, 3),
        "controller_seconds": round(rival, 3),
        "times": round(rival / seconds, 2),
        "ours_cpu_share": round(median(run.cpu_share for run in ours), 2),
        "controller_cpu_share": round(median(run.cpu_share for run in theirs), 2),
        "identical": True,
    }
    print(found, flush=True)
    return found


def figure_4(small: bool, mbit: int) -> tuple[dict[str, Any], list[str]]:
    """All-to-all against one controller, each host behind a link; on loopback, and said so, where links cannot be made."""
    found: dict[str, Any] = {"link_mbit": mbit, "checksums": "crc32"}
    missed = []
    sizes, repeats = ((1.0,), 1) if small else (FIGURE_4, 3)
    for ranks in (4,) if small else (4, 8):
        try:
            with shaped(ranks, mbit) as hosts, cluster(hosts) as group:
                measured = [_ratio(group, size, repeats) for size in sizes]
        except (PermissionError, subprocess.CalledProcessError) as error:
            print(f"loopback: no links can be made here ({error})")
            found["link_mbit"] = None
            with loopback(ranks) as hosts, cluster(hosts) as group:
                measured = [_ratio(group, size, repeats) for size in sizes]
        found[f"{ranks} hosts"] = measured
        if measured[-1]["times"] < SHAPED_GOALS[ranks]:
            missed.append(f"{ranks} hosts: {measured[-1]['times']} < {SHAPED_GOALS[ranks]}")
    return found, missed


def unshaped(small: bool) -> tuple[dict[str, Any], list[str]]:
    """The same without links: the processors are what binds."""
    found: dict[str, Any] = {}
    missed = []
    for ranks in (4,) if small else (4, 8):
        with loopback(ranks) as hosts, cluster(hosts) as group:
            for way in ("unchecked", "checked"):
                measured = _ratio(group, 4 if small else 46, 1 if small else 5, way)
                found[f"{ranks} ranks, {way}"] = measured
                if way == "unchecked" and measured["times"] < UNSHAPED_GOAL:
                    missed.append(f"{ranks} ranks: {measured['times']} < {UNSHAPED_GOAL}")
    return found, missed


def raw(small: bool, mbit: int) -> tuple[dict[str, Any], list[str]]:
    """One rank sends to another one, against a socket that does nothing else; with checksums and without."""
    found: dict[str, Any] = {"link_mbit": mbit}
    with loopback(2) as hosts, cluster(hosts) as group:
        found["unshaped"] = _raw(group, 32 if small else 512, 3 if small else 9)
    missed = [
        f"unshaped, unchecked: {found['unshaped']['unchecked']} < {RAW_GOAL}"
        for _ in range(found["unshaped"]["unchecked"] < RAW_GOAL)
    ]
    try:
        with shaped(2, mbit) as hosts, cluster(hosts) as group:
            found["shaped"] = _raw(group, 2 if small else 64, 1 if small else 3)
    except (PermissionError, subprocess.CalledProcessError) as error:
        print(f"not measured on links, which cannot be made here ({error})")
        return found, missed
    if found["shaped"]["checked"] < RAW_SHAPED_GOAL:
        missed.append(f"shaped, checked: {found['shaped']['checked']} < {RAW_SHAPED_GOAL}")
    return found, missed


def _raw(group: Cluster, mebibytes: float, repeats: int) -> dict[str, Any]:
    """Return bytes per second, and both ways of ours as shares of the raw socket's; in turns."""
    runs: dict[str, list[float]] = {"raw": [], "unchecked": [], "checked": []}
    for number in range(repeats + 1):
        for way, seconds in runs.items():
            took = group.run(way, mebibytes, "one-way").seconds
            # The first round has the machine find its pages, which takes longer than the bytes.
            if number:
                seconds.append(took)
    medians = {way: median(seconds) for way, seconds in runs.items()}
    found = {
        "mebibytes": mebibytes,
        "raw_mebibytes_per_second": round(mebibytes / medians["raw"], 1),
        "unchecked": round(medians["raw"] / medians["unchecked"], 3),
        "checked": round(medians["raw"] / medians["checked"], 3),
    }
    print(found, flush=True)
    return found
