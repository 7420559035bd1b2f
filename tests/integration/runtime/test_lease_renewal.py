"""A leader that is busy for longer than its lease stays leader; one that hangs does not."""

from __future__ import annotations

import time
from collections.abc import Callable
from threading import Event, Thread
from typing import Any

import pytest
import redis

from domain.codec import encode
from domain.errors import Fenced
from domain.events import TimeAdvanced
from domain.redis_keys import Keys
from managers.registry import load
from scheduler.runtime.loop import housekeeping, scheduler_loop, stored_snapshot
from scheduler.runtime.loop.leadership import Leadership, LeaseRenewal
from scheduler.runtime.loop.recovery import recover
from scheduler.runtime.loop.scheduler_loop import SchedulerLoop
from tests.integration.runtime.rig import CONFIG

LEASE_SECONDS = 0.4
LONG_SECONDS = 600.0


def leader_of(client: redis.Redis, keys: Keys, name: str) -> Leadership:
    return Leadership(client, keys, name, lease_seconds=LEASE_SECONDS)


def loop_of(client: redis.Redis, keys: Keys, name: str) -> SchedulerLoop:
    leader = leader_of(client, keys, name)
    return SchedulerLoop(client, keys, load(()).make_ledger, leader, CONFIG)


def wait_until_renewed(client: redis.Redis, keys: Keys, below_seconds: float) -> None:
    until = time.monotonic() + 120
    while client.pttl(keys.leader) <= 1000 * below_seconds:
        assert time.monotonic() < until, "the lease is not renewed"
        time.sleep(0.02)


def wait_until_elected(standby: Leadership) -> None:
    until = time.monotonic() + 120
    while not standby.try_elect():
        assert time.monotonic() < until, "the lease never ended"
        time.sleep(0.02)


def test_a_recovery_that_takes_longer_than_the_lease_keeps_it(
    redis_client: redis.Redis, keys: Keys, monkeypatch: pytest.MonkeyPatch
) -> None:
    recovering, go_on, stop = Event(), Event(), Event()
    real = recover

    def slow(*args: Any) -> Any:
        recovering.set()
        assert go_on.wait(60)
        return real(*args)

    monkeypatch.setattr(scheduler_loop, "recover", slow)
    busy = loop_of(redis_client, keys, "busy")
    thread = Thread(target=busy.run, args=(stop,), daemon=True)
    thread.start()
    assert recovering.wait(120)
    # From its next sign of life on, so that a lease outlasts whatever holds this machine up; signs
    # of life come as often as before.
    busy.leadership.lease_seconds = LONG_SECONDS
    standby = leader_of(redis_client, keys, "standby")
    for _ in range(4):
        wait_until_renewed(redis_client, keys, LONG_SECONDS / 2)
        assert not standby.try_elect()
        redis_client.expire(keys.leader, int(LONG_SECONDS / 2))  # half of the time is over
    go_on.set()
    stop.set()
    thread.join(120)
    assert busy.leadership.epoch == 1
    wait_until_elected(standby)  # at once: the busy one has resigned, and nothing renews after that
    assert standby.epoch == 2


def test_a_loop_that_makes_no_progress_is_replaced(redis_client: redis.Redis, keys: Keys) -> None:
    hung = leader_of(redis_client, keys, "hung")
    assert hung.try_elect()
    with LeaseRenewal(hung, hung_after_seconds=0.1):
        wait_until_elected(leader_of(redis_client, keys, "standby"))


def test_a_replaced_leader_sends_no_more_signs_of_life(
    redis_client: redis.Redis, keys: Keys
) -> None:
    replaced = leader_of(redis_client, keys, "replaced")
    assert replaced.try_elect()
    with LeaseRenewal(replaced) as breath:
        standby = Leadership(redis_client, keys, "standby", lease_seconds=LONG_SECONDS)
        until = time.monotonic() + 120
        while not standby.try_elect():  # between two signs of life
            assert time.monotonic() < until
            redis_client.delete(keys.leader)
        breath._thread.join(120)
        assert not breath._thread.is_alive()
    assert redis_client.get(keys.leader) == b"standby"


