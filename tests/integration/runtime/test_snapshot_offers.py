"""A standby takes the snapshots of a large state, and the leader makes them the stored ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import redis

from domain.errors import Fenced
from domain.redis_keys import Keys
from managers.registry import load
from scheduler.core.state import snapshot
from scheduler.runtime.loop import (
    housekeeping,
    recovery,
    snapshot_offers,
    stored_snapshot,
)
from scheduler.runtime.loop.leadership import Leadership
from scheduler.runtime.loop.recovery import StandbyState, recover
from scheduler.runtime.loop.scheduler_loop import SchedulerLoop
from scheduler.runtime.loop.stored_snapshot import SnapshotPace, decode_snapshot
from tests.integration.runtime.rig import CONFIG
from tests.integration.runtime.test_leader_crash_points import NAMES, a_leader, level, submit

make_ledger = load(()).make_ledger


@pytest.fixture(autouse=True)
def large_and_due(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two entries are worth a snapshot, and each snapshot counts as a large one."""
    monkeypatch.setattr(recovery, "FOLLOW_SECONDS", 0.0)
    monkeypatch.setattr(stored_snapshot, "SNAPSHOT_ENTRIES", 2)
    monkeypatch.setattr(stored_snapshot, "REPLAY_SECONDS", 3000.0)
    monkeypatch.setattr(snapshot_offers, "LARGE_BYTES", 0)
    monkeypatch.setattr(housekeeping, "FIRST_SNAPSHOT_SECONDS", 0.0)


@pytest.fixture
def leader(redis_client: redis.Redis, keys: Keys) -> SchedulerLoop:
    """Return a leader with one stored snapshot and an action behind it."""
    loop = a_leader(redis_client, keys, "first")
    decide(loop, 0)
    loop.housekeeping.snapshot()
    decide(loop, 1)
    return loop


def decide(loop: SchedulerLoop, number: int) -> None:
    submit(loop._client, loop._keys, NAMES[number])
    loop.run_once(0.01)


def follow(client: redis.Redis, keys: Keys, standby: StandbyState | None = None) -> StandbyState:
    standby = standby or StandbyState(client, keys, make_ledger, CONFIG)
    while standby.follow():
        pass
    return standby


@pytest.fixture
def offering(redis_client: redis.Redis, keys: Keys, leader: SchedulerLoop) -> StandbyState:
    """Return a standby that has offered the leader's state after two entries."""
    standby = follow(redis_client, keys)
    decide(leader, 2)
    return follow(redis_client, keys, standby)


