"""router: generations through the router of a fleet, against the same modelled engines asked directly over HTTP.

``python -m benchmarks.router [--seconds 20] [--no-store]``. A whole Tangram as ``up`` starts it, and modelled engines in
processes of their own; all share the machine with the load. Both ways take turns in one run.

streams   so many streams at once (``--streams``), begun at random moments of a rate (``--starts``): the time to the first event and to the
          end. Goal: the median first event comes at most 6 ms later through the router.
starts    answers of one token, asked for by so many connections in a row. Goal: at least 500 generations a second.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import count
from random import Random
from statistics import median
from typing import Any, Final

import httpx
import uvloop

from benchmarks.load import exchange, post
from benchmarks.record import store
from benchmarks.stack import Stack, free_port, tangram, token
from tangram_client import Client
from tangram_client._calls import apply_config

ADDED_MS: Final = 6.0
STARTS: Final = 500.0
MODEL: Final = "modelled"
#: Modelled: 8B on one GPU takes about 6.6 ms for a token of a small batch.
_TOKEN_SECONDS: Final = 0.0066
_prompts = count(1)


@dataclass
class Streams:
    """Measurements of streams, in seconds from their starts."""

    first: list[float] = field(default_factory=list)
    whole: list[float] = field(default_factory=list)


@dataclass(frozen=True)
class Way:
    """Where requests go."""

    name: str
    #: Ports, in turn.
    ports: Sequence[int]
    token: str = "-"

    def request(self, number: int, **fields: Any) -> bytes:
        """Return a request for a completion; no two have a prefix in common, whose cache would help the later way."""
        body = {
            "model": MODEL,
            "prompt": [next(_prompts), *[number] * 63],
            "ignore_eos": True,
            **fields,
        }
        return post("/v1/completions", self.token, json.dumps(body).encode())

    def port(self, number: int) -> int:
        """Return the port of a request."""
        return self.ports[number % len(self.ports)]


async def one_stream(way: Way, number: int, tokens: int, found: Streams) -> None:
    """Read one stream to its end, over a connection of its own."""
    reader, writer = await asyncio.open_connection("127.0.0.1", way.port(number))
    began = time.perf_counter()
    writer.write(way.request(number, max_tokens=tokens, stream=True))
    head = await reader.readuntil(b"\r\n\r\n")
    if not head.startswith(b"HTTP/1.1 200"):
        raise SystemExit(f"{way.name} answered {head!r}")
    await reader.readuntil(b"data: ")
    found.first.append(time.perf_counter() - began)
    await reader.readuntil(b"data: [DONE]")
    found.whole.append(time.perf_counter() - began)
    writer.close()


async def streams(way: Way, at_once: int, starts: float, seconds: float, speed: float) -> Streams:
    """Begin streams at random moments of this rate, so long each that ``at_once`` run together.

    Even moments would be in step with the iterations of the engines, whichever way has them.
    """
    draws = Random(17)
    found, tokens = Streams(), max(1, round(at_once / starts * speed / _TOKEN_SECONDS))
    due = time.perf_counter()
    async with asyncio.TaskGroup() as group:
        for number in range(round(starts * seconds)):
            due += draws.expovariate(starts)
            await asyncio.sleep(max(0.0, due - time.perf_counter()))
            group.create_task(one_stream(way, number, tokens, found))
    return found


async def rate(way: Way, connections: int, seconds: float) -> float:
    """Return answers of one token a second."""
    answered, until = 0, time.perf_counter() + seconds

    async def asks(number: int) -> None:
        nonlocal answered
        reader, writer = await asyncio.open_connection("127.0.0.1", way.port(number))
        request = way.request(number, max_tokens=1)
        while time.perf_counter() < until:
            status, body = await exchange(reader, writer, request)
            if status != 200:
                raise SystemExit(f"{way.name} answered {status}: {body[:300]!r}")
            answered += 1
        writer.close()

    began = time.perf_counter()
    await asyncio.gather(*map(asks, range(connections)))
    return answered / (time.perf_counter() - began)


@contextmanager
def engines(number: int, speed: float) -> Iterator[list[int]]:
    """Run modelled engines; give their ports."""
    ports = [free_port() for _ in range(number)]
    processes = [
        subprocess.Popen(
            [sys.executable, "-m", "managers.llm.fake", "--port", str(port), "--model", "8B",
             "--slots", "256", "--speed", f"{speed:g}"]
        )
        for port in ports
    ]  # fmt: skip
    try:
        for port in ports:
            until_answered(f"http://127.0.0.1:{port}/health")
        yield ports
    finally:
        for process in processes:
            process.terminate()
        for process in processes:
            process.wait(60)


def until_answered(url: str) -> None:
    """Wait until a server answers."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        try:
            httpx.get(url)
        except httpx.TransportError:
            time.sleep(0.05)
        else:
            return
    raise SystemExit(f"{url} does not answer")


