"""Live output behind the session of a browser: only for users who may see the action."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest

from managers.cpu.fake import Play
from tangram_web.serving import console_output
from tangram_web.serving.console_output import ConsoleOutput
from tests.integration.runtime.rig import Rig

WORK = {"task": "t", "kind": "exec", "cost": {"cpu": 1}, "exec": {"command": ["x"]}}


@asynccontextmanager
async def page(rig: Rig, project: str | None) -> AsyncIterator[httpx.AsyncClient]:
    """Return a browser whose user is a member of ``project``; None: signed out."""

    async def behind(_scope: Any, _receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 418, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    async def sees_of(_user: Any) -> Callable[[str], bool] | None:
        return None if project is None else project.__eq__

    async with rig.context() as context:
        application = ConsoleOutput(context, sees_of, lambda inner: inner, behind)
        async with httpx.AsyncClient(
            transport=httpx.ASGITransport(application),
            base_url="http://tangram",
        ) as client:
            yield client


async def finished(rig: Rig) -> str:
    rig.driver.script = lambda _: Play(stdout="private\n")
    async with rig.client() as client:
        return str((await client.post("/actions?wait=60", json=WORK)).json()["id"])


async def test_a_member_reads_the_output(rig: Rig) -> None:
    async with page(rig, "default") as browser:
        action_id = await finished(rig)
        response = await browser.get(f"/live/output/{action_id}")
    assert response.status_code == 200
    assert "private" in response.text
    assert "event: end" in response.text


@pytest.mark.parametrize(("project", "status"), [(None, 401), ("other", 404)])
async def test_others_do_not(rig: Rig, project: str | None, status: int) -> None:
    async with page(rig, project) as browser:
        action_id = await finished(rig)
        response = await browser.get(f"/live/output/{action_id}")
        assert (response.status_code, "private" in response.text) == (status, False)
        assert (await browser.get("/live/output/nonsense")).status_code == 418


async def test_a_connection_ends_so_that_the_session_is_looked_at_again(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(console_output, "RECHECK_SECONDS", 1.5)
    rig.driver.script = lambda _: Play(seconds=None, stdout="so far\n")
    async with rig.client() as client, page(rig, "default") as browser:
        action_id = (await client.post("/actions", json=WORK)).json()["id"]
        await rig.until_started(action_id)
        response = await browser.get(f"/live/output/{action_id}")
        await rig.end_action(action_id)
    assert "so far" in response.text
    assert "event: end" not in response.text
