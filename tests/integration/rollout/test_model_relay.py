"""The relay runs an agent beside a server of OpenAI's protocol, whose calls are answered from outside, also after a crash there."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import socket
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from domain.errors import InvalidRequest, Unavailable
from rollout.handlers import relayed_calls
from rollout.handlers.relayed_calls import RelayedCalls
from rollout.job import CallRefused
from tests.ports import free_port

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]

RELAY = Path(relayed_calls.__file__).with_name("model_relay.py")
AGENT = """
import json, sys, urllib.error, urllib.request
base = sys.argv[1] + "/v1"
print(json.load(urllib.request.urlopen(base + "/models"))["data"][0]["object"])
for said in sys.argv[2:]:
    body = {"messages": [{"role": "user", "content": said}], "stream": said == "stream"}
    asked = urllib.request.Request(base + "/chat/completions", json.dumps(body).encode())
    try:
        with urllib.request.urlopen(asked) as answer:
            print(answer.headers["content-type"], answer.read().decode().replace("\\n", " "))
    except urllib.error.HTTPError as error:
        print(error.code, json.load(error)["error"]["message"])
sys.exit(3)
"""


class TcpChannel:
    """A connection to a port of this machine."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    async def send(self, data: bytes) -> None:
        """Send all of ``data``."""
        self._writer.write(data)
        await self._writer.drain()

    async def receive(self) -> bytes:
        """Return the next bytes; empty at the end."""
        return await self._reader.read(65_536)

    async def close(self) -> None:
        """Close it."""
        self._writer.close()


class LocalJob:
    """A job whose environment is this machine."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.channels: list[TcpChannel] = []

    async def connect(self, port: int) -> TcpChannel:
        """Connect to the relay."""
        try:
            channel = TcpChannel(*await asyncio.open_connection("127.0.0.1", self.port))
        except OSError as error:
            raise CallRefused(str(error)) from None
        self.channels.append(channel)
        return channel

    async def get(self, path: str) -> bytes:
        """Return nothing: each test names its ports."""
        raise CallRefused(f"there is no {path}")


async def answers_nothing(method: str, asked: Mapping[str, Any]) -> Any:
    """Answer no call."""
    raise Unavailable("no backend")


def copied(folder: Path) -> Path:
    """Return a relay whose mark is written into a folder."""
    return Path(shutil.copy(RELAY, folder))


@pytest.fixture(autouse=True)
def own_relay(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep marks out of the repository."""
    monkeypatch.setattr(sys.modules[__name__], "RELAY", copied(tmp_path_factory.mktemp("relay")))


async def run_agent(answer: Any, *said: str, program: str = AGENT) -> tuple[list[str], int]:
    """Run the agent under the relay; return its output and its status."""
    port, control = free_port(), free_port()
    command = [sys.executable, "-c", program, f"http://127.0.0.1:{port}", *said]
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-I", str(RELAY), str(port), str(control), "--", *command,
        stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    job: Any = LocalJob(control)
    relaying = asyncio.create_task(RelayedCalls(job, answer).run())
    try:
        async with asyncio.timeout(60):
            output, _ = await process.communicate()
    finally:
        relaying.cancel()
        await asyncio.wait({relaying})
        for channel in job.channels:
            await channel.close()
        if process.returncode is None:
            process.kill()
    assert process.returncode is not None
    return output.decode().splitlines(), process.returncode


async def test_calls_of_the_agent_are_answered_and_its_status_is_kept() -> None:
    names: list[str] = []

    async def answer(method: str, asked: Mapping[str, Any]) -> Any:
        names.append(asked["request"])
        content = asked["body"]["messages"][0]["content"]
        if content == "wrong":
            raise InvalidRequest("n is 1", pointer="/n")
        if content == "later":
            raise Unavailable("no backend")
        if content == "stream":
            return {"chunks": [{"delta": content}]}
        return {"completion": {"said": content}}

    said, status = await run_agent(answer, "hello", "stream", "wrong", "later")

    assert status == 3
    assert said == [
        "model",
        'application/json {"said": "hello"}',
        'text/event-stream data: {"delta": "stream"}  data: [DONE]  ',
        "400 n is 1",
        "503 no backend",
    ]
    assert len(set(names)) == 4


