"""However much one project submits at once, no other waits for it, and nothing changes its place or is lost."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator

import httpx
import pytest

from domain.events import ActionSubmitted, Event, TaskCancelRequested
from scheduler.runtime.redis.journal import Journal
from scheduler.runtime.redis.lua_scripts import ADMIT_ALL, INBOX_ACTIONS
from tests.integration.runtime.rig import LoopThread, Rig

NOOP = {"task": "t", "kind": "noop"}
MANY = 1000


def journalled(rig: Rig) -> Iterator[Event]:
    """Yield the events of the journal in their order."""
    for _, entry in Journal(rig.redis, rig.keys).after("0-0"):
        yield from entry.events


def submitted(rig: Rig) -> list[tuple[str, str]]:
    """Return project and id of each action that the scheduler has read."""
    return [
        (event.action.project, event.action.id)
        for event in journalled(rig)
        if isinstance(event, ActionSubmitted)
    ]


async def batch(client: httpx.AsyncClient, count: int = MANY) -> list[str]:
    """Submit a batch; return the ids in its order."""
    answer = await client.post("/actions/batch", json={"actions": [NOOP] * count})
    assert answer.status_code == 202, answer.text
    return [item["id"] for item in answer.json()["items"]]


async def until_read(rig: Rig, count: int) -> list[tuple[str, str]]:
    async with asyncio.timeout(120):
        while len(found := submitted(rig)) < count:
            await asyncio.sleep(0.02)
    return found


@pytest.fixture
def stopped(rig: Rig) -> Rig:
    """A system whose loop does not run."""
    assert rig.loop is not None
    rig.loop.stop()
    return rig


async def test_a_later_project_is_read_before_the_rest_of_many(stopped: Rig) -> None:
    async with stopped.client() as client, stopped.client("stranger") as other:
        ours = await batch(client) + await batch(client) + await batch(client)
        theirs = [(await other.post("/actions", json=NOOP)).json()["id"] for _ in range(3)]
        stopped.loop = LoopThread(stopped.url, stopped.keys)
        found = await until_read(stopped, len(ours) + len(theirs))

    assert [name for project, name in found if project == "default"] == ours
    assert [name for project, name in found if project == "other"] == theirs
    places = [place for place, (project, _) in enumerate(found) if project == "other"]
    assert max(places) <= MANY + len(theirs)
    assert not stopped.redis.exists(stopped.keys.arrivals)
    assert not stopped.redis.exists(stopped.keys.arrivals_of("default"))


async def test_projects_that_submit_much_take_turns(stopped: Rig) -> None:
    async with stopped.client() as client, stopped.client("stranger") as other:
        await batch(client)
        await batch(other)
        more = await batch(client), await batch(other)
        stopped.loop = LoopThread(stopped.url, stopped.keys)
        found = await until_read(stopped, 4 * MANY)

    rest = [project for project, _ in found[2 * MANY :]]
    half = rest[: len(rest) // 2]
    assert abs(half.count("default") - half.count("other")) <= INBOX_ACTIONS
    assert [name for _, name in found if name in set(more[0])] == more[0]


async def test_a_cancel_of_a_task_follows_the_submissions_of_its_project(stopped: Rig) -> None:
    async with stopped.client() as client:
        await batch(client)
        (last,) = await batch(client, 1)
        operator = {"Authorization": "Bearer operator"}
        answer = await client.post("/tasks/t/cancel", headers=operator, json={})
        assert answer.status_code == 202, answer.text
        found = asyncio.create_task(client.get(f"/actions/{last}"))
        stopped.loop = LoopThread(stopped.url, stopped.keys)
        assert (await found).status_code == 200
        async with asyncio.timeout(60):
            while not any(isinstance(each, TaskCancelRequested) for each in journalled(stopped)):
                await asyncio.sleep(0.02)

    events = list(journalled(stopped))
    cancel = next(n for n, each in enumerate(events) if isinstance(each, TaskCancelRequested))
    assert sum(isinstance(each, ActionSubmitted) for each in events[:cancel]) == MANY + 1


async def test_a_caller_of_all_projects_finds_what_waits_outside_the_inbox(stopped: Rig) -> None:
    async with stopped.client() as client, stopped.client("cluster") as cluster:
        await batch(client)
        (last,) = await batch(client, 1)
        asked = asyncio.create_task(cluster.get(f"/actions/{last}"))
        stopped.loop = LoopThread(stopped.url, stopped.keys)
        found = await asked

    assert found.status_code == 200
    assert found.json()["id"] == last


async def test_a_leader_that_ends_leaves_the_rest_to_its_successor(stopped: Rig) -> None:
    async with stopped.client() as client:
        ours = [name for _ in range(4) for name in await batch(client)]
        for _ in range(3):
            stopped.loop = LoopThread(stopped.url, stopped.keys)
            await until_read(stopped, len(submitted(stopped)) + 1)
            stopped.loop.stop()
        stopped.loop = LoopThread(stopped.url, stopped.keys)
        found = await until_read(stopped, len(ours))

    assert [name for _, name in found] == ours


async def test_all_is_moved_to_the_inbox_without_a_leader(stopped: Rig) -> None:
    redis, keys = stopped.redis, stopped.keys
    async with stopped.client() as client:
        await batch(client)
        await batch(client, 700)
    assert redis.llen(keys.arrivals_of("default")) == 700
    moved = []
    while count := redis.eval(ADMIT_ALL, 2, keys.inbox, keys.arrivals):
        moved.append(count)

    assert moved == [INBOX_ACTIONS, 700 - INBOX_ACTIONS]
    assert not redis.exists(keys.arrivals)


async def test_the_time_outside_the_inbox_counts_as_time_in_the_queue(stopped: Rig) -> None:
    async with stopped.client() as client:
        await batch(client)
        (last,) = await batch(client, 1)
        accepted = time.monotonic()
        while time.monotonic() - accepted < 0.3:
            await asyncio.sleep(0.05)
        stopped.loop = LoopThread(stopped.url, stopped.keys)
        found = (await client.get(f"/actions/{last}?wait=60")).json()

    assert found["timing"]["queue_seconds"] >= 0.3
