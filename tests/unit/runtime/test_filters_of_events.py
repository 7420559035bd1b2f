"""Filters of an event stream: the requested task and trajectory, and no others."""

from __future__ import annotations

import json
from typing import Any

from domain.action import Action, Kind, Outcome, Timing
from domain.codec import JOURNAL_FIELD, JournalEntry, encode
from domain.decisions import Decision, Finish, Grant
from domain.events import ActionSubmitted
from domain.ids import ActionId
from domain.principals import Principal, Scope
from scheduler.runtime.gateway.endpoints.event_feeds import _EventFeed
from scheduler.runtime.gateway.http import HttpRequest

READER = Principal("reader", "default", frozenset({Scope.READ}))
TIMING = Timing(0.0, 0.0, 0.0, 0.0)


async def nothing() -> dict[str, Any]:
    return {"type": "http.disconnect"}


def a_feed(query: str) -> _EventFeed:
    scope = {"method": "GET", "path": "/", "headers": [], "query_string": query.encode()}
    return _EventFeed(HttpRequest(scope, nothing), READER, "1-0")


def life(name: str, task: str, trajectory: str | None = None) -> JournalEntry:
    """Return an entry in which an action comes, is granted, and ends."""
    action = Action(id=ActionId(name), project="default", task=task, kind=Kind.NOOP,
                    trajectory=trajectory)  # fmt: skip
    decisions: list[Decision] = [
        Grant(action.id, "n1", (), project="default", task=task, trajectory=trajectory),
        Finish(action.id, "default", task, Outcome.COMPLETED, TIMING, trajectory),
    ]
    return JournalEntry(1, 1, 0.0, 0.0, "0-0", [ActionSubmitted(action=action)], decisions)


def reported(feed: _EventFeed, *entries: JournalEntry) -> list[tuple[str, str]]:
    """Return type and action of each event that the client receives."""
    text = b"".join(
        feed.lines(f"{n}-0", {JOURNAL_FIELD: encode(entry)}) for n, entry in enumerate(entries, 2)
    ).decode()
    blocks = [dict(line.split(": ", 1) for line in block.split("\n"))
              for block in text.strip().split("\n\n") if block]  # fmt: skip
    return [(block["event"], json.loads(block["data"])["id"]) for block in blocks]


def test_all_events_of_a_task_are_sent_and_none_of_another() -> None:
    entries = life("a", "swe"), life("b", "other")

    assert reported(a_feed("task=swe"), *entries) == [
        ("submitted", "a"), ("granted", "a"), ("finished", "a"),
    ]  # fmt: skip
    assert len(reported(a_feed(""), *entries)) == 6


def test_actions_without_a_trajectory_belong_to_none() -> None:
    entries = life("a", "swe", "j"), life("b", "swe"), life("c", "swe", "k")

    assert {name for _, name in reported(a_feed("trajectory=j"), *entries)} == {"a"}
    assert reported(a_feed("trajectory=j&types=granted"), *entries) == [("granted", "a")]