async def test_a_call_without_an_answer_is_asked_again_under_its_name() -> None:
    """The process that had it is gone: the agent sees nothing of that."""
    names: list[str] = []
    running: list[asyncio.Task[None]] = []

    async def answer(method: str, asked: Mapping[str, Any]) -> Any:
        names.append(asked["request"])
        if len(names) == 1:
            running[0].cancel()  # as a crash does
            await asyncio.Event().wait()
        return {"completion": {"said": asked["body"]["messages"][0]["content"]}}

    port, control = free_port(), free_port()
    command = [sys.executable, "-c", AGENT, f"http://127.0.0.1:{port}", "hello"]
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-I", str(RELAY), str(port), str(control), "--", *command,
        stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    first: Any = LocalJob(control)
    running.append(asyncio.create_task(RelayedCalls(first, answer).run()))
    async with asyncio.timeout(60):
        await asyncio.wait({running[0]})
    for channel in first.channels:
        await channel.close()
    successor: Any = LocalJob(control)
    again = asyncio.create_task(RelayedCalls(successor, answer).run())
    async with asyncio.timeout(60):
        output, _ = await process.communicate()
    again.cancel()
    await asyncio.wait({again})
    for channel in successor.channels:
        await channel.close()

    assert json.loads(output.decode().splitlines()[1].partition(" ")[2]) == {"said": "hello"}
    assert names[0] == names[1]


async def test_relays_of_one_network_serve_on_free_ports_and_write_them(tmp_path: Path) -> None:
    """Environments that share the node's network have one loopback."""
    asks = "import os, urllib.request; print(urllib.request.urlopen(os.environ['OPENAI_BASE_URL'] + '/models').status)"
    with (
        socket.create_server(("127.0.0.1", 0)) as one,
        socket.create_server(("127.0.0.1", 0)) as two,
    ):
        port, control = (each.getsockname()[1] for each in (one, two))
        relay = copied(tmp_path)
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-I", str(relay), str(port), str(control), "--",
            sys.executable, "-c", asks,
            env={**os.environ, "OPENAI_BASE_URL": f"http://127.0.0.1:{port}/v1", "TANGRAM_LOOPBACK": ""},
            stdout=asyncio.subprocess.PIPE,
        )  # fmt: skip
        mark = Path(f"{relay}.json")
        async with asyncio.timeout(60):
            while not mark.exists():
                await asyncio.sleep(0.01)
            ports = json.loads(mark.read_text())
            job: Any = LocalJob(ports["control_port"])
            relaying = asyncio.create_task(RelayedCalls(job, answers_nothing).run())
            said, _ = await process.communicate()
        relaying.cancel()
        await asyncio.wait({relaying})

    assert said == b"200\n"
    assert not {port, control} & set(ports.values())


async def test_an_environment_with_an_address_of_its_own_is_served_there(tmp_path: Path) -> None:
    asks = "import os; print(os.environ['OPENAI_BASE_URL'])"
    port = free_port()
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-I", str(copied(tmp_path)), str(port), str(free_port()), "--",
        sys.executable, "-c", asks,
        env={**os.environ, "OPENAI_BASE_URL": f"http://127.0.0.1:{port}/v1", "TANGRAM_LOOPBACK": "127.77.7.7"},
        stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    said, _ = await process.communicate()

    assert said.decode().strip() == f"http://127.77.7.7:{port}/v1"


async def test_calls_are_answered_while_no_further_one_is_read() -> None:
    """The answer would wait for a call that waits for the handler."""
    large = "x" * 4_000_000
    hundred = "\n".join((
        "import concurrent.futures, json, sys, urllib.request",
        "base = sys.argv[1] + '/v1/chat/completions'",
        f"body = json.dumps({{'messages': [], 'said': 'x' * {len(large)}}}).encode()",
        "def ask(_): return json.load(urllib.request.urlopen(base, body))['said']",
        "with concurrent.futures.ThreadPoolExecutor(20) as threads: print(sum(threads.map(ask, range(20))))",
    ))  # fmt: skip
    most = [0, 0]

    async def answer(method: str, asked: Mapping[str, Any]) -> Any:
        most[0] += 1
        most[1] = max(most)
        await asyncio.sleep(0.01)
        most[0] -= 1
        return {"completion": {"said": 1, "more": large}}

    said, status = await run_agent(answer, program=hundred)

    assert (said, status) == (["20"], 0)
    assert most[1] <= relayed_calls.MAX_FRAME_BYTES // len(large)


async def test_a_command_that_cannot_be_started_is_127_and_has_no_mark(tmp_path: Path) -> None:
    relay = copied(tmp_path)
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-I", str(relay), str(free_port()), str(free_port()), "--", str(tmp_path / "no"),
        stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    _, said = await process.communicate()

    assert process.returncode == 127
    assert b"the agent cannot be started" in said
    assert list(tmp_path.iterdir()) == [relay]
