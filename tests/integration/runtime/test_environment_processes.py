"""Programs of environments over HTTP: from the client through gateway and node to real processes."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.conformance.isolations import a_driver, isolations
from tests.conformance.process.test_process_ending import processes_with
from tests.integration.runtime.rig import Rig

pytestmark = pytest.mark.skipif("bwrap" not in isolations(), reason="no bubblewrap here")
HERE = "/trajectories/t1/processes"


@pytest.fixture
async def node(rig: Rig, tmp_path: Path) -> AsyncIterator[Rig]:
    """The rig with a node that runs commands under bubblewrap."""
    await rig.stop_node()
    rig.driver = a_driver(tmp_path, "bwrap")  # type: ignore[assignment]
    await rig.start_node()
    yield rig
    await rig.stop_node()


async def run(client: httpx.AsyncClient, script: str) -> dict[str, Any]:
    action = {
        "task": "t", "kind": "exec", "trajectory": "t1", "cost": {"cpu": 1},
        "exec": {"command": ["sh", "-c", script]},
    }  # fmt: skip
    answer = await client.post("/actions?wait=60", json=action, timeout=120)
    assert answer.status_code == 200, answer.text
    done: dict[str, Any] = answer.json()
    return done


async def test_a_program_may_handle_the_signal_that_asks_it_to_end(node: Rig) -> None:
    script = "trap 'echo asked; exit 5' TERM; echo ready; while :; do sleep 0.05; done"
    action = {
        "task": "t", "kind": "exec", "trajectory": "t1", "cost": {"cpu": 1},
        "exec": {"command": ["sh", "-c", script]},
    }  # fmt: skip
    async with node.client() as client:
        running = (await client.post("/actions", json=action)).json()["id"]
        async with asyncio.timeout(60):
            while "ready" not in (await client.get(f"/actions/{running}/stream?follow=false")).text:
                await asyncio.sleep(0.01)
        listed = (await client.get(HERE)).json()["processes"]
        first = min(listed, key=lambda each: each["pid"])
        refused = await client.delete(f"{HERE}/{first['pid']}?signal=SIGHUP")
        asked = await client.delete(f"{HERE}/{first['pid']}?signal=SIGTERM")
        done = (await client.get(f"/actions/{running}?wait=60", timeout=120)).json()
    assert {(each["owner"], each["background"]) for each in listed} == {(running, False)}
    assert (refused.status_code, asked.status_code) == (422, 200)
    assert (done["outcome"], done["result"]["exit_code"]) == ("completed", 5)
    assert done["result"]["stdout"] == "ready\nasked\n"


async def test_programs_are_listed_with_the_action_that_started_them_and_ended_on_request(
    node: Rig,
) -> None:
    seconds = f"900.{os.getpid()}"
    async with node.client() as client:
        await client.post("/trajectories", json={"id": "t1", "task": "t"})
        empty = await client.get(HERE)
        action = await run(client, f"exec sleep {seconds} >/dev/null &")
        async with asyncio.timeout(30):  # until the child is the program
            while True:
                listed = (await client.get(HERE)).json()["processes"]
                if [each["command"] for each in listed] == [f"sleep {seconds}"]:
                    break
        missing = await client.delete(f"{HERE}/99999")
        ended = await client.delete(f"{HERE}/{listed[0]['pid']}")
        async with asyncio.timeout(30):
            while processes_with(seconds):
                await asyncio.sleep(0.01)
        after = (await client.get(HERE)).json()["processes"]
    assert (empty.status_code, empty.json()) == (200, {"processes": []})
    assert [(each["owner"], each["background"]) for each in listed] == [(action["id"], True)]
    assert listed[0]["command"] == f"sleep {seconds}"
    assert (missing.status_code, ended.status_code) == (404, 200)
    assert ended.json()["pid"] == listed[0]["pid"]
    assert after == []


async def test_an_environment_that_has_ended_has_no_programs(node: Rig) -> None:
    async with node.client() as client:
        await client.post("/trajectories", json={"id": "t1", "task": "t"})
        await run(client, "exit 0")
        before = await client.get(HERE)
        await node.driver.environments.close(keep=False)  # type: ignore[attr-defined]
        after = await client.get(HERE)
    assert (before.status_code, before.json()) == (200, {"processes": []})
    assert (after.status_code, after.json()) == (200, {"processes": []})
