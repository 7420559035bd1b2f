"""Sessions over HTTP: from the client through gateway, loop and node to a real shell."""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, nullcontext
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
import uvicorn
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed

from domain.action import EnvironmentSpec, Outcome
from domain.ids import ActionId, TrajectoryKey
from domain.ports import RunOrder, RunReport
from managers.cpu.environment.protocol import LivingEnvironment, NoEnvironment
from managers.cpu.fake import FakeDriver
from managers.cpu.live_output import LiveOutputs
from managers.cpu.sessions.host import SessionHost
from managers.cpu.sessions.run import SessionRun, SessionTools
from managers.cpu.sessions.serving import SessionPlaces, SessionService
from scheduler.runtime.node.door.server import EmbeddedServer
from tests.conformance.sessions.host_environment import HostEnvironment
from tests.conformance.sessions.test_session_actions import Cores
from tests.integration.runtime.rig import Rig

HERE = "/trajectories/t1/sessions"


class SessionDriver(FakeDriver):
    """A fake driver, whose one environment has real sessions."""

    def __init__(self, environment: HostEnvironment) -> None:
        super().__init__()
        self.environment = environment
        self._in_sessions: dict[ActionId, SessionRun] = {}
        self.host = SessionHost(str(environment.control))
        variables = {"PATH": os.environ["PATH"], "HOME": "/tmp"}
        places = SessionPlaces(self._find, self._open, lambda _: variables, lambda *_: 0)
        self.sessions = SessionService(self.host, places)
        self.tools = SessionTools(
            self.host,
            self._find,
            lambda _: Cores(),
            _mark,
            LiveOutputs(),
            lambda *_: nullcontext(),
            0.3,
        )

    def _find(self, trajectory: TrajectoryKey) -> LivingEnvironment:
        if trajectory != self.environment.trajectory:
            raise NoEnvironment(trajectory)
        return self.environment

    async def _open(self, trajectory: TrajectoryKey, _: EnvironmentSpec) -> LivingEnvironment:
        return self._find(trajectory)

    async def run(self, order: RunOrder, started: Callable[[], None]) -> RunReport:
        if order.action.exec is None or order.action.exec.session is None:
            return await super().run(order, started)
        name, live = order.action.id, SessionRun(order, started, self.tools)
        self._in_sessions[name] = live
        try:
            return await live.live()
        finally:
            del self._in_sessions[name]

    def stop(self, action_id: ActionId, outcome: Outcome, reason: str) -> None:
        if live := self._in_sessions.get(action_id):
            live.stop(outcome, reason)
        else:
            super().stop(action_id, outcome, reason)


def _mark(mark: str, withdrawn: Callable[[], bool]) -> asyncio.Future[None]:
    done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    done.set_result(None)
    return done


@pytest.fixture
async def sessions(rig: Rig, tmp_path: Path) -> AsyncIterator[SessionDriver]:
    """The node of the rig, with sessions."""
    (tmp_path / "env").mkdir()
    environment = HostEnvironment(tmp_path / "env", "default/t1")
    await environment.begin()
    await rig.stop_node()
    rig.driver = driver = SessionDriver(environment)
    await rig.start_node()
    yield driver
    for each in driver.host.all(environment.name):
        await driver.host.close(environment.name, each.state.name)
    await environment.end()


async def opened(client: httpx.AsyncClient, cwd: Path, **fields: Any) -> dict[str, Any]:
    await client.post("/trajectories", json={"id": "t1", "task": "t"})
    answer = await client.post(HERE, json={"cwd": str(cwd), **fields}, timeout=120)
    assert answer.status_code == 201, answer.text
    facts: dict[str, Any] = answer.json()
    return facts


def an_action(*command: str, **fields: Any) -> dict[str, Any]:
    work = {"command": command, "session": "main", **fields}
    return {"task": "t", "kind": "exec", "trajectory": "t1", "cost": {"cpu": 1}, "exec": work}


async def done(client: httpx.AsyncClient, *command: str, **fields: Any) -> dict[str, Any]:
    answer = await client.post("/actions?wait=60", json=an_action(*command, **fields), timeout=120)
    assert answer.status_code == 200, answer.text
    result: dict[str, Any] = answer.json()["result"]
    return result