def test_leaders_that_follow_each_other_leave_no_more_and_more_to_replay(
    redis_client: redis.Redis, keys: Keys, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(housekeeping, "FIRST_SNAPSHOT_SECONDS", 0.0)
    monkeypatch.setattr(stored_snapshot, "SNAPSHOT_ENTRIES", 4)
    monkeypatch.setattr(stored_snapshot, "REPLAY_SECONDS", 3000.0)
    first = loop_of(redis_client, keys, "first")
    assert first.leadership.try_elect()
    first.take_over()
    for _ in range(3):
        redis_client.xadd(keys.inbox, {"0": encode(TimeAdvanced())})
        first.run_once(0.01)
    first.housekeeping.due()
    assert redis_client.get(keys.snapshot) is None  # too little to be worth one
    redis_client.delete(keys.leader)
    second = loop_of(redis_client, keys, "second")
    wait_until_elected(second.leadership)
    second.take_over()
    redis_client.xadd(keys.inbox, {"0": encode(TimeAdvanced())})
    second.run_once(0.01)
    second.housekeeping._next = 0.0
    second.housekeeping.due()
    assert redis_client.get(keys.snapshot) is not None


def test_a_snapshot_is_taken_when_a_replay_would_take_long(
    redis_client: redis.Redis, keys: Keys, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However few entries they are: some take a second each, with much that waits."""
    # So long that the pass of this test counts for nothing, however long it takes.
    monkeypatch.setattr(stored_snapshot, "REPLAY_SECONDS", 3000.0)
    monkeypatch.setattr(housekeeping, "FIRST_SNAPSHOT_SECONDS", 0.0)
    loop = loop_of(redis_client, keys, "first")
    assert loop.leadership.try_elect()
    loop.take_over()
    redis_client.xadd(keys.inbox, {"0": encode(TimeAdvanced())})
    loop.run_once(0.01)
    for decided, taken in ((1000.0, False), (10_000.0, True)):
        loop.stats.record_decision(decided, decided)
        loop.housekeeping._next = 0.0
        loop.housekeeping.due()
        assert (redis_client.get(keys.snapshot) is not None) == taken


def a_large_snapshot_on_its_way(
    client: redis.Redis,
    keys: Keys,
    monkeypatch: pytest.MonkeyPatch,
    instead: Callable[..., object] | None = None,
) -> tuple[SchedulerLoop, Event]:
    """Return a loop that writes a snapshot in a thread, and what lets Redis have it; ``instead``: what the thread does."""
    monkeypatch.setattr(stored_snapshot, "SNAPSHOT_ENTRIES", 1)
    monkeypatch.setattr(housekeeping, "LARGE_BYTES", 1)
    monkeypatch.setattr(housekeeping, "FIRST_SNAPSHOT_SECONDS", 0.0)
    loop, released = loop_of(client, keys, "first"), Event()
    assert loop.leadership.try_elect()
    loop.take_over()
    put = loop.leadership._put

    def put_once_released(**arguments: Any) -> Any:
        assert released.wait(120)
        return put(**arguments)

    monkeypatch.setattr(loop.leadership, "_put", instead or put_once_released)
    client.xadd(keys.inbox, {"0": encode(TimeAdvanced())})
    loop.run_once(0.01)
    loop.housekeeping._next = 0.0
    loop.housekeeping.due()
    return loop, released


def test_a_loop_goes_on_while_a_large_snapshot_is_written(
    redis_client: redis.Redis, keys: Keys, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop, released = a_large_snapshot_on_its_way(redis_client, keys, monkeypatch)
    seq = loop.term.seq
    redis_client.xadd(keys.inbox, {"0": encode(TimeAdvanced())})
    loop.run_once(0.01)
    assert loop.term.seq > seq
    assert redis_client.get(keys.snapshot) is None

    released.set()
    loop.leadership.finish_aside()
    monkeypatch.setattr(stored_snapshot, "SNAPSHOT_ENTRIES", 100)
    loop.housekeeping._next = 0.0
    loop.housekeeping.due()

    recovered = recover(redis_client, keys, load(()).make_ledger, CONFIG)
    assert recovered.seq == loop.term.seq
    assert recovered.replayed == loop.term.seq - seq


def test_a_snapshot_that_is_late_is_refused_once_another_process_leads(
    redis_client: redis.Redis, keys: Keys, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop, released = a_large_snapshot_on_its_way(redis_client, keys, monkeypatch)
    redis_client.delete(keys.leader)
    wait_until_elected(loop_of(redis_client, keys, "second").leadership)

    released.set()
    loop.leadership.finish_aside()

    with pytest.raises(Fenced):
        loop.housekeeping._finish_writing()


def test_a_snapshot_that_fails_in_its_thread_trims_nothing(
    redis_client: redis.Redis, keys: Keys, monkeypatch: pytest.MonkeyPatch
) -> None:
    def put(**_: Any) -> None:
        raise MemoryError

    loop, _ = a_large_snapshot_on_its_way(redis_client, keys, monkeypatch, put)
    loop.leadership.finish_aside()

    with pytest.raises(MemoryError):
        loop.housekeeping._finish_writing()
    assert redis_client.get(keys.snapshot) is None
