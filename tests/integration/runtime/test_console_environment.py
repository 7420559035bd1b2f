"""Environments behind the session of a browser: what runs in one, only for users who may see its project."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from scheduler.runtime.node.door.processes import ProcessHandlers
from scheduler.runtime.node.door.routes import DoorRequest, DoorResponse
from tangram_web.serving import console_environment
from tangram_web.serving.console_environment import ConsoleEnvironment
from tests.conformance.isolations import a_driver, isolations
from tests.integration.runtime.rig import Rig

HERE = "/live/environment/default/t1"
WORK = {
    "task": "t", "kind": "exec", "trajectory": "t1", "cost": {"cpu": 1},
    "exec": {"command": ["sh", "-c", "exec sleep 900 >/dev/null &"]},
}  # fmt: skip


@asynccontextmanager
async def page(rig: Rig, project: str | None) -> AsyncIterator[httpx.AsyncClient]:
    """Return a browser whose user is a member of ``project``; None: signed out."""

    async def behind(_scope: Any, _receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 418, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    async def sees_of(_user: Any) -> Callable[[str], bool] | None:
        return None if project is None else project.__eq__

    async with rig.context() as context:
        application = ConsoleEnvironment(context, sees_of, lambda inner: inner, behind)
        async with httpx.AsyncClient(
            transport=httpx.ASGITransport(application), base_url="http://tangram"
        ) as client:
            yield client


@pytest.fixture
async def node(rig: Rig, tmp_path: Path) -> AsyncIterator[Rig]:
    """The rig with a node that runs commands under bubblewrap."""
    if "bwrap" not in isolations():
        pytest.skip("no bubblewrap here")
    await rig.stop_node()
    rig.driver = a_driver(tmp_path, "bwrap")  # type: ignore[assignment]
    await rig.start_node()
    yield rig
    await rig.stop_node()


async def shows(browser: httpx.AsyncClient, command: str) -> Any:
    """Return what the page reads once a program runs: its action is over before the shell's child is that program."""
    async with asyncio.timeout(60):
        while True:
            found = (await browser.get(HERE)).json()
            if command in [each["command"] for each in found["programs"]]:
                return found
            await asyncio.sleep(0.01)


async def test_a_member_reads_state_sessions_and_programs(node: Rig) -> None:
    async with node.client() as client, page(node, "default") as browser:
        await client.post("/trajectories", json={"id": "t1", "task": "t"})
        before = (await browser.get(HERE)).json()
        action = (await client.post("/actions?wait=60", json=WORK)).json()
        opened = await client.post("/trajectories/t1/sessions", json={"name": "s"})
        running = await shows(browser, "sleep 900")
        parked = await client.post("/trajectories/t1/park")
        frozen = (await browser.get(HERE)).json()
    assert (before["state"], before["node"], before["sessions"]) == ("none", "", [])
    assert (opened.status_code, parked.status_code) == (201, 200)
    assert (running["state"], running["node"]) == ("running", "n1")
    assert [each["name"] for each in running["sessions"]] == ["s"]
    owners = {each["command"]: each["owner"] for each in running["programs"]}
    assert owners["sleep 900"] == action["id"]
    assert frozen["state"] == "parked"


@pytest.mark.parametrize(("project", "status"), [(None, 401), ("other", 404)])
async def test_others_do_not(rig: Rig, project: str | None, status: int) -> None:
    async with rig.client() as client, page(rig, project) as browser:
        await client.post("/trajectories", json={"id": "t1", "task": "t"})
        response = await browser.get(HERE)
        behind = await browser.get("/live/environment/nonsense")
    assert (response.status_code, behind.status_code) == (status, 418)
    assert "node" not in response.json()


async def test_a_node_that_does_not_answer_is_a_problem_in_time(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def never(_: ProcessHandlers, _request: DoorRequest) -> DoorResponse:
        await asyncio.Event().wait()
        raise AssertionError

    monkeypatch.setattr(console_environment, "NODE_SECONDS", 0.3)
    monkeypatch.setattr(ProcessHandlers, "inspect", never)
    await rig.stop_node()
    await rig.start_node()
    async with rig.client() as client, page(rig, "default") as browser:
        await client.post("/trajectories", json={"id": "t1", "task": "t"})
        await client.put("/trajectories/t1/files/a", content=b"x")
        response = await browser.get(HERE)
    assert response.status_code == 503
    assert "does not answer" in response.json()["detail"]
