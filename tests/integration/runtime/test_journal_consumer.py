"""Batches of a consumer of the journal: small and early with little load, large and later under load."""

from __future__ import annotations

import threading

import pytest
import redis

from domain.codec import JournalEntry, encode
from domain.events import TimeAdvanced
from domain.redis_keys import Keys
from scheduler.runtime import journal_consumer
from scheduler.runtime.journal_consumer import Entries, JournalConsumer
from scheduler.runtime.recent_entries import RecentEntries
from scheduler.runtime.redis.journal import START


class Recorded(threading.Event):
    """A stop that is set at the first pause and records it."""

    seconds: float | None = None

    def wait(self, timeout: float | None = None) -> bool:
        self.seconds = timeout
        self.set()
        return True


def an_entry(seq: int, facts: int = 1) -> JournalEntry:
    return JournalEntry(seq, 1, 1.0, 0.0, "0-0", [TimeAdvanced(at=1.0)] * facts, [])


def consumed(
    client: redis.Redis, keys: Keys, recent: RecentEntries | None = None
) -> tuple[list[int], float | None]:
    """Consume until the first pause; return what was consumed and the pause."""
    seen: list[int] = []

    def consume(entries: Entries) -> None:
        seen.extend(entry.seq for _, entry in entries)

    stop = Recorded()
    JournalConsumer(
        client, keys, "rows", lambda: START, consume,
        pause_seconds=0.1, busy_pause_seconds=1.0, recent=recent, page=10,
    ).run(stop)  # fmt: skip
    return seen, stop.seconds


@pytest.mark.parametrize(("facts", "seconds"), [(1, 0.1), (10_000, 1.0)])
def test_a_consumer_waits_longer_for_a_batch_under_load(
    redis_client: redis.Redis,
    keys: Keys,
    monkeypatch: pytest.MonkeyPatch,
    facts: int,
    seconds: float,
) -> None:
    moments = iter(range(100))
    monkeypatch.setattr(journal_consumer, "monotonic", lambda: float(next(moments)))
    redis_client.xadd(keys.journal, {"e": encode(an_entry(1, facts))})

    assert consumed(redis_client, keys) == ([1], seconds)


def test_under_load_it_takes_what_another_reader_has_decoded(
    redis_client: redis.Redis, keys: Keys, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal_consumer, "BUSY_FACTS_PER_SECOND", 0.0)
    redis_client.xadd(keys.journal, {"e": b"not what is read"})
    recent = RecentEntries()
    recent.add(START, [("1-0", an_entry(1)), ("2-0", an_entry(2))])

    assert consumed(redis_client, keys, recent)[0] == [1, 2]
    assert redis_client.hget(keys.positions, "rows") == b"2-0"
