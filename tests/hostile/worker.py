"""A driver in a process of its own, which takes requests as lines of JSON and answers them in any order.

The campaign starts it as the user that a node worker would have: root, or an ordinary account. Its
variables hold a secret that no program may find.

    python -m tests.hostile.worker '{"directory": …, "isolation": "bwrap", "settings": {…}}'
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

from domain.action import Action, EnvironmentSpec, ExecSpec, Kind
from domain.allocation import Allocation
from domain.errors import TangramError
from domain.ids import ActionId, ResourceId, TrajectoryKey
from domain.ports import Driver, DriverContext, RunOrder
from managers.cpu.containers import ContainerDriver
from managers.cpu.process import ProcessDriver

PROJECT = "lab"
_LINE_BYTES = 1 << 24


def make_driver(given: dict[str, Any]) -> Driver:
    """Return the driver that the campaign asks for."""
    context = DriverContext("n1", Path(given["directory"]), {}, given["settings"])
    return ContainerDriver(context) if given["isolation"] == "docker" else ProcessDriver(context)


def order(request: dict[str, Any]) -> RunOrder:
    """Return the order to run one program."""
    spec = EnvironmentSpec(memory_bytes=request["memory_bytes"], disk_bytes=request["disk_bytes"])
    action = Action(
        id=ActionId(request["name"]),
        project=PROJECT,
        task="hostile",
        kind=Kind.EXEC,
        trajectory=request["trajectory"],
        timeout_seconds=request["timeout_seconds"],
        environment=spec,
        exec=ExecSpec(
            tuple(request["command"]), env=request["env"], stdin=request["stdin"],
            output_limit_bytes=request["output_bytes"],
        ),
    )  # fmt: skip
    cores = Allocation(ResourceId("cpu:n1"), 1000, tuple(request["cores"]))
    return RunOrder(action, (cores,), environment=spec)


class Requests:
    """The requests to one driver."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._running: set[asyncio.Task[None]] = set()

    async def serve(self) -> None:
        """Answer each line of the standard input, until it ends."""
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader(_LINE_BYTES)
        await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
        while line := await reader.readline():
            task = asyncio.create_task(self._answer(json.loads(line)))
            self._running.add(task)
            task.add_done_callback(self._running.discard)
        if self._running:
            await asyncio.wait(self._running)

    async def _answer(self, request: dict[str, Any]) -> None:
        try:
            answer = await self._do(request)
        except (TangramError, OSError, ValueError) as error:
            answer = {"error": f"{type(error).__name__}: {error}"}
        _print({"number": request["number"], **answer})

    async def _do(self, request: dict[str, Any]) -> dict[str, Any]:
        key = TrajectoryKey(f"{PROJECT}/{request['trajectory']}")
        match request["do"]:
            case "run":
                report = await self._driver.run(order(request), lambda: None)
                result = report.result
                return {
                    "outcome": report.outcome.value, "detail": report.detail or "",
                    "seconds": report.execution_seconds,
                    "exit_code": None if result is None else result.exit_code,
                    "stdout": "" if result is None else result.stdout,
                    "stderr": "" if result is None else result.stderr,
                }  # fmt: skip
            case "get":
                content = await self._driver.get_file(key, request["path"], 1 << 20)
                return {"content": content.decode(errors="replace")}
            case "put":
                content = request["content"].encode()
                await self._driver.put_file(key, request["path"], content)
            case "remove":
                await self._driver.remove_environment(key)
        return {}


def _print(answer: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()


async def main() -> None:
    """Open the driver, answer requests, close the driver."""
    given = json.loads(sys.argv[1])
    driver = make_driver(given)
    await driver.open()
    _print({"number": 0, "isolation": driver.isolation})
    try:
        await Requests(driver).serve()
    finally:
        await driver.close()


if __name__ == "__main__":
    asyncio.run(main())
