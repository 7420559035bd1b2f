"""environments: what a living environment under bubblewrap costs, while it acts and while it is idle.

command   from an order's receipt by the driver to its report, beyond the command itself (posix_spawn of the same
          program). Target: p50 ≤ 2 ms.
opening   from an order's receipt to the report of the first command of a trajectory. Target: ≤ 20 ms.
prepared  the same where a prepared environment waits for the trajectory. Target: ≤ 5 ms.
idle      memory (PSS), processes and CPU seconds of each idle environment, init and sandbox included. Targets: at
          most 1 MiB, 4 processes, no CPU. Kernel memory, target 1 MiB: what the memory groups of the environments
          count (``memory.kmem.usage_in_bytes``, control groups version 1), and by how much the slab, kernel stacks, page tables and
          per-CPU memory of the machine grew with them (``/proc/meminfo``), mounts and namespaces included.
ending    seconds for all of them.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import tempfile
import time
from pathlib import Path

from benchmarks.record import quantiles, store
from domain.ids import TrajectoryKey
from managers.cpu.environment.kept import KeptEnvironment
from managers.cpu.process import ProcessDriver
from tests.conformance.driver import an_order
from tests.conformance.isolations import a_driver

PROGRAM = "/bin/true"
WARM = 20
_TICKS = os.sysconf("SC_CLK_TCK")
_IDLE_SECONDS = 5.0
_KERNEL_ROWS = ("Slab:", "KernelStack:", "PageTables:", "Percpu:")


async def _act(driver: ProcessDriver, number: int, trajectory: str = "trj-1") -> float:
    order = an_order(PROGRAM, name=f"act_{number}", trajectory=trajectory, timeout_seconds=120.0)
    began = time.perf_counter()
    report = await driver.run(order, lambda: None)
    taken = time.perf_counter() - began
    assert report.result is not None, report
    assert report.result.exit_code == 0, report
    driver.forget([order.mark])
    return taken


def _spawned() -> float:
    began = time.perf_counter()
    os.waitpid(os.posix_spawn(PROGRAM, [PROGRAM], {}), 0)
    return time.perf_counter() - began


async def _commands(driver: ProcessDriver, count: int) -> dict[str, float]:
    for number in range(WARM):
        await _act(driver, number)
    ours, base = [], []
    for number in range(count):
        ours.append(await _act(driver, WARM + number))
        base.append(await asyncio.to_thread(_spawned))
    found = quantiles(ours)
    beyond = round(found["p50_ms"] - quantiles(base)["p50_ms"], 3)
    return {**found, "beyond_p50_ms": beyond}


def _pids(environment: KeptEnvironment) -> list[int]:
    outer = [] if environment.outer is None else [environment.outer.pid]
    return [*outer, environment.first_pid, environment.pid, *environment.pids()]


def _pss_bytes(pid: int) -> int:
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return 1024 * int(line.split()[1])
    return 0


def _cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


def _kernel_bytes(environments: list[KeptEnvironment]) -> dict[str, float]:
    """Return the mean kernel memory of their groups, where the machine counts it."""
    groups = [each.limits.memory.entrance.parent for each in environments if each.limits.memory]
    counts = [each / "memory.kmem.usage_in_bytes" for each in groups]
    if not counts or not counts[0].exists():
        return {}
    used = sum(int(each.read_text()) for each in counts)
    return {"group_kernel_bytes_each": used / len(counts)}


def _machine_kernel_bytes() -> int:
    rows = Path("/proc/meminfo").read_text().splitlines()
    return sum(1024 * int(row.split()[1]) for row in rows if row.startswith(_KERNEL_ROWS))


async def _prepared(driver: ProcessDriver, count: int) -> dict[str, float]:
    """Measure the first command of trajectories that find a prepared environment."""
    driver.images.keep_warm({"": 2})
    found = []
    for number in range(count):
        async with asyncio.timeout(60):
            while driver.images.warm_facts()[""].kept < 2:  # noqa: ASYNC110 (the driver gives no event)
                await asyncio.sleep(0.01)
        found.append(await _act(driver, number, f"prepared-{number}"))
    taken = driver.images.warm_facts()[""].taken
    assert taken == count, f"{taken} of {count} were prepared"
    driver.images.keep_warm({})
    for number in range(count):
        await driver.remove_environment(TrajectoryKey(f"lab/prepared-{number}"))
    return quantiles(found)


async def _idle(driver: ProcessDriver, count: int) -> dict[str, float]:
    kernel_before = _machine_kernel_bytes()
    opening = [await _act(driver, number, f"idle-{number}") for number in range(count)]
    grown = _machine_kernel_bytes() - kernel_before
    assert driver.environments is not None
    environments = driver.environments.all()
    kernel = _kernel_bytes(environments)
    pids = [_pids(each) for each in environments]
    every = [pid for each in pids for pid in each]
    before = sum(map(_cpu_seconds, every))
    await asyncio.sleep(_IDLE_SECONDS)
    used = sum(map(_cpu_seconds, every)) - before
    memory = sum(map(_pss_bytes, every))
    began = time.perf_counter()
    await driver.environments.close(keep=False)
    return {
        **{f"opening_{name}": each for name, each in quantiles(opening).items()},
        "pss_bytes_each": memory / len(pids), "processes_each": max(map(len, pids)), **kernel,
        "machine_kernel_bytes_each": grown / len(pids),
        "cpu_seconds_each": used / len(pids), "ending_seconds": time.perf_counter() - began,
    }  # fmt: skip


async def measure(commands: int, environments: int) -> dict[str, dict[str, float]]:
    """Return the figures of this machine."""
    with tempfile.TemporaryDirectory(prefix="tangram-bench-") as directory:
        driver = a_driver(Path(directory), "bwrap")
        await driver.open()
        try:
            return {
                "command": await _commands(driver, commands),
                "prepared": await _prepared(driver, min(environments, 100)),
                "idle": await _idle(driver, environments),
            }
        finally:
            await driver.close()


def main() -> None:
    """Run it."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0] if __doc__ else "")
    parser.add_argument("--commands", type=int, default=500)
    parser.add_argument("--environments", type=int, default=500)
    parser.add_argument("--store", action="store_true", help="keep the result as the record")
    given = parser.parse_args()
    found = asyncio.run(measure(given.commands, given.environments))
    print(json.dumps(found, indent=1))
    if given.store:
        store("environments", found)


if __name__ == "__main__":
    main()
