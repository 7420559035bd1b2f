"""A leader dies between any two steps of a pass: its successor misses nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import redis

from domain.action import Action, Kind
from domain.codec import encode
from domain.events import ActionSubmitted
from domain.ids import ActionId
from domain.redis_keys import Keys
from managers.registry import load
from scheduler.core.state.snapshot import dump
from scheduler.runtime.loop.leadership import Leadership
from scheduler.runtime.loop.poison_messages import CoreRaised
from scheduler.runtime.loop.recovery import recover
from scheduler.runtime.loop.scheduler_loop import SchedulerLoop
from tests.integration.runtime.rig import CONFIG

NAMES = [ActionId(f"act_{number}") for number in range(4)]


class Died(Exception):
    """What ends a leader in these tests."""


def a_loop(client: redis.Redis, keys: Keys, name: str) -> SchedulerLoop:
    leadership = Leadership(client, keys, name)
    return SchedulerLoop(client, keys, load(()).make_ledger, leadership, CONFIG)


def a_leader(client: redis.Redis, keys: Keys, name: str) -> SchedulerLoop:
    return leading(a_loop(client, keys, name))


def leading(loop: SchedulerLoop) -> SchedulerLoop:
    assert loop.leadership.try_elect()
    loop.take_over()
    return loop


def level(loop: SchedulerLoop) -> SchedulerLoop:
    """Let a standby follow as far as the journal goes."""
    while loop._follow():
        pass
    return loop


def submit(client: redis.Redis, keys: Keys, name: ActionId) -> None:
    """Append as a web process does: an action that waits, since there is no node."""
    action = Action(id=name, project="default", task="t", kind=Kind.NOOP, cost={"cpu": (1000,)})
    client.xadd(keys.inbox, {"0": encode(ActionSubmitted(action=action))})


def die(*_: Any, **__: Any) -> Any:
    raise Died


def before_the_commit(loop: SchedulerLoop, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(loop.leadership, "commit", die)


def while_it_decides(loop: SchedulerLoop, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(loop.term.machine, "handle", die)


def after_the_commit(loop: SchedulerLoop, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(loop, "_after_commit", die)


MOMENTS = [before_the_commit, while_it_decides, after_the_commit]


@pytest.mark.parametrize("follows", [False, True], ids=["cold", "warm"])
@pytest.mark.parametrize("snapshot", [False, True], ids=["plain", "with a snapshot due"])
@pytest.mark.parametrize("moment", MOMENTS, ids=lambda moment: moment.__name__)
def test_read_messages_are_neither_trimmed_nor_skipped(
    redis_client: redis.Redis,
    keys: Keys,
    monkeypatch: pytest.MonkeyPatch,
    moment: Callable[[SchedulerLoop, pytest.MonkeyPatch], None],
    snapshot: bool,
    follows: bool,
) -> None:
    """1. A pass has begun with some messages. 2. Housekeeping is due in it. 3. The leader dies."""
    leader = a_leader(redis_client, keys, "first")
    submit(redis_client, keys, NAMES[0])
    leader.run_once(0.01)
    successor = a_loop(redis_client, keys, "second")
    if follows:
        level(successor)
    for name in NAMES[1:]:
        submit(redis_client, keys, name)
    leader.housekeeping._next = 0.0
    if snapshot:
        monkeypatch.setattr(leader.housekeeping, "_needs_snapshot", lambda: True)
    with monkeypatch.context() as patch:
        moment(leader, patch)
        with pytest.raises((Died, CoreRaised)):
            leader.run_once(0.01)

    redis_client.delete(keys.leader)
    cold = recover(redis_client, keys, load(()).make_ledger, CONFIG)
    leading(successor)
    assert dump(successor.term.machine) == dump(cold.machine)
    assert (successor.term.seq, successor.inbox.settled_id) == (cold.seq, cold.inbox_id)
    successor.run_once(0.01)

    assert sorted(successor.term.machine.state.actions) == NAMES
