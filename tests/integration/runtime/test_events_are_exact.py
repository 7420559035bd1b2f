"""GET /events shows what was asked for and nothing beside it, or says that something is missing."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import urlencode

from domain.codec import JOURNAL_FIELD
from scheduler.runtime.gateway.endpoints.event_feeds import _EventFeed
from scheduler.runtime.gateway.http import HttpRequest
from tests.integration.runtime.rig import TOKENS, Rig

WAIT = {"wait": 60}


def an_exec(task: str, trajectory: str | None = None) -> dict[str, Any]:
    return {
        "task": task,
        "trajectory": trajectory,
        "kind": "exec",
        "cost": {"cpu": 1},
        "exec": {"command": ["true"]},
    }


def shown(rig: Rig, token: str, **query: str) -> list[tuple[str, dict[str, Any]]]:
    """Return (kind, body) of everything in the journal that a client is shown."""

    async def nothing() -> Any:
        raise AssertionError("the feed reads no body")

    search = urlencode(query).encode()
    scope = {"method": "GET", "path": "/api/v1/events", "query_string": search, "headers": []}
    feed = _EventFeed(HttpRequest(scope, nothing), TOKENS[token], "0-0")
    entries: Any = rig.redis.xrange(rig.keys.journal)
    reported = b"".join(feed.lines(key.decode(), fields) for key, fields in entries).decode()
    found = []
    for event in filter(None, reported.split("\n\n")):
        fields = dict(line.split(": ", 1) for line in event.splitlines())
        found.append((fields["event"], json.loads(fields["data"])))
    return found


async def play(rig: Rig) -> None:
    async with rig.client() as client:
        for body in (an_exec("a", "x"), an_exec("a"), an_exec("b", "x2"), an_exec("b")):
            answer = await client.post("/actions", params=WAIT, json=body)
            assert answer.json()["outcome"] == "completed"
    async with rig.client("stranger") as client:
        await client.post("/actions", params=WAIT, json=an_exec("a", "x"))


async def test_a_task_shows_no_grant_of_another_task(rig: Rig) -> None:
    await play(rig)
    found = shown(rig, "reader", task="a")
    assert {(body["project"], body["task"]) for _, body in found} == {("default", "a")}
    assert [kind for kind, _ in found] == ["submitted", "granted", "finished"] * 2


async def test_a_trajectory_shows_no_actions_without_a_trajectory(rig: Rig) -> None:
    await play(rig)
    found = shown(rig, "reader", trajectory="x")
    assert [(kind, body["trajectory"]) for kind, body in found] == [
        ("submitted", "x"), ("granted", "x"), ("finished", "x"),
    ]  # fmt: skip


async def test_a_token_of_a_project_sees_no_other_project(rig: Rig) -> None:
    await play(rig)
    assert {body["project"] for _, body in shown(rig, "stranger")} == {"other"}


async def test_an_unreadable_entry_is_sent_as_a_gap_and_passed(rig: Rig) -> None:
    rig.redis.xadd(rig.keys.journal, {JOURNAL_FIELD: b"\xc1"})
    async with rig.client() as client:
        await client.post("/actions", json=an_exec("c"), params=WAIT)
    kinds = [kind for kind, _ in shown(rig, "reader", task="c", types="finished")]
    assert kinds == ["gap", "finished"]
