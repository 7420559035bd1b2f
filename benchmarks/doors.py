"""doors: what the protocols of other clients cost over the native API, and against their own servers.

overhead    the same work through a door and over /api/v1, in turns, one client. Target: ≤ 1 ms more at p50.
swerex      SWE-ReX's own server and our door, 64 clients and one. Targets: run_in_session ≥ 5 × its rate, execute
            ≥ 1.5 ×; alone p50 ≤ its own + 2 ms.
sandboxes   2,000 E2B sandboxes opened, used and killed, at most 64 at once. Targets: 0 errors, 0 left.
memory      the web process before and after all doors are loaded. Target: ≤ 5 MB.

    python -m benchmarks.doors --only overhead --count 200
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import struct
import subprocess
import sys
import time
import venv
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import quote

import psutil

from benchmarks.door_client import Answer, Connection
from benchmarks.record import quantiles, store_parts
from benchmarks.sessions import SWEREX, SWEREX_HOME
from benchmarks.stack import Stack, free_port, tangram
from facades.registry import BUILT_IN

CLIENTS: Final = 64
WARM: Final = 20
TASK, NAME = "swerex", "bench"
ENVD_PORT: Final = "49983"
#: Rows follow the journal, and an environment is removed after its sandbox is killed.
LEFT_SECONDS: Final = 30.0
Ask = Callable[[Connection], Awaitable[Answer]]


@dataclass(frozen=True)
class Pair:
    """The same work through a door and over the native API."""

    name: str
    door: Ask
    native: Ask


def _swerex(verb: str, **body: Any) -> Ask:
    return lambda client: client.ask("POST", f"/swerex/{NAME}/{verb}", body)


def _action(**work: Any) -> Ask:
    action = {"task": TASK, "trajectory": NAME, "kind": "exec", "cost": {"cpu": 1}, "exec": work}
    return lambda client: client.ask("POST", "/api/v1/actions?wait=30", action)


def _file(verb: str, path: str) -> Ask:
    query = f"{verb}?path={quote(path, safe='')}"
    return lambda client: client.ask("GET", f"/api/v1/trajectories/{NAME}/{query}")


def _of_swerex() -> list[Pair]:
    """Return what SWE-ReX's clients ask most."""
    path = "/workspace/a"
    command = {"command": ":", "session": "main", "action_type": "bash", "check": "silent"}
    return [
        Pair(
            "swerex execute",
            _swerex("execute", command=["/bin/true"], shell=False),
            _action(command=["/bin/true"]),
        ),
        Pair(
            "swerex run_in_session",
            _swerex("run_in_session", **command),
            _action(command=[":"], session="main"),
        ),
        Pair("swerex read_file", _swerex("read_file", path=path), _file("files", path)),
    ]


def _tool(name: str, **arguments: Any) -> Ask:
    params = {"name": name, "arguments": arguments}
    message = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
    return lambda client: client.ask("POST", f"/trajectories/{NAME}/mcp", message)


def _of_mcp() -> list[Pair]:
    """Return what clients of the Model Context Protocol ask most."""
    path = "/workspace/a"
    return [
        Pair("mcp run", _tool("run", command=":"), _action(command=["bash", "-c", ":"])),
        Pair("mcp read_file", _tool("read_file", path=path), _file("files", path)),
    ]


def _of_e2b(sandbox: dict[str, Any]) -> list[Pair]:
    """Return what E2B's clients ask most, of a sandbox that is also the trajectory of the native calls."""
    name, path = sandbox["sandboxID"], "/workspace/a"
    headers = _envd_headers(sandbox)
    native = f"/api/v1/trajectories/{name}"
    query = f"path={quote(path, safe='')}"
    return [
        Pair(
            "e2b Stat",
            lambda client: client.ask(
                "POST", "/e2b/filesystem.Filesystem/Stat", {"path": path}, headers
            ),
            lambda client: client.ask("GET", f"{native}/stat?{query}"),
        ),
        Pair(
            "e2b read",
            lambda client: client.ask("GET", f"/e2b/files?{query}", None, headers),
            lambda client: client.ask("GET", f"{native}/files?{query}"),
        ),
    ]


