"""An idle leader asks Redis for little, and keeps its lease, its sign of life and its look at nodes."""

from __future__ import annotations

import redis

from domain.redis_keys import Keys
from managers.registry import load
from scheduler.runtime.loop import housekeeping
from scheduler.runtime.loop.leadership import Leadership
from scheduler.runtime.loop.scheduler_loop import MAX_WAIT_SECONDS, SchedulerLoop
from scheduler.runtime.node.life_signs import ALIVE_SECONDS
from tests.integration.runtime.rig import CONFIG
from tests.redis_commands import commands_of


def test_an_idle_turn_is_at_most_one_read_and_one_renewal(
    redis_client: redis.Redis, keys: Keys
) -> None:
    leader = Leadership(redis_client, keys, "idle")
    loop = SchedulerLoop(redis_client, keys, load(()).make_ledger, leader, CONFIG)
    assert leader.try_elect()
    loop.take_over()
    loop.run_once(0.01)

    def turn() -> None:
        loop.housekeeping._next = 0.0
        loop.run_once(0.01)

    commands = commands_of(redis_client, turn)
    # A read may outlast the turn. Scripts run GET and SET within Redis; there is no node yet to look at.
    assert commands.pop("xread", 0) <= 1
    assert commands == {"evalsha": 1, "get": 1, "set": 1}
    loop.inbox.settled_id = "1-0"
    assert commands_of(redis_client, turn)["hset"] == 1


def test_an_idle_leader_looks_often_enough_for_what_it_promises() -> None:
    assert Leadership.lease_seconds > MAX_WAIT_SECONDS + housekeeping.PERIOD_SECONDS
    assert ALIVE_SECONDS + MAX_WAIT_SECONDS + housekeeping.PERIOD_SECONDS < 10.0