async def test_commands_of_a_session_are_actions(rig: Rig, sessions: SessionDriver) -> None:
    async with rig.client() as client:
        facts = await opened(client, sessions.environment.workspace)
        first = await done(client, "mkdir sub; cd sub; export A=5")
        second = await done(client, "basename $PWD; echo $A; (exit 3)")
        shown = (await client.get(f"{HERE}/main")).json()
        listed = (await client.get(HERE)).json()
    assert (facts["name"], facts["state"], facts["shell"]) == ("main", "idle", ["bash"])
    assert (first["exit_code"], second["exit_code"], second["session"]) == (0, 3, "idle")
    assert second["stdout"] == "sub\r\n5\r\n"
    assert shown["last_status"] == 3
    assert [each["name"] for each in listed["sessions"]] == ["main"]


async def test_a_prompt_is_answered_by_a_later_action(rig: Rig, sessions: SessionDriver) -> None:
    async with rig.client() as client:
        await opened(client, sessions.environment.workspace)
        first = await done(
            client, "read -p 'Name? ' n; echo Hello $n", expect={"pattern": r"Name\? $"}
        )
        shown = (await client.get(f"{HERE}/main")).json()
        refused = await client.post("/actions", json=an_action("true"))
        second = await done(client, stdin="Ada\n")
    assert (first["exit_code"], first["matched"], first["session"]) == (None, "Name? ", "busy")
    assert (shown["state"], shown["waits_for_input"]) == ("busy", True)
    assert (refused.status_code, refused.json()["code"]) == (409, "session_busy")
    assert (second["exit_code"], "Hello Ada" in second["stdout"]) == (0, True)


async def test_a_dead_session_is_404_with_its_exit_status(
    rig: Rig, sessions: SessionDriver
) -> None:
    async with rig.client() as client:
        await opened(client, sessions.environment.workspace)
        ended = await done(client, "exit 9")
        answers = [
            await client.post("/actions", json=an_action("true")),
            await client.get(f"{HERE}/main"),
            await client.post(f"{HERE}/main/input", content=b"x"),
        ]
        listed = (await client.get(HERE)).json()["sessions"]
        again = await opened(client, sessions.environment.workspace)
    assert (ended["exit_code"], ended["session"]) == (9, "ended")
    assert [answer.status_code for answer in answers] == [404, 404, 404]
    assert all("exit status 9" in answer.json()["detail"] for answer in answers)
    assert [(each["state"], each["exit_status"]) for each in listed] == [("ended", 9)]
    assert again["state"] == "idle"


async def test_a_repeated_submission_is_answered_while_the_session_is_busy(
    rig: Rig, sessions: SessionDriver
) -> None:
    async with rig.client() as client:
        await opened(client, sessions.environment.workspace)
        body = an_action("read x", expect={"input": True})
        key = {"Idempotency-Key": "k1"}
        first = await client.post("/actions?wait=60", json=body, headers=key, timeout=120)
        again = await client.post("/actions", json=body, headers=key)
    assert first.json()["result"]["session"] == "busy"
    assert (again.status_code, again.json()["id"]) == (202, first.json()["id"])


async def test_input_interrupt_and_resize_need_no_grant(rig: Rig, sessions: SessionDriver) -> None:
    async with rig.client() as client:
        await opened(client, sessions.environment.workspace)
        await done(client, 'read a; stty size; echo "<$a>"; sleep 600', expect={"input": True})
        sized = await client.post(f"{HERE}/main/resize", json={"rows": 30, "columns": 90})
        typed = await client.post(f"{HERE}/main/input", content=b"wo")
        await client.post(f"{HERE}/main/input", content=b"rd\n")
        shown = await done(client, expect={"pattern": "30 90"})
        interrupted = await client.post(f"{HERE}/main/interrupt")
        last = await done(client, "echo $?", queue=True)
    assert (sized.status_code, sized.json()["size"]) == (200, {"rows": 30, "columns": 90})
    assert (typed.status_code, interrupted.status_code) == (202, 202)
    assert (shown["matched"], "<word>" in last["stdout"]) == ("30 90", True)
    assert last["stdout"].endswith("130\r\n")


