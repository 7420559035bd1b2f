"""batch: 100,000 noops submitted 1,000 a request; submitted → finished → row stored.

Target: ≥ 5,000 actions a second on 2 cores until the last row is in the database.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sqlite3
import time
from pathlib import Path

from benchmarks.load import exchange, post
from benchmarks.record import store
from benchmarks.stack import Stack, tangram

BATCH = 1000


async def _submit(stack: Stack, actions: int, connections: int) -> None:
    body = json.dumps({"actions": [{"task": "bench", "kind": "noop"}] * BATCH}).encode()
    request = post("/api/v1/actions/batch", stack.token, body)
    left = actions // BATCH

    async def submit() -> None:
        nonlocal left
        reader, writer = await asyncio.open_connection(stack.host, stack.port)
        while left > 0:
            left -= 1
            status, answer = await exchange(reader, writer, request)
            while status == 429:  # the queue is full
                await asyncio.sleep(0.2)
                status, answer = await exchange(reader, writer, request)
            if status != 202:
                raise SystemExit(f"answered {status}: {answer[:300]!r}")
        writer.close()

    await asyncio.gather(*(submit() for _ in range(connections)))


def _stored(database: Path) -> int:
    with sqlite3.connect(f"file:{database}?mode=ro", uri=True, timeout=30) as rows:
        # Answered from a small index: looking must not cost what is measured.
        query = "select count(*) from records_actionrecord where finished_seq is not null"
        return int(rows.execute(query).fetchone()[0])


def main() -> None:
    """Measure, print, store."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--actions", type=int, default=100_000)
    parser.add_argument("--connections", type=int, default=2)
    options = parser.parse_args()
    with tangram() as stack:
        database = stack.home / "tangram.sqlite3"
        asyncio.run(_submit(stack, 2 * BATCH, 1))  # warm
        while _stored(database) < 2 * BATCH:
            time.sleep(0.2)
        began = time.perf_counter()
        asyncio.run(_submit(stack, options.actions, options.connections))
        submitted = time.perf_counter() - began
        while _stored(database) < options.actions + 2 * BATCH:
            time.sleep(0.2)
        done = time.perf_counter() - began
    result = {
        "actions": options.actions,
        "submitted_per_second": round(options.actions / submitted),
        "stored_per_second": round(options.actions / done),
    }
    print(result)
    print("stored in", store("batch", {"result": result}))


if __name__ == "__main__":
    main()
