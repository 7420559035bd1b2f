"""An action at which the core raises or hangs when it is granted ends `infra_failed`; the others go on."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from time import monotonic
from typing import Any, cast

import msgspec
import pytest
import redis
from msgspec.structs import replace

from domain.action import Outcome
from domain.codec import encode
from domain.dead_letters import GRANT
from domain.events import ActionSubmitted, ConfigApplied, NodeJoined
from domain.inventory import PoolConfig
from domain.redis_keys import Keys
from scheduler.runtime.loop.poison_messages import Caution
from scheduler.runtime.loop.query_handler import QueryHandler
from scheduler.runtime.loop.watchdog import HungPass
from scheduler.runtime.redis.journal import START, Journal
from tests.builders import a_node, an_action
from tests.integration.runtime.poison import poison
from tests.integration.runtime.rig import CONFIG, LoopThread, Rig
from tests.integration.runtime.test_poison_messages import (
    NOOP,
    letters,
    replayed,
    until,
    views_of,
    why_refusing,
)
from tests.redis_server import RedisServer

#: Holds all four cores of the node; elastic, so that the policy decides about it.
ALL = {"task": "t", "kind": "exec", "cost": {"cpu": 4}, "exec": {"command": ["sleep", "600"]}}
#: Its policy arranges; the rig's own grants at once.
ELASTIC_POOL = replace(CONFIG, revision=2, pools={"default": PoolConfig("default", "malleable")})
ELASTIC = {"task": "t", "kind": "exec", "cost": {"cpu": [1, 2]}, "exec": {"command": ["true"]}}
LEASE = {"task": "t", "kind": "lease", "cost": {"api:search": 2}, "lease": {"ttl_seconds": 600}}


async def test_the_action_that_waited_is_set_aside_and_the_event_that_freed_its_units_is_not(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """1. A lease holds all. 2. Another waits that cannot be granted. 3. The first is released."""
    async with rig.client() as client:
        held = (await client.post("/actions?wait=60", json=LEASE)).json()["id"]
        waits = (await client.post("/actions", json={**LEASE, "family": "grant"})).json()["id"]
        after = (await client.post("/actions", json=LEASE)).json()["id"]
        assert (await client.get(f"/actions/{waits}")).json()["state"] == "queued"
        poison(monkeypatch.setattr)
        released = await client.post(f"/leases/{held}/release")
        bad = (await client.get(f"/actions/{waits}?wait=60")).json()
        async with asyncio.timeout(60):
            while (await client.get(f"/actions/{after}")).json()["state"] != "running":
                await asyncio.sleep(0.01)
    (letter,) = letters(rig.redis, rig.keys)

    assert released.status_code == 200
    assert (bad["outcome"], bad["reward"]) == ("infra_failed", None)
    assert letter.name in bad["detail"]
    assert (letter.source, letter.action_id, letter.settled) == (GRANT, waits, True)
    assert "ZeroDivisionError: poison" in letter.reason
    assert {end.action_id: end.outcome for end in replayed(rig.redis, rig.keys)} == {
        held: Outcome.COMPLETED,
        waits: Outcome.INFRA_FAILED,
    }


async def test_one_of_a_group_is_found_and_the_others_of_the_group_run(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """1. All cores are held. 2. A group waits, two of it poisoned. 3. The cores are released."""
    families = ["well", "odd", "well", "well", "odd"]
    rig.redis.xadd(rig.keys.inbox, {"0": encode(ConfigApplied(config=ELASTIC_POOL))})
    async with rig.client() as client:
        held = (await client.post("/actions", json=ALL)).json()["id"]
        await rig.until_started(held)
        items = [{**ELASTIC, "family": family} for family in families]
        answer = (await client.post("/actions/batch", json={"actions": items})).json()
        names = [item["id"] for item in answer["items"]]
        poison(monkeypatch.setattr)
        await rig.end_action(held)
        outcomes = [view["outcome"] for view in await views_of(client, names)]

    expected = ["infra_failed" if family == "odd" else "completed" for family in families]
    assert outcomes == expected
    poisoned = [name for name, family in zip(names, families, strict=True) if family == "odd"]
    assert sorted(letter.action_id for letter in letters(rig.redis, rig.keys)) == sorted(poisoned)
    replayed(rig.redis, rig.keys)


async def test_a_cause_that_no_action_is_leaves_all_waiting(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """1. One waits for units. 2. Every plan raises. 3. The units come free. 4. It is cured."""
    from scheduler.core.cycle import admission

    def broken(*_: Any) -> bool:
        raise RuntimeError("the books are wrong")

    async with rig.client() as client:
        held = (await client.post("/actions?wait=60", json=LEASE)).json()["id"]
        waits = (await client.post("/actions", json=LEASE)).json()["id"]
        with monkeypatch.context() as patch:
            patch.setattr(admission.Cycle, "_admit", broken)
            released = asyncio.ensure_future(client.post(f"/leases/{held}/release"))
            await until(lambda: "the books are wrong" in why_refusing(rig.redis, rig.keys))
        await released
        async with asyncio.timeout(60):
            while (await client.get(f"/actions/{waits}")).json().get("state") != "running":
                await asyncio.sleep(0.05)  # a loop without the lease answers no query
    assert not letters(rig.redis, rig.keys)


# A pass that does not end.


def begun(client: redis.Redis, keys: Keys, families: list[str]) -> list[str]:
    """Append a node and elastic actions of these families, as one request does."""
    actions = [
        an_action(f"act_{n}", cost={"cpu": (1, 2)}, family=family)
        for n, family in enumerate(families)
    ]
    events = [
        ConfigApplied(config=ELASTIC_POOL),
        NodeJoined(node=a_node("n1", cpus=16)),
        *(ActionSubmitted(action=action) for action in actions),
    ]
    client.set(keys.alive("n1"), 1)
    fields = {str(place): encode(event) for place, event in enumerate(events)}
    client.xadd(keys.inbox, fields)  # type: ignore[arg-type]
    return [action.id for action in actions]


def ended_by_its_watchdog(url: str, keys: Keys, seconds: float) -> str:
    """Run a leader with a watchdog until it is ended; return what it wrote to its log."""
    command = [sys.executable, "-m", "tests.integration.runtime.poison", url, keys.prefix]
    led = subprocess.run(
        [*command, "watched", str(seconds)], timeout=120, capture_output=True, text=True
    )
    assert led.returncode == -9, led.stderr
    return led.stderr


@pytest.mark.parametrize("family", ["spin", pytest.param("hold", marks=pytest.mark.long)])
async def test_a_leader_that_hangs_is_ended_and_the_next_one_sets_the_action_aside(
    runtime_redis: RedisServer,
    redis_client: redis.Redis,
    keys: Keys,
    monkeypatch: pytest.MonkeyPatch,
    family: str,
) -> None:
    """``hold`` keeps the interpreter's lock: no thread of the leader runs any more."""
    names = begun(redis_client, keys, ["well", "well", family, "well"])
    written = await asyncio.to_thread(ended_by_its_watchdog, runtime_redis.url, keys, 1.0)
    assert "watchdog: a pass of the scheduler (journal entry 1) has run for" in written
    assert "in arranged" in written, "the stack that hangs is in the log"
    stored = cast("bytes", redis_client.get(keys.hung_pass))
    assert b'"seq":1' in stored
    assert redis_client.get(keys.leader) is None

    poison(monkeypatch.setattr)
    began = monotonic()
    following = LoopThread(runtime_redis.url, keys)
    try:
        await until(lambda: len(letters(redis_client, keys)) == 1)
        found_after = monotonic() - began
        await until(lambda: following.loop.term.seq >= 1 and not following.loop.caution.limit)
    finally:
        following.stop()
    (letter,) = letters(redis_client, keys)
    live = following.loop.term.machine.state.actions
    assert letter.action_id == names[2]
    assert "PassTooLong" in letter.reason
    assert sorted(live) == sorted({*names} - {names[2]})
    assert all(action.granted_at is not None for action in live.values())
    assert [end.outcome for end in replayed(redis_client, keys)] == [Outcome.INFRA_FAILED]
    assert found_after < 60


