"""The frames thread outlives errors of Redis, and a feed that starts again continues the history of families."""

from __future__ import annotations

from threading import Event as Stop
from typing import Any, cast

import pytest
import redis

from domain.codec import JournalEntry, encode
from tangram_web import journal_consumers
from tangram_web.lib import bus
from tangram_web.live import publisher
from tangram_web.live.family_times import CommandFamilyStore
from tangram_web.live.publisher import FramePublisher, LiveFeed
from tangram_web.metrics.totals import Totals
from tests.unit.live.journal import Journal

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


def test_durations_of_families_are_stored_and_a_feed_that_starts_again_counts_none_twice(
    redis_bus: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(publisher, "FAMILIES_SECONDS", 0.0)
    journal = Journal()
    journal.join("n1")

    def feed() -> int:
        """Fold the retained journal; return the stored number of commands of the family."""
        following = LiveFeed(redis_bus, bus.keys(), Totals())
        for entry in journal.entries:
            following.fold(entry, counted=False)
        following.save_history()
        (family,) = CommandFamilyStore(redis_bus, bus.keys()).load().families
        return sum(sum(bucket.counts.values()) for bucket in family.buckets)

    def run(name: str) -> None:
        journal.submit(name, family="test")
        journal.grant(name)
        journal.finish(name)
        journal.at += 1

    run("a1")
    assert feed() == 1
    assert feed() == 1
    run("a2")
    assert feed() == 2
    redis_bus.set(bus.keys().family_times, b"of another version")
    assert feed() == 2
