"""growth: noops a second with 1, 2 and 4 node workers and 1 and 2 web processes, and what is full.

Every process of the stack and the load generator share this machine's cores, so on two cores the
rate can only fall with more processes: the result is which of them is busiest at each size. The
busiest one is what saturates first where each has a core of its own.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psutil
import uvloop

from benchmarks.load import NOOP, Load, connection, post
from benchmarks.record import RESULTS, quantiles, store
from simulator.figures import Figure, Interval, Series, plot
from tangram_web.supervisor.address import ServerAddress
from tests.faults.system import System

NODES = (1, 2, 4)
WEBS = (1, 2)
CONNECTIONS = 64


async def _load(addresses: Sequence[ServerAddress], token: str, seconds: float) -> Load:
    """Submit noops and wait for each; connections are dealt to the web processes in turn."""
    request, load, began = post("/api/v1/actions?wait=30", token, NOOP), Load(), time.perf_counter()
    await asyncio.gather(
        *(
            connection(at.port, request, began + seconds, load, host=at.host)
            for at in (addresses[n % len(addresses)] for n in range(CONNECTIONS))
        )
    )
    load.seconds = time.perf_counter() - began
    return load


def _cpu_seconds(system: System) -> dict[str, float]:
    times = {name: psutil.Process(part.pid).cpu_times() for name, part in system.parts.items()}
    return {name: spent.user + spent.system for name, spent in times.items()}


def _measure(nodes: int, webs: int, seconds: float) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="tangram-growth-") as directory:
        system = System(Path(directory), cpus=64, nodes=nodes, webs=webs)
        system.start()
        try:
            uvloop.run(_load(system.addresses, system.token, 3.0))  # warm
            before, began = _cpu_seconds(system), time.perf_counter()
            load = uvloop.run(_load(system.addresses, system.token, seconds))
            spent = time.perf_counter() - began
            after = _cpu_seconds(system)
        finally:
            system.stop()
    busy = {name: round((after[name] - before[name]) / spent, 3) for name in after}
    return {
        "nodes": nodes, "webs": webs, "per_second": round(load.rate, 1),
        **quantiles(load.latencies), "cores_busy": busy,
        "busiest": max(busy, key=lambda name: busy[name]),
    }  # fmt: skip


def _draw(rows: Sequence[dict[str, Any]]) -> str:
    series = tuple(
        Series(
            name=f"{webs} web",
            points=tuple(
                (
                    f"{row['nodes']}",
                    Interval(row["per_second"], row["per_second"], row["per_second"]),
                )
                for row in rows
                if row["webs"] == webs
            ),
        )
        for webs in WEBS
    )
    figure = Figure(id="growth", title="Throughput", x="node workers", y="noops a second",
                    series=series, kind="bars")  # fmt: skip
    return plot(figure)


def main() -> None:
    """Measure, print, store."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=10.0)
    options = parser.parse_args()
    rows = [_measure(nodes, webs, options.seconds) for webs in WEBS for nodes in NODES]
    for row in rows:
        print(
            f"{row['nodes']} nodes, {row['webs']} webs: {row['per_second']:8.1f}/s  "
            f"p50 {row['p50_ms']:7.2f} ms  busiest {row['busiest']} "
            f"({row['cores_busy'][row['busiest']]:.0%} of a core)"
        )
    print("stored in", store("growth", {"rows": rows}))
    (RESULTS / "growth.svg").write_text(_draw(rows))


if __name__ == "__main__":
    main()
