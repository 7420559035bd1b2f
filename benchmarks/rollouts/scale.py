"""Figure 5: rollouts per second with 1, 2 and 4 nodes, each with a backend of its own; all are bound by delay.

Twice as many rollouts as there are seats are submitted for each wave, so that seats never wait for rollouts. The rate is that between the end
of the first wave and the end of the last but one: neither the start nor the last rollouts count. Target: ≥ 0.9 of linear.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from typing import Any, Final

from benchmarks.rollouts.installation import Options, RolloutService, add_backends, installation
from benchmarks.rollouts.language_models import language_models
from benchmarks.rollouts.plans import drawn, prompts
from benchmarks.rollouts.trainer import COMPLETED

NODES: Final = (1, 2, 4)
#: Of each node.
CORES: Final = 4
LEAST_SHARE: Final = 0.9


async def measure(nodes: int, seats: int, waves: int, token_seconds: float) -> dict[str, Any]:
    """Return the rate with so many nodes."""
    every = seats * nodes
    plans = prompts(every * waves, 1, drawn(), seed=7, prefix=f"n{nodes}-")
    options = {"slots": seats, "token_seconds": token_seconds}
    with (
        language_models([1.0] * nodes, **options) as models,  # type: ignore[arg-type]
        installation("--nodes", str(nodes), "--cpus", str(CORES)) as found,
    ):
        async with found.client() as client:
            await add_backends(client, models.addresses, seats)
            service = RolloutService(client, Options())
            warm = await service.submit(plans[:every])
            await asyncio.gather(*map(service.wait, warm))
            models.call("reset")
            before, began = found.cpu_seconds(), time.monotonic()
            ends: list[float] = []
            outcomes: Counter[str] = Counter()

            async def run(rollout: str) -> None:
                ended = await service.wait(rollout)
                ends.append(time.monotonic() - began)
                outcomes[ended.outcome] += 1

            await asyncio.gather(*map(run, await service.submit(plans)))
            used = sum(found.cpu_seconds().values()) - sum(before.values())
            busy = models.busy()
    first, last = sorted(ends)[every - 1], sorted(ends)[-every]
    return {
        "nodes": nodes,
        "rollouts": len(ends),
        "per_second": round((len(ends) - 2 * every + 1) / (last - first), 3),
        "cpu_seconds_each": round(used / len(ends), 3),
        "cores_used": round(used / max(ends), 2),
        "backends_busy": busy,
        "completed": outcomes[COMPLETED],
        "outcomes": dict(outcomes),
    }


async def all_sizes(seats: int, waves: int, token_seconds: float) -> dict[str, Any]:
    """Return the rate with each number of nodes, and its share of the linear one."""
    rows = []
    for nodes in NODES:
        rows.append(await measure(nodes, seats, waves, token_seconds))
        print(f"scale: {rows[-1]}", flush=True)
    one = rows[0]["per_second"]
    shares = {str(row["nodes"]): round(row["per_second"] / (one * row["nodes"]), 3) for row in rows}
    return {"seats": seats, "rows": rows, "of_linear": shares}


def missed(result: dict[str, Any]) -> list[str]:
    """Return the targets that were missed."""
    late = [
        f"{nodes} nodes have {share:g} of linear"
        for nodes, share in result["of_linear"].items()
        if share < LEAST_SHARE
    ]
    failed = [row for row in result["rows"] if row["completed"] != row["rollouts"]]
    return late + [f"{row['nodes']} nodes: {row['outcomes']}" for row in failed]