def declare(stack: Stack, ports: Sequence[int]) -> Way:
    """Declare the engines as a fleet, and wait until it is a model; return the way through the router."""
    address = f"http://{stack.host}:{stack.port}"
    workers = [
        {"name": f"w{n}", "url": f"http://127.0.0.1:{port}", "slots": 256}
        for n, port in enumerate(ports, 1)
    ]
    document = {
        "apiVersion": "tangram/v1",
        "kind": "Fleet",
        "metadata": {"name": MODEL},
        "spec": {"engine": "vllm", "workers": workers},
    }
    with Client(address, token(stack, "admin")) as client:
        client.send(apply_config(json.dumps(document)))
    headers = {"Authorization": f"Bearer {stack.token}"}
    while httpx.get(f"{address}/v1/models/{MODEL}", headers=headers).status_code != 200:
        time.sleep(0.1)
    return Way("router", [stack.port], stack.token)


def _milliseconds(values: Sequence[float]) -> dict[str, float]:
    ordered = sorted(values)
    return {
        "p50_ms": round(1000 * median(ordered), 2),
        "p99_ms": round(1000 * ordered[int(0.99 * (len(ordered) - 1))], 2),
    }


def measure_streams(ways: Sequence[Way], options: argparse.Namespace) -> dict[str, Any]:
    """Return the times of streams by way."""
    found = {way.name: Streams() for way in ways}
    for _ in range(options.rounds):
        for way in ways:
            part = uvloop.run(
                streams(way, options.streams, options.starts, options.seconds, options.speed)
            )
            found[way.name].first += part.first
            found[way.name].whole += part.whole
    return {
        name: {"first": _milliseconds(each.first), "whole": _milliseconds(each.whole),
               "streams": len(each.first)}
        for name, each in found.items()
    }  # fmt: skip


def main() -> None:
    """Measure, print, store."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--streams", type=int, default=64)
    parser.add_argument("--starts", type=float, default=50.0, help="a second")
    parser.add_argument("--seconds", type=float, default=20.0, help="of each part")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--engines", type=int, default=2)
    parser.add_argument("--speed", type=float, default=0.25, help="of engines that stream")
    parser.add_argument("--connections", type=int, default=64)
    parser.add_argument("--store", action=argparse.BooleanOptionalAction, default=True)
    options = parser.parse_args()
    with ExitStack() as stack:
        slow = stack.enter_context(engines(options.engines, options.speed))
        running = stack.enter_context(tangram())
        ways = [Way("direct", slow), declare(running, slow)]
        times = measure_streams(ways, options)
    with ExitStack() as stack:
        quick = stack.enter_context(engines(options.engines, 50.0))
        running = stack.enter_context(tangram())
        ways = [Way("direct", quick), declare(running, quick)]
        rates = {
            way.name: round(uvloop.run(rate(way, options.connections, options.seconds)), 1)
            for way in ways
        }
    added = round(times["router"]["first"]["p50_ms"] - times["direct"]["first"]["p50_ms"], 2)
    found = {"streams": times, "added_first_p50_ms": added, "starts_per_second": rates}
    print(json.dumps(found, indent=2))
    print(f"first event +{added} ms (goal: at most {ADDED_MS:g})")
    print(f"{rates['router']:.0f} starts/s (goal: at least {STARTS:g})")
    if options.store:
        print("stored in", store("router", found))


if __name__ == "__main__":
    main()