async def test_a_signal_ends_the_foreground_and_spares_the_shell(
    rig: Rig, sessions: SessionDriver
) -> None:
    async with rig.client() as client:
        await opened(client, sessions.environment.workspace)
        await done(client, "trap '' INT; sh -c 'echo deaf; sleep 600'", expect={"pattern": "deaf"})
        killed = await client.post(f"{HERE}/main/interrupt?signal=SIGKILL")
        after = await done(client, "echo $?", queue=True)
        idle = await client.post(f"{HERE}/main/interrupt?signal=SIGTERM")
        shown = (await client.get(f"{HERE}/main")).json()
        refused = await client.post(f"{HERE}/main/interrupt?signal=SIGSTOP")
    assert (killed.status_code, after["stdout"].strip()) == (202, "137")
    assert (idle.status_code, shown["state"]) == (202, "idle")
    assert (refused.status_code, refused.json()["errors"][0]["pointer"]) == (422, "?signal")


@pytest.mark.parametrize(
    ("change", "pointer"),
    [
        ({"reward": {"from": "exit_code"}}, "/reward"),
        ({"exec": {"command": ["x"], "session": "main", "cwd": "/tmp"}}, "/exec/cwd"),
        ({"exec": {"command": ["x"], "session": "main", "env": {"A": "1"}}}, "/exec/env"),
        ({"exec": {"command": [], "session": "main"}}, "/exec/command"),
        ({"exec": {"command": ["x"], "session": "../x"}}, "/exec/session"),
        ({"exec": {"command": ["x"], "expect": {"input": True}}}, "/exec/expect"),
        ({"exec": {"command": ["x"], "queue": True}}, "/exec/queue"),
        (
            {"exec": {"command": ["x"], "session": "main", "expect": {"pattern": "("}}},
            "/exec/expect/pattern",
        ),
        ({"trajectory": None}, "/trajectory"),
    ],
)
async def test_fields_that_contradict_a_session_are_refused(
    rig: Rig, change: dict[str, Any], pointer: str
) -> None:
    async with rig.client() as client:
        answer = await client.post("/actions", json={**an_action("true"), **change})
    assert answer.status_code == 422, answer.text
    assert answer.json()["errors"][0]["pointer"] == pointer


async def test_a_shell_that_is_none_is_refused(rig: Rig, sessions: SessionDriver) -> None:
    async with rig.client() as client:
        await opened(client, sessions.environment.workspace, name="other")
        missing = await client.post(HERE, json={"shell": "nosuchshell", "cwd": "/"}, timeout=120)
        again = await client.post(HERE, json={"name": "other", "cwd": "/"}, timeout=120)
        unknown = await client.get(f"{HERE}/nosuch")
    assert (missing.status_code, missing.json()["code"]) == (422, "no_shell")
    assert (again.status_code, unknown.status_code) == (409, 404)


async def test_sessions_of_another_project_are_not_seen(rig: Rig, sessions: SessionDriver) -> None:
    async with rig.client() as client:
        await opened(client, sessions.environment.workspace)
    async with rig.client(token="stranger") as client:
        answers = [await client.get(f"{HERE}/main"), await client.post(f"{HERE}/main/interrupt")]
    assert [answer.status_code for answer in answers] == [404, 404]


@asynccontextmanager
async def served(rig: Rig) -> AsyncIterator[str]:
    """Serve the gateway on a port."""
    async with rig.gateway() as gateway:
        server = EmbeddedServer(
            uvicorn.Config(gateway, lifespan="off", log_level="warning", ws="websockets-sansio")
        )
        with socket.socket() as listening:
            listening.bind(("127.0.0.1", 0))
            listening.listen()
            serving = asyncio.create_task(server.serve([listening]))
            yield f"ws://127.0.0.1:{listening.getsockname()[1]}/api/v1{HERE}"
            server.end()
            await serving


def attached(address: str, query: str = "") -> connect:
    headers = {"Authorization": "Bearer trainer"}
    return connect(f"{address}/main/attach{query}", additional_headers=headers, proxy=None)


async def seen(client: Any, text: bytes) -> bytes:
    output = b""
    async with asyncio.timeout(60):
        while text not in output:
            message = await client.recv()
            output += message if isinstance(message, bytes) else b""
    return output


