"""forks: forks and snapshots of environments on one node, by its driver alone.

An environment changes a gigabyte; then it is forked, its forks answer a first command each, all at once, and a
snapshot of another environment is taken. Targets: a fork of a quiet environment ≤ 30 ms and ≤ 1 MB of disk each,
16 forks answering ≤ 120 ms, a snapshot of 100 MB changed ≤ 0.4 s, a copy at least half as fast as ``cp``.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import shutil
import statistics
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.record import store
from domain.action import Action, ExecSpec, Kind
from domain.decisions import ForkEnvironment
from domain.ids import ActionId, TrajectoryKey
from domain.ports import DriverContext, RunOrder
from managers.cpu.disk_use import measure
from managers.cpu.process import ProcessDriver
from managers.cpu.tree.copying import copy_tree

MIB = 2**20


async def _run(driver: ProcessDriver, trajectory: str, line: str) -> None:
    action = Action(
        id=ActionId(f"act_{os.urandom(6).hex()}"), project="bench", task="forks", kind=Kind.EXEC,
        trajectory=trajectory, exec=ExecSpec(("sh", "-c", line)),
    )  # fmt: skip
    report = await driver.run(RunOrder(action, ()), lambda: None)
    if report.result is None or report.result.exit_code:
        raise RuntimeError(f"{line!r} failed: {report}")


def _order(
    source: str, children: list[str], snapshot: str = "", on_busy: str = "refuse"
) -> ForkEnvironment:
    keys = tuple(TrajectoryKey(f"bench/{each}") for each in children)
    return ForkEnvironment(
        TrajectoryKey(f"bench/{source}"), "n1", keys, "r", "", on_busy, project="bench",
        snapshot=snapshot,
    )  # fmt: skip


async def _forks(driver: ProcessDriver, state: Path, round_: int, count: int) -> dict[str, float]:
    names = [f"fork-{round_}-{number}" for number in range(count)]
    began = time.perf_counter()
    report = await driver.fork_environment(_order("source", names))
    forked = time.perf_counter()
    # At once: the children are started in the background from now on.
    await asyncio.gather(*(_run(driver, name, "true") for name in names))
    answered = time.perf_counter()
    others = [f"other-{name}" for name in names]
    before = measure(state).used_bytes
    await driver.fork_environment(_order("source", others))
    disk = measure(state).used_bytes - before
    for name in (*names, *others):
        await driver.remove_environment(TrajectoryKey(f"bench/{name}"))
    return {
        "way": float(report.way == "sealed"),
        "fork_ms": 1000 * (forked - began),
        "answer_ms": 1000 * (answered - forked),
        "bytes_each": disk / count,
    }


async def _busy(driver: ProcessDriver, megabytes: int) -> dict[str, float]:
    """Fork an environment in which a program has a file open for writing."""
    writer = "(exec 4>>log; sleep 600) >/dev/null 2>&1 &"
    await _run(driver, "source", f"head -c {megabytes}M /dev/urandom >more; {writer}")
    report = await driver.fork_environment(_order("source", ["copied"], on_busy="copy"))
    return {"busy_seconds": report.seconds, "busy_frozen_seconds": report.frozen_seconds}


async def _measure(state: Path, options: argparse.Namespace) -> dict[str, Any]:
    driver = ProcessDriver(DriverContext("n1", state, {}, {}))
    await driver.open()
    try:
        fill = "head -c {0}M /dev/urandom >big; sync big"
        # A fork has layers from its start; an environment without image and layers is copied once.
        await _run(driver, "first", "true")
        await driver.fork_environment(_order("first", ["source"]))
        await _run(driver, "source", fill.format(options.megabytes))
        rounds = []
        for number in range(options.rounds):
            await _run(driver, "source", f"echo {number} >>log")
            rounds.append(await _forks(driver, state, number, options.count))
        busy = await _busy(driver, options.megabytes)
        snapshots = []
        for number in range(options.rounds):
            await _run(driver, f"kept-{number}", fill.format(options.snapshot_megabytes))
            began = time.perf_counter()
            await driver.take_snapshot(_order(f"kept-{number}", [], f"s{number}"))
            snapshots.append(time.perf_counter() - began)
        return {
            "way": driver.trees.way,
            "sealed": all(each["way"] for each in rounds),
            "megabytes": options.megabytes,
            "forks": options.count,
            **{
                name: round(statistics.median(each[name] for each in rounds), 1)
                for name in ("fork_ms", "answer_ms", "bytes_each")
            },
            **busy,
            "snapshot_megabytes": options.snapshot_megabytes,
            "snapshot_seconds": round(statistics.median(snapshots), 3),
        }
    finally:
        await driver.close()


def _copies(folder: Path, megabytes: int, rounds: int) -> dict[str, float]:
    """Compare the copy of a busy environment's layer with ``cp -a``, in turn."""
    source = folder / "layer"
    source.mkdir()
    (source / "big").write_bytes(os.urandom(megabytes * MIB))
    ours, theirs = [], []
    for number in range(rounds):
        began = time.perf_counter()
        copy_tree(source, folder / f"ours-{number}")
        between = time.perf_counter()
        subprocess.run(["cp", "-a", str(source), str(folder / f"cp-{number}")], check=True)
        ours.append(between - began)
        theirs.append(time.perf_counter() - between)
        for name in ("ours", "cp"):
            shutil.rmtree(folder / f"{name}-{number}")
    return {"copy ÷ cp": round(statistics.median(theirs) / statistics.median(ours), 2)}


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--megabytes", type=int, default=1024)
    parser.add_argument("--snapshot-megabytes", type=int, default=100)
    parser.add_argument("--count", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--variant", default="", help="Name of the stored result, for a small run.")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        (place / "copies").mkdir()
        body = asyncio.run(_measure(place / "state", options))
        body |= _copies(place / "copies", options.megabytes, options.rounds)
        print(body)
        store("forks", body, options.variant)


if __name__ == "__main__":
    main()
