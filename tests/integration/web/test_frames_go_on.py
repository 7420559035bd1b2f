"""The frames thread outlives errors of Redis, however many there are."""

from __future__ import annotations

from threading import Event as Stop
from typing import Any, cast

import redis

from domain.codec import JournalEntry, encode
from tangram_web import journal_consumers
from tangram_web.lib import bus
from tangram_web.live.publisher import FramePublisher

FAILURES = 12


class AfterSome(Stop):
    """Is set after so many waits."""

    def __init__(self, waits: int) -> None:
        super().__init__()
        self._left = waits

    def wait(self, timeout: float | None = None) -> bool:
        self._left -= 1
        if not self._left:
            self.set()
        return self.is_set()


def test_a_redis_that_refuses_writes_is_not_run_out_of_connections(redis_bus, monkeypatch):
    redis_bus.xadd(bus.keys().journal, {"e": encode(JournalEntry(1, 1, 1.0, 0.0, "0-0", [], []))})
    clients: list[redis.Redis] = []

    def refused(*_: Any) -> None:
        raise redis.ResponseError("OOM command not allowed when used memory > 'maxmemory'")

    def connect(url: str) -> redis.Redis:
        clients.append(redis.Redis.from_url(url, protocol=2))
        return clients[-1]

    monkeypatch.setattr(journal_consumers, "connect", connect)
    monkeypatch.setattr(FramePublisher, "publish", refused)

    before = len(cast("list[Any]", redis_bus.client_list()))
    journal_consumers.frames(AfterSome(FAILURES))

    assert len(cast("list[Any]", redis_bus.client_list())) <= before + 2
    for client in clients:
        client.close()
