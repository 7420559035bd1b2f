"""played_nodes: many node workers in one process. They speak the real protocol; their commands are played, not run.

``python -m benchmarks.played_nodes URL PREFIX FOLDER --nodes 1000 --cores 256``. Each is a `NodeWorker` with the fake driver: it joins,
shows life, reads its stream and reports as others do. Lines on stdin steer them: ``lose N`` ends the first N without a word, as a
power cut does; ``return`` starts them again on their folders. Prints ``joined N`` when all have joined.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from pathlib import Path
from typing import cast

import uvloop

from domain.inventory import ResourceInventory
from domain.ports import Driver
from domain.redis_keys import Keys
from managers.cpu.fake import FakeDriver, FakeStorage
from scheduler.runtime.node.worker import NodeOptions, NodeWorker
from scheduler.runtime.redis.clients import connect_async

#: Nodes that join at once.
JOINING = 50


class PlayedNode:
    """One node worker, and what survives it."""

    def __init__(self, options: argparse.Namespace, keys: Keys, number: int) -> None:
        self._keys = keys
        self._client = connect_async(options.url, max_connections=4096)
        self._options = NodeOptions(
            f"played-{number}",
            "default",
            Path(options.folder) / f"played-{number}",
            {
                "cpu": ResourceInventory(options.cores * 1000, (tuple(range(options.cores)),)),
                "memory": ResourceInventory(options.cores * 2**32),
            },
        )
        self._storage = FakeStorage()
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Start the worker, and wait until it has joined."""
        driver = cast("Driver", FakeDriver(storage=self._storage))
        worker = NodeWorker(self._client, self._keys, self._options, [driver])
        self._task = asyncio.create_task(worker.run())
        joined = asyncio.create_task(worker.joined.wait())
        await asyncio.wait({joined, self._task}, return_when=asyncio.FIRST_COMPLETED)
        if not joined.done():
            joined.cancel()
            self._task.result()

    async def lose(self) -> None:
        """End the worker; what it ran is lost."""
        if self._task is not None:
            self._storage.running = set()
            self._task.cancel()
            await asyncio.wait({self._task})


async def play(options: argparse.Namespace) -> None:
    """Play the nodes until stdin ends."""
    keys = Keys(options.prefix)
    nodes = [PlayedNode(options, keys, number) for number in range(options.nodes)]
    await _start(nodes)
    print(f"joined {len(nodes)}", flush=True)
    lines = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
    lost: list[PlayedNode] = []
    while line := await lines.readline():
        verb, _, number = line.decode().strip().partition(" ")
        if verb == "lose":
            lost = nodes[: int(number)]
            await asyncio.gather(*(node.lose() for node in lost))
        elif verb == "return":
            await _start(lost)
        print(f"{verb} done", flush=True)


async def _start(nodes: list[PlayedNode]) -> None:
    for first in range(0, len(nodes), JOINING):
        await asyncio.gather(*(node.start() for node in nodes[first : first + JOINING]))


def main() -> None:
    """Play."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("url")
    parser.add_argument("prefix")
    parser.add_argument("folder")
    parser.add_argument("--nodes", type=int, default=1000)
    parser.add_argument("--cores", type=int, default=256)
    uvloop.run(play(parser.parse_args()))


if __name__ == "__main__":
    main()