async def _pairs(client: Connection) -> list[Pair]:
    """Return the pairs of the doors that are served here, with what they need."""
    found: list[Pair] = []
    if (await client.ask("GET", f"/swerex/{NAME}/is_alive")).status == 200:
        (await _swerex("create_session", session="main", session_type="bash")(client)).checked()
        (await _swerex("write_file", path="/workspace/a", content="x" * 1000)(client)).checked()
        found += _of_swerex()
    (await _tool("write_file", path="/workspace/a", content="x" * 1000)(client)).checked()
    found += _of_mcp()
    made = await client.ask("POST", "/e2b/v2/sandboxes", {"templateID": "base", "timeout": 3600})
    if made.status == 201:
        sandbox = made.json()
        written = await client.ask(
            "PUT",
            f"/api/v1/trajectories/{sandbox['sandboxID']}/files?path=%2Fworkspace%2Fa",
            b"x" * 1000,
        )
        written.checked(200, 201)
        found += _of_e2b(sandbox)
    return found


async def _overhead(stack: Stack, count: int) -> dict[str, Any]:
    """Return, for each pair, milliseconds of both sides and what the door adds at p50."""
    rows = {}
    async with _client(stack) as client:
        for pair in await _pairs(client):
            times: tuple[list[float], list[float]] = ([], [])
            for _ in range(count + WARM):
                for side, ask in zip(times, (pair.door, pair.native), strict=True):
                    began = time.perf_counter()
                    (await ask(client)).checked()
                    side.append(time.perf_counter() - began)
            through, native = (quantiles(side[WARM:]) for side in times)
            added = round(through["p50_ms"] - native["p50_ms"], 3)
            rows[pair.name] = {"door": through, "native": native, "added_p50_ms": added}
        for sandbox in (await client.ask("GET", "/e2b/v2/sandboxes")).checked(200, 404).json():
            await client.ask("DELETE", f"/e2b/sandboxes/{sandbox['sandboxID']}")
    return rows


@asynccontextmanager
async def _client(stack: Stack) -> AsyncIterator[Connection]:
    headers = {"Authorization": f"Bearer {stack.token}", "X-API-Key": stack.token}
    async with Connection(stack.host, stack.port, headers) as client:
        yield client


# SWE-ReX


