"""Replies to queries: those of one pass of the loop cross to Redis together, in their order."""

from __future__ import annotations

from typing import Any, cast

import pytest

from domain.codec import Reply, decode_reply
from domain.events import StatusQueried
from scheduler.runtime.loop.query_handler import REPLIES_AT_ONCE, QueryHandler


class CountingRedis:
    """Counts round trips, and keeps what is published."""

    def __init__(self) -> None:
        self.published: list[tuple[str, str]] = []
        self.round_trips = 0
        self._waiting: list[tuple[str, str]] = []

    def pipeline(self, transaction: bool) -> CountingRedis:
        assert not transaction
        return self

    def __enter__(self) -> CountingRedis:
        return self

    def __exit__(self, *_: object) -> None: ...

    def publish(self, channel: str, body: bytes) -> None:
        self._waiting.append((channel, decode_reply(body).request_id))

    def execute(self) -> None:
        self.round_trips += 1
        self.published += self._waiting
        self._waiting = []


@pytest.mark.parametrize(
    ("queries", "round_trips"), [(0, 0), (1, 1), (REPLIES_AT_ONCE, 1), (2 * REPLIES_AT_ONCE + 1, 3)]
)
def test_a_thousand_queries_at_once_are_not_a_thousand_round_trips(
    monkeypatch: pytest.MonkeyPatch, queries: int, round_trips: int
) -> None:
    redis, nothing = CountingRedis(), cast("Any", None)
    handler = QueryHandler(cast("Any", redis), nothing, nothing, nothing)
    monkeypatch.setattr(handler, "_reply", lambda query: Reply(query.request_id))

    for number in range(queries):
        handler.answer(StatusQueried(request_id=f"q{number}", reply_to=f"web{number % 2}"))
    handler.flush()

    assert redis.published == [(f"web{number % 2}", f"q{number}") for number in range(queries)]
    assert redis.round_trips == round_trips