async def test_a_pass_that_hung_once_and_not_again_is_done(
    runtime_redis: RedisServer, redis_client: redis.Redis, keys: Keys
) -> None:
    """1. A leader hangs over an action. 2. A version without the fault goes on: nothing is set aside."""
    names = begun(redis_client, keys, ["well", "spin"])
    await asyncio.to_thread(ended_by_its_watchdog, runtime_redis.url, keys, 1.0)
    following = LoopThread(runtime_redis.url, keys)
    try:
        await until(lambda: len(list(Journal(redis_client, keys).after(START))) >= 1)
        await until(lambda: following.loop.term.seq >= 1)
    finally:
        following.stop()
    assert sorted(following.loop.term.machine.state.actions) == sorted(names)
    assert not letters(redis_client, keys)


async def test_a_query_that_does_not_end_is_refused_by_the_next_leader(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The note of a hang is there; rehearsal finds that the query hangs."""

    def endless(*_: Any) -> Any:
        while True:
            pass

    async with rig.client("operator") as client:
        await client.post("/actions?wait=60", json=NOOP)
        assert rig.loop is not None
        rig.loop.stop()
        seq = rig.loop.loop.term.seq
        rig.redis.set(rig.keys.hung_pass, msgspec.json.encode(HungPass("gone", seq + 1, 0.0)))
        with monkeypatch.context() as patch:
            patch.setattr(QueryHandler, "_reply", endless)
            asked = asyncio.ensure_future(client.get("/queues"))
            rig.loop = LoopThread(rig.url, rig.keys)
            refused = await asked
        assert refused.status_code == 503
        assert "in time" in refused.json()["detail"]
        assert (await client.get("/queues")).status_code == 200


def test_an_ordinary_pass_is_not_rehearsed(
    redis_client: redis.Redis, keys: Keys, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tests.integration.runtime.test_poison_messages import a_leader

    begun(redis_client, keys, ["well"])
    loop = a_leader(redis_client, keys, "first")
    monkeypatch.setattr(Caution, "rehearse", None)
    loop.run_once(10.0)
    assert loop.term.seq == 1
