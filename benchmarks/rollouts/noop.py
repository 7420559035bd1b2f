"""No-op rollouts through the whole system: HTTP, log on disk, assignment, a lease for each stage, handler process, rows.

Target: ≥ 100 a second, from the first request to the last end.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any, Final

from benchmarks.rollouts.installation import AT_ONCE, TASK, installation
from tangram_client.aio import AsyncClient

PER_SECOND: Final = 100.0
WARM: Final = 50


async def measure(count: int, rounds: int, slots: int) -> dict[str, Any]:
    """Return the rates of some rounds."""
    rows: list[dict[str, Any]] = []
    with installation(environment={"TANGRAM_ROLLOUT_SLOTS": str(slots)}) as found:
        async with found.client() as client:
            await _play(client, WARM)
            for _ in range(rounds):
                before, began = found.cpu_seconds(), time.monotonic()
                await _play(client, count)
                seconds = time.monotonic() - began
                after = found.cpu_seconds()
                used = {
                    kind: round(1000 * (after[kind] - before.get(kind, 0.0)) / count, 2)
                    for kind in after
                }
                rows.append(
                    {
                        "rollouts": count,
                        "seconds": round(seconds, 2),
                        "per_second": round(count / seconds, 1),
                        "cpu_ms_each": used,
                    }
                )
                print(f"noop: {rows[-1]}", flush=True)
    return {"slots": slots, "rows": rows, "per_second": min(row["per_second"] for row in rows)}


async def _play(client: AsyncClient, count: int) -> None:
    """Run so many rollouts, and see that all of them have their reward."""
    cursor = (await client.rollouts.completions("now")).next
    names = [{"id": f"i{number}"} for number in range(count)]
    parts = [names[start : start + AT_ONCE] for start in range(0, count, AT_ONCE)]
    await asyncio.gather(*(client.rollouts.submit(TASK, "noop", part) for part in parts))
    left = count
    while left:
        page = await client.rollouts.completions(cursor, limit=100, wait_seconds=30, tokens=False)
        assert all(each.reward == 1.0 for each in page.items), page.items
        left -= len(page.items)
        cursor = page.next


def missed(result: dict[str, Any]) -> list[str]:
    """Return the targets that were missed."""
    rate = result["per_second"]
    return [f"{rate:g} no-op rollouts a second"] if rate < PER_SECOND else []
