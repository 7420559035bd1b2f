"""DeepSearch in a hundred lines: each trajectory searches, reads, searches again, and is judged.

The APIs take little: 50 searches/s and 20 at once, 4 judgements at once, and now and then they fail.
Tangram keeps to the limits for all trajectories together, so none of them fails.

    ./tangram up                                             # in another terminal
    ./tangram apply examples/deep_search.yaml                # with a token of scope config
    python examples/deep_search.py
"""

from __future__ import annotations

import asyncio
import json
import random
from collections import deque
from statistics import mean
from urllib.parse import quote
from uuid import uuid4

import click

from tangram_client import ActionView, AsyncClient

TRAJECTORIES, TURNS, SEARCHES = 48, 2, 3
PORT = 8900


async def episode(client: AsyncClient, name: str, policy: random.Random) -> float:
    """Play one trajectory; return the judge's score."""
    found: list[str] = []
    async with client.trajectory(name, task="deep-search-example") as trajectory:
        for turn in range(TURNS):
            await asyncio.sleep(policy.uniform(0.0, 0.5))  # stands in for the model
            asked = (f"/search?q={quote(f'{name} {turn} {n}')}" for n in range(SEARCHES))
            calls = (trajectory.call("api:search", path, replay_safe=True) for path in asked)
            for answer in await asyncio.gather(*calls):
                found += json.loads(body_of(answer))["hits"]
        judged = await trajectory.call(
            "api:judge",
            "/judge",
            json={"answer": found},
            reward={"from": "json", "path": "score"},
            replay_safe=True,
        )
    body_of(judged)
    if judged.reward is None:
        raise RuntimeError(f"{judged.id} has no score")
    return judged.reward


def body_of(answer: ActionView) -> str:
    """Return what an API answered. Anything but 200 is a failed trajectory."""
    result = answer.body.get("result") or {}
    if answer.outcome != "completed" or result.get("status") != 200:
        status = result.get("status")
        raise RuntimeError(f"{answer.id}: {answer.outcome}, HTTP {status}, {answer.detail}")
    return str(result["body"])


class ToyApis:
    """Both APIs in one server, strict about their limits."""

    def __init__(self) -> None:
        self.refused = self.served = self.broken = 0
        self._searches: deque[float] = deque()
        self._open = {"/search": 0, "/judge": 0}
        self._random = random.Random(0)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer the requests of one connection."""
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode()
                length = head.lower().partition("content-length:")[2].split("\r")[0] or "0"
                await reader.readexactly(int(length))
                path = head.split(" ")[1].partition("?")[0]
                status, body = await self._answer(path)
                writer.write(
                    f"HTTP/1.1 {status} X\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode()
                )
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            writer.close()

    async def _answer(self, path: str) -> tuple[int, str]:
        now = asyncio.get_running_loop().time()
        while self._searches and self._searches[0] <= now - 1.0:
            self._searches.popleft()
        most = 20 if path == "/search" else 4
        if self._open[path] >= most or (path == "/search" and len(self._searches) >= 50):
            self.refused += 1
            return 429, "{}"
        if path == "/search":
            self._searches.append(now)
        self._open[path] += 1
        await asyncio.sleep(self._random.uniform(0.02, 0.2))
        self._open[path] -= 1
        if self._random.random() < 0.03:
            self.broken += 1
            return 500, "{}"
        self.served += 1
        return 200, '{"hits": ["a page"]}' if path == "/search" else '{"score": 0.5}'


async def play(client: AsyncClient, trajectories: int = TRAJECTORIES) -> list[float]:
    """Play all trajectories at once; raises when one of them fails."""
    async with client:
        run = uuid4().hex[:6]
        plays = (episode(client, f"{run}-{n}", random.Random(n)) for n in range(trajectories))
        return await asyncio.gather(*plays)


async def main() -> None:
    """Serve the APIs, play, and say how it went."""
    apis = ToyApis()
    server = await asyncio.start_server(apis.serve, "127.0.0.1", PORT)
    scores = await play(AsyncClient())
    server.close()
    click.echo(f"{len(scores)} trajectories, mean score {mean(scores):.2f}, none failed")
    click.echo(f"the APIs served {apis.served}, refused {apis.refused}, broke {apis.broken} times")


if __name__ == "__main__":
    asyncio.run(main())
