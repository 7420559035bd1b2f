"""A standby follows the journal: it leads from the state of a cold restore, or recovers as without one."""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable
from threading import Event
from typing import Any, cast

import pytest
import redis

from domain.codec import JOURNAL_FIELD, JournalEntry, decode_entry, encode
from domain.decisions import Wake
from domain.events import TimeAdvanced
from domain.redis_keys import Keys
from managers.registry import load
from scheduler.core.machine import Machine
from scheduler.core.state import snapshot
from scheduler.runtime.loop import recovery, scheduler_loop
from scheduler.runtime.loop.leadership import Leadership
from scheduler.runtime.loop.recovery import StandbyState, recover
from scheduler.runtime.loop.scheduler_loop import SchedulerLoop
from scheduler.runtime.redis.clients import connect
from tests.integration.runtime.rig import CONFIG
from tests.integration.runtime.test_leader_crash_points import NAMES, a_leader, submit
from tests.redis_server import RedisServer

make_ledger = load(()).make_ledger


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recovery, "FOLLOW_SECONDS", 0.0)


def a_standby(client: redis.Redis, keys: Keys) -> StandbyState:
    return StandbyState(client, keys, make_ledger, CONFIG)


def level(standby: StandbyState) -> StandbyState:
    while standby.follow():
        pass
    return standby


def committed(client: redis.Redis, keys: Keys, *entries: int) -> SchedulerLoop:
    """Return a leader that has decided on an action in each of some passes."""
    leader = a_leader(client, keys, "first")
    for number in entries:
        submit(client, keys, NAMES[number])
        leader.run_once(0.01)
    return leader


def state_of(machine: Machine) -> bytes:
    return snapshot.dump(machine)


def stored(client: redis.Redis, keys: Keys) -> list[tuple[bytes, dict[bytes, bytes]]]:
    return cast("Any", client.xrange(keys.journal))


def test_a_standby_leads_without_a_restore(
    redis_client: redis.Redis, keys: Keys, monkeypatch: pytest.MonkeyPatch
) -> None:
    """1. It follows. 2. The leader decides once more, and dies. 3. It goes on there."""
    leader = committed(redis_client, keys, 0)
    successor = SchedulerLoop(redis_client, keys, make_ledger, Leadership(redis_client, keys, "second"), CONFIG)  # fmt: skip
    while successor._follow():
        pass
    submit(redis_client, keys, NAMES[1])
    leader.run_once(0.01)
    submit(redis_client, keys, NAMES[2])
    redis_client.delete(keys.leader)
    cold = recover(redis_client, keys, make_ledger, CONFIG)
    monkeypatch.setattr(scheduler_loop, "recover", None)
    assert successor.leadership.try_elect()
    successor.take_over()
    assert state_of(successor.term.machine) == state_of(cold.machine)
    successor.run_once(0.01)
    assert sorted(successor.term.machine.state.actions) == NAMES[:3]


def test_a_standby_begins_at_the_snapshot(redis_client: redis.Redis, keys: Keys) -> None:
    leader = committed(redis_client, keys, 0, 1)
    leader.housekeeping.snapshot()
    redis_client.xtrim(keys.journal, maxlen=1, approximate=False)
    standby = level(a_standby(redis_client, keys))
    assert standby.seconds_behind() == 0.0
    submit(redis_client, keys, NAMES[2])
    leader.run_once(0.01)
    taken, cold = standby.take(), recover(redis_client, keys, make_ledger, CONFIG)
    assert taken is not None
    assert (taken.seq, taken.replayed) == (cold.seq, cold.replayed) == (leader.term.seq, 1)
    assert state_of(taken.machine) == state_of(cold.machine)
    assert standby.follow(), "a loop that led loads again when it stands by"


def test_a_standby_writes_nothing(redis_client: redis.Redis, keys: Keys) -> None:
    def everything() -> dict[bytes, Any]:
        names = cast("list[bytes]", redis_client.keys(f"{keys.prefix}:*"))
        return {name: redis_client.dump(name) for name in names if name != keys.leader.encode()}

    committed(redis_client, keys, 0, 1)
    before = everything()
    assert level(a_standby(redis_client, keys)).take() is not None
    assert everything() == before


def drop_the_last(client: redis.Redis, keys: Keys) -> tuple[bytes, JournalEntry]:
    """Lose the newest entry, as a promoted replica may; return it."""
    name, fields = stored(client, keys)[-1]
    client.xdel(keys.journal, name)
    return name, decode_entry(fields[JOURNAL_FIELD])


def is_lost(client: redis.Redis, keys: Keys) -> None:
    drop_the_last(client, keys)


def has_a_successor(client: redis.Redis, keys: Keys) -> None:
    """The number after the lost one follows, decided by another epoch."""
    _, entry = drop_the_last(client, keys)
    for seq in (entry.seq, entry.seq + 1):
        other = JournalEntry(seq, 2, entry.at, 0.0, entry.inbox_id, [TimeAdvanced(at=entry.at)], [])
        client.xadd(keys.journal, {"e": encode(other)})


def has_another_content(client: redis.Redis, keys: Keys) -> None:
    """Another entry has its id."""
    name, entry = drop_the_last(client, keys)
    entry.epoch += 1
    # Redis refuses ids that are not above the last one.
    kept = stored(client, keys)
    client.delete(keys.journal)
    for each, fields in [*kept, (name, {JOURNAL_FIELD: encode(entry)})]:
        client.xadd(keys.journal, cast("Any", fields), id=each)


