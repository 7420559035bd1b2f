"""Part of the benchmark with rivals, at four ranks on loopback in one run: gloo, Ray's object store, TransferQueue, and the plain controller.

Each has its own interpreter: gloo Debian's Python, which has torch; Ray and TransferQueue virtual environments outside of this repository, which
``--rivals DIRECTORY`` keeps. TransferQueue brings a torch of five gigabytes; it is measured where that directory has it already, or with ``--install``.
"""

from __future__ import annotations

import json
import os
import subprocess
import venv
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any, Final

from benchmarks.dispatch.cluster import ROOT, cluster
from benchmarks.dispatch.hosts import loopback
from benchmarks.rivals import RAY

RANKS: Final = 4
TRANSFER_QUEUE: Final = "transferqueue==0.1.11"
_TORCH_PYTHON: Final = "/usr/bin/python3"
_GLOO_WAYS: Final = ("all_to_all_single", "gather+scatter", "all_gather")


def rivals(small: bool, folder: Path, install: bool) -> tuple[dict[str, Any], list[str]]:
    """Return seconds of each way, and how many times as long as ours it takes."""
    mebibytes, repeats = (2.0, 1) if small else (46.0, 3)
    found: dict[str, Any] = {"ranks": RANKS, "mebibytes": mebibytes}
    digests: dict[str, Any] = {}
    with loopback(RANKS) as hosts, cluster(hosts) as group:
        for way, name in (
            ("checked", "ours"),
            ("unchecked", "ours, no checksums"),
            ("controller", "controller, plain TCP"),
        ):
            runs = [group.run(way, mebibytes, digest=True) for _ in range(repeats)]
            found[name] = {"seconds": round(median(run.seconds for run in runs), 3)}
            digests[name] = list(runs[0].digests)
    for way in _GLOO_WAYS:
        _keep(found, digests, f"gloo {way}", _gloo(way, mebibytes, repeats))
    _keep(
        found,
        digests,
        "Ray object store",
        _script("rival_ray.py", folder, RAY, True, mebibytes, repeats),
    )
    _keep(
        found,
        digests,
        "TransferQueue",
        _script("rival_queue.py", folder, TRANSFER_QUEUE, install, mebibytes, repeats),
    )
    ours = found["ours"]["seconds"]
    for name, each in found.items():
        if isinstance(each, dict) and "seconds" in each:
            each["times_ours"] = round(each["seconds"] / ours, 2)
            each["identical"] = digests[name] == digests["ours"]
        print(name, each, flush=True)
    different = [name for name, each in digests.items() if each != digests["ours"]]
    return found, [f"{name} left other bytes" for name in different]


def _keep(
    found: dict[str, Any], digests: dict[str, Any], name: str, measured: dict[str, Any]
) -> None:
    if "seconds" in measured:
        found[name] = {"seconds": round(median(measured["seconds"]), 3)}
        digests[name] = measured["digests"]
    else:
        found[name] = measured


def _gloo(way: str, mebibytes: float, repeats: int) -> dict[str, Any]:
    """Run the ranks of a process group; rank 0 prints what all measured."""
    if not Path(_TORCH_PYTHON).exists() or _fails(_TORCH_PYTHON, "torch"):
        return {"not_run": f"{_TORCH_PYTHON} has no torch"}
    with TemporaryDirectory() as folder:
        processes = [
            subprocess.Popen(
                [
                    *(_TORCH_PYTHON, "-m", "benchmarks.dispatch.rival_gloo"),
                    *(str(rank), str(RANKS), f"{folder}/store", way, str(mebibytes), str(repeats)),
                ],
                cwd=ROOT,
                stdout=subprocess.PIPE,
                text=True,
                env={**os.environ, "OMP_NUM_THREADS": "1"},
            )
            for rank in range(RANKS)
        ]
        answers = [
            json.loads(process.communicate(timeout=900)[0].splitlines()[-1])
            for process in processes
        ]
    return {
        "seconds": [
            max(ended for _, ended in spans) - min(began for began, _ in spans)
            for spans in zip(*(each["spans"] for each in answers), strict=True)
        ],
        "digests": [each["digest"] for each in answers],
    }


def _script(
    name: str, folder: Path, requirement: str, install: bool, mebibytes: float, repeats: int
) -> dict[str, Any]:
    """Run a rival's script under the interpreter that has it."""
    home = folder / requirement.partition("=")[0]
    python = home / "bin" / "python"
    if not python.exists() and not install:
        return {"not_run": f"{requirement} is not in {home}; give --install"}
    if not python.exists():
        venv.create(home, with_pip=True)
        installed = subprocess.run(
            [str(python), "-m", "pip", "install", "-q", "numpy", requirement], check=False
        )
        if installed.returncode:
            return {"not_run": f"{requirement} cannot be installed"}
    script = Path(__file__).with_name(name)
    done = subprocess.run(
        [str(python), str(script), str(RANKS), str(mebibytes), str(repeats)],
        cwd=folder,
        stdout=subprocess.PIPE,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    if done.returncode:
        return {"not_run": f"{name} ended with {done.returncode}"}
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def _fails(python: str, module: str) -> bool:
    return bool(
        subprocess.run(
            [python, "-c", f"import {module}"], capture_output=True, check=False
        ).returncode
    )