async def test_an_attached_terminal_types_at_a_prompt_and_ends_with_the_session(
    rig: Rig, sessions: SessionDriver
) -> None:
    async with rig.client() as http, served(rig) as address:
        await opened(http, sessions.environment.workspace)
        await done(http, "export A=7")
        async with attached(address, "?prompt=true&rows=33&columns=99") as client:
            await seen(client, b"# " if os.geteuid() == 0 else b"$ ")
            refused = await http.post("/actions", json=an_action("true"))
            await client.send(b"stty size; echo A=$A\n")
            await seen(client, b"33 99\r\nA=7")
            await client.send(msgspec.json.encode({"resize": {"rows": 20, "columns": 70}}).decode())
            await client.send(b"stty size\n")
            await seen(client, b"20 70")
        after = await done(http, "echo detached", queue=True)
        async with attached(address) as client:
            await seen(client, b"detached")
            await done(http, "exit 4")
            last: str | bytes = b""
            while isinstance(last, bytes):
                last = await client.recv()
            with pytest.raises(ConnectionClosed) as closed:
                await client.recv()
    assert (refused.status_code, refused.json()["code"]) == (409, "session_attached")
    assert "detached" in after["stdout"]
    assert msgspec.json.decode(last) == {"exit_status": 4}
    assert closed.value.rcvd is not None
    assert closed.value.rcvd.code == 4000


async def test_the_client_opens_a_session_and_answers_a_prompt(
    rig: Rig, sessions: SessionDriver
) -> None:
    cwd = str(sessions.environment.workspace)
    async with rig.served() as client, client.trajectory("t1", task="t") as trajectory:
        async with trajectory.session("main", cwd=cwd, size=(30, 90)) as session:
            await session.run("export A=3")
            first = await session.run("read -p 'Sure? ' x; echo $A$x", expect=r"Sure\? $")
            second = await session.expect("3yes", stdin="yes\n")
            sleeping = asyncio.ensure_future(session.run("echo slow; sleep 600"))
            async with asyncio.timeout(60):
                while not sessions.host.of("env", "main").foreground():
                    await asyncio.sleep(0.01)
            await session.interrupt()
            third = await sleeping
            info = await session.info()
        listed = await client.sessions("t1")
    assert (first.result["matched"], second.result["matched"]) == ("Sure? ", "3yes")
    assert (third.exit_code, info.state, info.last_status) == (130, "idle", 130)
    assert listed == []


async def test_the_command_line_attaches_a_terminal_and_detaches(
    rig: Rig, sessions: SessionDriver, tmp_path: Path
) -> None:
    async with rig.client() as http, served(rig) as address:
        await opened(http, sessions.environment.workspace, name="shell")
        master, slave = os.openpty()
        url = address.replace("ws://", "http://").partition("/api/")[0]
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "tangram_client", "--url", url, "--token", "trainer", "shell", "t1",
            stdin=slave, stdout=slave, stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
        os.close(slave)
        output = await _typed(master, b"", b"# " if os.geteuid() == 0 else b"$ ")
        output = await _typed(master, b"echo $((6 * 7))\r", b"\r\n42\r\n")
        os.write(master, b"\x1d")
        assert process.stderr is not None
        said = await process.stderr.read()
        await process.wait()
        os.close(master)
        shown = (await http.get(f"{HERE}/shell")).json()
    assert b"42" in output
    assert (process.returncode, b"detached" in said) == (0, True), said
    assert (shown["state"], shown["attached"]) == ("idle", 0)


async def _typed(master: int, keys: bytes, expected: bytes) -> bytes:
    """Type keys, and read until the text shows."""
    loop, output, found = asyncio.get_running_loop(), bytearray(), asyncio.Event()

    def read() -> None:
        output.extend(os.read(master, 4096))
        if expected in output:
            found.set()

    loop.add_reader(master, read)
    os.write(master, keys)
    try:
        async with asyncio.timeout(60):
            await found.wait()
    except TimeoutError:
        raise AssertionError(bytes(output)) from None
    finally:
        loop.remove_reader(master)
    return bytes(output)