def is_trimmed(client: redis.Redis, keys: Keys) -> None:
    """The leader went on, and nothing of what the standby has is left."""
    _, fields = stored(client, keys)[-1]
    entry = decode_entry(fields[JOURNAL_FIELD])
    entry.seq += 1
    client.xadd(keys.journal, {"e": encode(entry)}, maxlen=1, approximate=False)


@pytest.mark.parametrize("while_it_follows", [True, False], ids=["following", "leading"])
@pytest.mark.parametrize(
    "change", [is_lost, has_a_successor, has_another_content, is_trimmed], ids=lambda each: each.__name__
)  # fmt: skip
def test_a_state_whose_last_entry_is_gone_is_dropped(
    redis_client: redis.Redis,
    keys: Keys,
    change: Callable[[redis.Redis, Keys], None],
    while_it_follows: bool,
) -> None:
    committed(redis_client, keys, 0, 1)
    standby = level(a_standby(redis_client, keys))
    change(redis_client, keys)
    if while_it_follows:
        assert not standby.follow()
        assert standby.seconds_behind() is None
        assert "took its place" in standby.why
    assert standby.take() is None


def test_a_snapshot_whose_journal_is_another_is_not_followed(
    redis_client: redis.Redis, keys: Keys
) -> None:
    """It is loaded. Then a backup is restored, whose journal is empty."""
    committed(redis_client, keys, 0).housekeeping.snapshot()
    standby = a_standby(redis_client, keys)
    assert standby.follow()
    redis_client.delete(keys.journal, keys.snapshot)
    assert standby.take() is None


def damage(entry: JournalEntry) -> bytes:
    return b"\xc1"


def decide_otherwise(entry: JournalEntry) -> bytes:
    entry.decisions.append(Wake(entry.at + 1.0))
    return encode(entry)


def leave_one_out(entry: JournalEntry) -> bytes:
    entry.seq += 1
    return encode(entry)


@pytest.mark.parametrize("change", [damage, decide_otherwise, leave_one_out])
def test_an_entry_that_cannot_be_followed_ends_the_state(
    redis_client: redis.Redis,
    keys: Keys,
    monkeypatch: pytest.MonkeyPatch,
    change: Callable[[JournalEntry], bytes],
) -> None:
    """It is loaded again once the leader has stored a later snapshot, at the earliest after `LOAD_SECONDS`."""
    leader = committed(redis_client, keys, 0)
    standby = level(a_standby(redis_client, keys))
    submit(redis_client, keys, NAMES[1])
    leader.run_once(0.01)
    _, entry = drop_the_last(redis_client, keys)
    redis_client.xadd(keys.journal, {"e": change(entry)})
    assert not standby.follow()
    assert standby.seconds_behind() is None
    redis_client.xtrim(keys.journal, maxlen=0, approximate=False)
    leader.housekeeping.snapshot()
    assert not standby.follow(), "too soon"
    monkeypatch.setattr(recovery, "monotonic", lambda: time.monotonic() + recovery.LOAD_SECONDS)
    assert standby.follow()
    taken = standby.take()
    assert taken is not None
    assert state_of(taken.machine) == state_of(leader.term.machine)


def test_a_standby_that_is_far_behind_begins_at_the_newest_snapshot(
    redis_client: redis.Redis, keys: Keys, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Replaying would take longer than loading."""
    leader = committed(redis_client, keys, 0)
    standby = level(a_standby(redis_client, keys))
    monkeypatch.setattr(recovery, "PAGE", 1)
    monkeypatch.setattr(recovery, "LOADS", 0.0)
    monkeypatch.setattr(recovery, "SLICE_SECONDS", -1.0)
    standby._load_seconds = 0.0
    for _ in range(4):
        redis_client.xadd(keys.inbox, {"0": encode(TimeAdvanced())})
        leader.run_once(0.01)
    leader.housekeeping.snapshot()
    assert standby.follow()
    assert standby.seconds_behind() is None
    assert standby.follow()
    assert standby.seconds_behind() == 0.0


def test_a_standby_asks_for_the_leadership_between_slices(
    redis_client: redis.Redis, keys: Keys, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A long journal lies before it: it takes over, and heeds a stop, within a slice."""
    monkeypatch.setattr(recovery, "SLICE_SECONDS", 1e-9)
    committed(redis_client, keys, 0, 1, 2, 3)
    standby, loop = a_standby(redis_client, keys), Leadership(redis_client, keys, "second")
    asked = 0

    def following() -> bool:
        nonlocal asked
        asked += 1
        if asked == 3:
            redis_client.delete(keys.leader)
        return standby.follow()

    assert loop.wait(Event(), following)
    assert asked == 3
    redis_client.set(keys.leader, "another")
    stop = Event()

    def stopping() -> bool:
        stop.set()
        return standby.follow()

    assert not loop.wait(stop, stopping)


def test_a_loop_that_led_frees_its_machine_before_it_follows(
    redis_client: redis.Redis, keys: Keys
) -> None:
    leader = committed(redis_client, keys, 0)
    former = weakref.ref(leader.term.machine)
    leader._follow()
    assert former() is None


def test_an_outage_of_redis_leaves_the_state(tmp_path: Any, keys: Keys) -> None:
    server = RedisServer(tmp_path / "r").start()
    with connect(server.url) as client:
        leader = committed(client, keys, 0)
        standby = level(a_standby(client, keys))
        server.kill()
        with pytest.raises(redis.RedisError):
            standby.follow()
        server.start()
        taken = standby.take()
        assert taken is not None
        assert state_of(taken.machine) == state_of(leader.term.machine)
    server.stop()
