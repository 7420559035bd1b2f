"""Replies of forks reach their requester although Redis, or the requester, is connecting again."""

from __future__ import annotations

from typing import Any, cast

import pytest
import redis

from domain.decisions import ForkEnvironment
from domain.ids import trajectory_key
from domain.redis_keys import Keys
from scheduler.runtime.node import environment_forks
from scheduler.runtime.node.environment_forks import EnvironmentForks


class Client:
    """Publishes with these outcomes: an error, or a number of receivers."""

    def __init__(self, *outcomes: int | Exception) -> None:
        self.outcomes = list(outcomes)

    def register_script(self, _: str) -> None:
        return None

    async def publish(self, _: str, __: bytes) -> int:
        outcome = self.outcomes.pop(0)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome


class Reporter:
    """Stores each report at once."""

    def report(self, _: Any, stored: Any) -> None:
        stored()


async def test_a_reply_is_published_until_it_is_received(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment_forks, "RETRY_SECONDS", 0.0)
    client = Client(redis.ConnectionError("killed"), 0, 1, 1)
    forks = EnvironmentForks(cast("Any", client), Keys(), "n1", cast("Any", Reporter()), None)
    source, child = trajectory_key("default", "a"), trajectory_key("default", "b")
    order = ForkEnvironment(
        node="n1", source=source, children=(child,), request_id="r", reply_to="channel"
    )
    await forks.make(order, lambda: None)
    assert client.outcomes == [1], "after the error, and after a message that nothing received"