@contextmanager
def _their_server() -> Iterator[int]:
    """Start SWE-ReX's own server, and return its port."""
    python = SWEREX_HOME / "bin" / "python"
    if not python.exists():
        venv.create(SWEREX_HOME, with_pip=True)
        subprocess.run([str(python), "-m", "pip", "install", "-q", SWEREX], check=True)
    port = free_port()
    program = [str(python.with_name("swerex-remote")), "--host", "127.0.0.1", "--port", str(port)]
    server = subprocess.Popen(
        [*program, "--auth-token", "t"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        yield port
    finally:
        server.terminate()
        server.wait()


async def _until_alive(client: Connection, path: str) -> None:
    async with asyncio.timeout(120):
        while True:
            try:
                if (await client.ask("GET", path)).status == 200:
                    return
            except OSError:
                client.close()
            await asyncio.sleep(0.1)


async def _work(
    client: Connection, prefix: str, session: str, verb: str, until: float
) -> list[float]:
    """Repeat one call of SWE-ReX until a time; return its latencies."""
    body: dict[str, Any] = {"command": ["/bin/true"], "shell": False}
    if verb == "run_in_session":
        body = {"command": ":", "session": session, "action_type": "bash", "check": "silent"}
    found = []
    while (began := time.perf_counter()) < until:
        (await client.ask("POST", f"{prefix}/{verb}", body)).checked()
        found.append(time.perf_counter() - began)
    return found


async def _swerex_side(
    make: Callable[[], Connection], prefix: Callable[[int], str], clients: int, seconds: float
) -> dict[str, Any]:
    """Measure one server with so many clients, each with a session of its own."""
    connections = [make() for _ in range(clients)]
    await _until_alive(connections[0], f"{prefix(0)}/is_alive")
    rows: dict[str, Any] = {}
    try:
        for number, each in enumerate(connections):
            session = {
                "session": f"s{clients}-{number}",
                "session_type": "bash",
                "startup_timeout": 60,
            }
            (await each.ask("POST", f"{prefix(number)}/create_session", session)).checked()
        for verb in ("run_in_session", "execute"):
            began = time.perf_counter()
            found = await asyncio.gather(
                *(
                    _work(each, prefix(number), f"s{clients}-{number}", verb, began + seconds)
                    for number, each in enumerate(connections)
                )
            )
            every = [latency for each in found for latency in each]
            taken = time.perf_counter() - began
            rows[verb] = {"per_second": round(len(every) / taken, 1), **quantiles(every)}
    finally:
        for number, each in enumerate(connections):
            body = {"session": f"s{clients}-{number}", "session_type": "bash"}
            await each.ask("POST", f"{prefix(number)}/close_session", body)
            each.close()
    return rows


async def _swerex_numbers(stack: Stack, seconds: float, clients: int) -> dict[str, Any]:
    """Return rates and latencies of both servers, and the ratios of the targets."""
    rows: dict[str, Any] = {}
    with _their_server() as port:
        for many in (1, clients):
            rows[f"swe-rex x{many}"] = await _swerex_side(
                lambda: Connection("127.0.0.1", port, {"X-API-Key": "t"}),
                lambda _: "",
                many,
                seconds,
            )
    for many in (1, clients):
        rows[f"door x{many}"] = await _swerex_side(
            lambda: Connection(stack.host, stack.port, {"X-API-Key": stack.token}),
            lambda number, many=many: f"/swerex/bench-{many}-{number}",  # type: ignore[misc]
            many,
            seconds,
        )
    ours, theirs = rows[f"door x{clients}"], rows[f"swe-rex x{clients}"]
    ratios = {
        f"{verb} ÷ theirs, {clients} clients": round(
            ours[verb]["per_second"] / theirs[verb]["per_second"], 2
        )
        for verb in ours
    }
    alone = {
        f"{verb} alone beyond theirs, p50_ms": round(
            rows["door x1"][verb]["p50_ms"] - rows["swe-rex x1"][verb]["p50_ms"], 3
        )
        for verb in ours
    }
    return {"rows": rows, "ratios": {**ratios, **alone}}


# E2B


def _envd_headers(sandbox: dict[str, Any]) -> dict[str, str]:
    return {
        "E2b-Sandbox-Id": sandbox["sandboxID"],
        "E2b-Sandbox-Port": ENVD_PORT,
        "X-Access-Token": sandbox.get("envdAccessToken") or "",
    }


def _frame(text: bytes) -> bytes:
    return struct.pack(">BI", 0, len(text)) + text


async def _sandbox(client: Connection, number: int) -> None:
    """Open a sandbox, run a command in it, and kill it. Raises SystemExit for a wrong answer."""
    made = await client.ask("POST", "/e2b/v2/sandboxes", {"templateID": "base", "timeout": 600})
    sandbox = made.checked(201).json()
    start = b'{"process":{"cmd":"/bin/bash","args":["-c","echo %d"]},"stdin":false}' % number
    headers = {**_envd_headers(sandbox), "Content-Type": "application/connect+json"}
    ran = await client.ask("POST", "/e2b/process.Process/Start", _frame(start), headers)
    said = ran.checked().body
    if b'"status":"exit status 0"' not in said.replace(b": ", b":"):
        raise SystemExit(f"the command ended otherwise: {said[:500]!r}")
    (await client.ask("DELETE", f"/e2b/sandboxes/{sandbox['sandboxID']}")).checked(204)


async def _sandboxes(stack: Stack, count: int, at_once: int) -> dict[str, Any]:
    """Return errors, what is left, and latencies of whole lives."""
    numbers = iter(range(count))
    lives: list[float] = []
    errors: list[str] = []

    async def one_after_the_other() -> None:
        async with _client(stack) as client:
            for number in numbers:
                began = time.perf_counter()
                try:
                    await _sandbox(client, number)
                    lives.append(time.perf_counter() - began)
                except (SystemExit, OSError, EOFError, ValueError) as error:
                    errors.append(str(error))
                    client.close()

    began = time.perf_counter()
    await asyncio.gather(*(one_after_the_other() for _ in range(at_once)))
    taken = time.perf_counter() - began
    left, still_open = await _left(stack)
    return {
        "sandboxes": count,
        "errors": len(errors),
        "first_errors": errors[:3],
        "left": left,
        "trajectories_left": still_open,
        "per_second": round(len(lives) / taken, 1),
        **(quantiles(lives) if lives else {}),
    }


async def _left(stack: Stack) -> tuple[int, int]:
    """Return sandboxes and open trajectories of the door, once the last environments are removed."""
    until = time.monotonic() + LEFT_SECONDS
    async with _client(stack) as client:
        while True:
            sandboxes = (await client.ask("GET", "/e2b/v2/sandboxes?limit=100")).checked().json()
            path = "/api/v1/trajectories?state=open&task=e2b&limit=100"
            rows = (await client.ask("GET", path)).checked().json()["results"]
            if not (sandboxes or rows) or time.monotonic() > until:
                return len(sandboxes), len(rows)
            await asyncio.sleep(0.5)


# Memory


def _web_processes(stack: Stack) -> list[psutil.Process]:
    found = []
    for each in psutil.Process(stack.process.pid).children(recursive=True):
        with suppress(psutil.NoSuchProcess):  # a command that has ended meanwhile
            if any("uvicorn" in word for word in each.cmdline()):
                found.append(each)
    return found


def _private_bytes(processes: list[psutil.Process]) -> int:
    return sum(each.memory_full_info().uss for each in processes)


async def _memory(stack: Stack) -> dict[str, Any]:
    """Return bytes that a web process holds alone, before and after the first request of each door."""
    processes = _web_processes(stack)
    async with _client(stack) as client:
        for _ in range(WARM):
            await client.ask("GET", "/api/v1/actions/act_none")
        before = _private_bytes(processes)
        for entry in BUILT_IN:
            await client.ask("GET", f"{entry.prefixes[0]}/of/no/route")
        after = _private_bytes(processes)
    return {
        "doors": [entry.door for entry in BUILT_IN],
        "processes": len(processes),
        "before_mb": round(before / 1e6, 2),
        "added_mb": round((after - before) / 1e6, 2),
    }


def main() -> None:
    """Measure, print, store."""
    parser = argparse.ArgumentParser(description=__doc__)
    parts = ("overhead", "swerex", "sandboxes", "memory")
    parser.add_argument("--only", choices=parts, action="append")
    parser.add_argument("--count", type=int, default=500, help="requests of each pair")
    parser.add_argument("--seconds", type=float, default=15.0, help="of each load on SWE-ReX")
    parser.add_argument("--clients", type=int, default=CLIENTS)
    parser.add_argument("--sandboxes", type=int, default=2000)
    options = parser.parse_args()
    chosen = options.only or parts
    result: dict[str, Any] = {}
    with tangram() as stack:
        if "memory" in chosen:
            result["memory"] = asyncio.run(_memory(stack))
        if "overhead" in chosen:
            result["overhead"] = rows = asyncio.run(_overhead(stack, options.count))
            added = [row["added_p50_ms"] for row in rows.values()]
            result["added_p50_ms"] = round(statistics.median(added), 3) if added else None
        if "sandboxes" in chosen:
            result["sandboxes"] = asyncio.run(_sandboxes(stack, options.sandboxes, options.clients))
        if "swerex" in chosen:
            numbers = _swerex_numbers(stack, options.seconds, options.clients)
            result["swerex"] = asyncio.run(numbers)
    for part, found in result.items():
        print(f"{part}: {found}")
    print("stored in", store_parts("doors", result), file=sys.stderr)


if __name__ == "__main__":
    main()