def look(loop: SchedulerLoop, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Let the leader do its housekeeping; return whether it took a snapshot of its own."""
    taken: list[float] = []
    with monkeypatch.context() as patched:
        patched.setattr(loop.housekeeping, "snapshot", lambda **_: taken.append(1.0))
        loop.housekeeping._next = 0.0
        loop.housekeeping.due()
    return bool(taken)


def seq_of(client: redis.Redis, key: str) -> int:
    stored: Any = client.get(key)
    return decode_snapshot(stored).seq if stored else 0


@pytest.mark.usefixtures("offering")
def test_the_leader_adopts_what_a_standby_offers(
    redis_client: redis.Redis, keys: Keys, leader: SchedulerLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    decide(leader, 3)
    own = look(leader, monkeypatch)

    stored: Any = redis_client.get(keys.snapshot)
    assert not own
    assert decode_snapshot(stored).seq == leader.term.seq - 1
    assert not redis_client.exists(keys.offered_snapshot, keys.snapshot_offer)
    recovered = recover(redis_client, keys, make_ledger, CONFIG)
    assert recovered.replayed == 1
    assert snapshot.dump(recovered.machine) == snapshot.dump(leader.term.machine)


@pytest.mark.usefixtures("offering")
def test_a_leader_that_adopts_waits_longer_with_its_own(
    redis_client: redis.Redis, keys: Keys, leader: SchedulerLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert leader.housekeeping._offered.patience == 1.0
    look(leader, monkeypatch)
    assert leader.housekeeping._offered.patience == snapshot_offers.LEADER_PATIENCE
    monkeypatch.setattr(snapshot_offers, "PATIENT_SECONDS", 0.0)
    assert leader.housekeeping._offered.patience == 1.0


def test_a_standby_whose_offer_was_adopted_waits_longer_with_the_next(
    redis_client: redis.Redis,
    keys: Keys,
    leader: SchedulerLoop,
    offering: StandbyState,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    look(leader, monkeypatch)
    adopted = seq_of(redis_client, keys.snapshot)
    waited = snapshot_offers.OFFER_PATIENCE * stored_snapshot.SNAPSHOT_ENTRIES
    while leader.term.seq < adopted + waited - 1:
        decide(leader, 3)
        follow(redis_client, keys, offering)
        assert not redis_client.exists(keys.offered_snapshot)
    decide(leader, 3)
    follow(redis_client, keys, offering)
    assert seq_of(redis_client, keys.offered_snapshot) == leader.term.seq


def test_an_offer_that_was_not_adopted_is_followed_by_the_next(
    redis_client: redis.Redis, keys: Keys, leader: SchedulerLoop
) -> None:
    standby = follow(redis_client, keys)
    for number in (2, 3, 3):
        decide(leader, number)
        follow(redis_client, keys, standby)
    assert seq_of(redis_client, keys.offered_snapshot) == leader.term.seq


def test_without_an_offer_the_leader_takes_its_own(
    leader: SchedulerLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    decide(leader, 2)
    assert look(leader, monkeypatch)


def loses_the_entry(client: redis.Redis, keys: Keys) -> None:
    """Redis lost what the standby read last."""
    found: Any = client.xrevrange(keys.journal, count=1)
    client.xdel(keys.journal, found[0][0])


def has_another_entry(client: redis.Redis, keys: Keys) -> None:
    """Another entry has its id."""
    found: Any = client.xrange(keys.journal)
    client.delete(keys.journal)
    for name, fields in [*found[:-1], (found[-1][0], {"e": b"another"})]:
        client.xadd(keys.journal, fields, id=name)


def is_of_another_version(client: redis.Redis, keys: Keys) -> None:
    stored: Any = client.get(keys.snapshot_offer)
    offer = snapshot_offers._decoder.decode(stored)
    offer.version = "0.0.1"
    client.set(keys.snapshot_offer, snapshot_offers._encode(offer))


def is_damaged(client: redis.Redis, keys: Keys) -> None:
    client.set(keys.snapshot_offer, b"\xc1")


def has_another_body(client: redis.Redis, keys: Keys) -> None:
    """Another standby has stored its own, and not yet what it was taken from."""
    stored: Any = client.get(keys.snapshot)
    client.set(keys.offered_snapshot, stored)


@pytest.mark.parametrize(
    "change",
    [loses_the_entry, has_another_entry, is_of_another_version, is_damaged, has_another_body],
    ids=lambda each: each.__name__,
)
@pytest.mark.usefixtures("offering")
def test_an_offer_that_is_not_of_this_journal_and_version_is_left(
    redis_client: redis.Redis,
    keys: Keys,
    leader: SchedulerLoop,
    change: Callable[[redis.Redis, Keys], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before = redis_client.get(keys.snapshot)
    change(redis_client, keys)
    assert look(leader, monkeypatch), "it takes its own"
    assert redis_client.get(keys.snapshot) == before


@pytest.mark.usefixtures("offering")
def test_an_offer_is_adopted_by_the_present_leader_alone(
    redis_client: redis.Redis, keys: Keys, leader: SchedulerLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    redis_client.delete(keys.leader)
    assert Leadership(redis_client, keys, "second").try_elect()
    with pytest.raises(Fenced):
        leader.housekeeping._adopt()


@pytest.mark.usefixtures("offering")
def test_an_offer_older_than_the_stored_snapshot_is_left(
    redis_client: redis.Redis, keys: Keys, leader: SchedulerLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    leader.housekeeping.snapshot()
    look(leader, monkeypatch)
    assert seq_of(redis_client, keys.snapshot) == leader.term.seq


def test_a_standby_offers_nothing_soon_after_another_snapshot(
    redis_client: redis.Redis, keys: Keys, leader: SchedulerLoop
) -> None:
    standby = follow(redis_client, keys)
    leader.housekeeping.snapshot()
    decide(leader, 2)
    follow(redis_client, keys, standby)
    assert not redis_client.exists(keys.offered_snapshot)
    decide(leader, 3)
    follow(redis_client, keys, standby)
    assert seq_of(redis_client, keys.offered_snapshot) == leader.term.seq


def test_a_small_state_is_not_offered(
    redis_client: redis.Redis, keys: Keys, leader: SchedulerLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshot_offers, "LARGE_BYTES", 1_000_000)
    standby = follow(redis_client, keys)
    decide(leader, 2)
    follow(redis_client, keys, standby)
    assert not redis_client.exists(keys.offered_snapshot, keys.snapshot_offer)


def test_a_user_of_an_earlier_version_may_lack_the_permission(
    redis_client: redis.Redis, keys: Keys, leader: SchedulerLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise redis.exceptions.NoPermissionError

    standby = follow(redis_client, keys)
    decide(leader, 2)
    monkeypatch.setattr(redis_client, "set", refuse)
    follow(redis_client, keys, standby)
    assert standby.seconds_behind() == 0.0
    monkeypatch.setattr(redis_client, "get", refuse)
    assert leader.housekeeping._offered.adopt(0, leader.term.seq) is None


@pytest.mark.parametrize(
    ("entries", "seconds", "patience", "due"),
    [(2, 0.0, 1.0, True), (1, 0.0, 1.0, False), (2, 0.0, 2.0, False), (1, 3000.0, 1.0, True), (1, 3000.0, 2.0, False)],
)  # fmt: skip
def test_a_snapshot_is_due_by_entries_or_by_what_they_took(
    entries: int, seconds: float, patience: float, due: bool
) -> None:
    assert SnapshotPace(7, 1.0).is_due(7 + entries, 1.0 + seconds, patience) == due


def test_a_whole_term_ends_where_its_standby_goes_on(
    redis_client: redis.Redis, keys: Keys, leader: SchedulerLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The standby offers, the leader adopts and trims, and the standby leads from its state."""
    successor = SchedulerLoop(redis_client, keys, make_ledger, Leadership(redis_client, keys, "second"), CONFIG)  # fmt: skip
    level(successor)
    decide(leader, 2)
    level(successor)
    look(leader, monkeypatch)
    decide(leader, 3)
    redis_client.delete(keys.leader)
    assert successor.leadership.try_elect()
    successor.take_over()
    assert snapshot.dump(successor.term.machine) == snapshot.dump(leader.term.machine)
