"""One leader, fenced for real; the journal brings a new one level."""

from __future__ import annotations

import asyncio
import json
from typing import Any, cast

import pytest
import redis

from domain.errors import Fenced
from domain.redis_keys import Keys
from managers.registry import load
from scheduler.runtime.loop.leadership import Leadership
from scheduler.runtime.loop.recovery import recover
from tests.integration.runtime.rig import CONFIG, LoopThread, Rig
from tests.redis_server import RedisServer

NOOP = {"task": "t", "kind": "noop"}


def test_second_leader_waits_while_the_first_shows_life(
    redis_client: redis.Redis, keys: Keys
) -> None:
    first = Leadership(redis_client, keys, "a")
    second = Leadership(redis_client, keys, "b")
    assert first.try_elect()
    assert not second.try_elect()
    first.resign()
    assert second.try_elect()
    assert second.epoch == 2


def test_a_leader_that_resigns_late_leaves_its_successor_alone(
    redis_client: redis.Redis, keys: Keys, monkeypatch: pytest.MonkeyPatch
) -> None:
    """1. It begins to resign. 2. Its lease ends, another one is elected. 3. It goes on resigning."""
    leader, successor = (Leadership(redis_client, keys, name) for name in "ab")
    assert leader.try_elect()
    execute = redis_client.execute_command

    def stopped_after_its_first_command(*args: Any, **options: Any) -> Any:
        monkeypatch.setattr(redis_client, "execute_command", execute)
        answer = execute(*args, **options)
        redis_client.delete(keys.leader)
        assert successor.try_elect()
        return answer

    monkeypatch.setattr(redis_client, "execute_command", stopped_after_its_first_command)
    leader.resign()
    assert redis_client.get(keys.leader) == b"b"


def test_fenced_leader_cannot_write_any_more(redis_client: redis.Redis, keys: Keys) -> None:
    client = redis_client
    stopped = Leadership(client, keys, "a")
    stopped.try_elect()
    client.delete(keys.leader)  # it was silent for too long
    Leadership(client, keys, "b").try_elect()
    for write in (
        stopped.renew,
        lambda: stopped.put("x", b""),
        lambda: stopped.commit(b"", "0-0", []),
    ):
        with pytest.raises(Fenced):
            write()
    assert client.xlen(keys.journal) == 0


def test_the_epoch_never_falls_behind_the_database(redis_client: redis.Redis, keys: Keys) -> None:
    won: list[int] = []
    leader = Leadership(redis_client, keys, "a", epoch_floor=lambda: 41, epoch_won=won.append)
    leader.try_elect()
    assert won == [42]


def test_recovering_again_and_again_keeps_no_connection(
    redis_client: redis.Redis, keys: Keys
) -> None:
    """A loop that cannot write tries several times a second, for as long as that lasts."""
    make_ledger = load(()).make_ledger
    before = len(cast("list[Any]", redis_client.client_list()))
    for _ in range(8):
        recover(redis_client, keys, make_ledger, CONFIG)
    assert len(cast("list[Any]", redis_client.client_list())) <= before + 1


async def test_new_leader_goes_on_where_the_old_one_stopped(rig: Rig) -> None:
    """1. An action runs, another waits. 2. The leader ends. 3. A new one finishes both."""
    assert rig.loop is not None
    work = {"task": "t", "kind": "exec", "cost": {"cpu": 4}, "exec": {"command": ["sleep", "600"]}}
    async with rig.client() as client:
        first = (await client.post("/actions", json=work)).json()["id"]
        second = (await client.post("/actions", json=work)).json()["id"]
        assert (await client.get(f"/actions/{second}")).json()["state"] == "queued"
        await asyncio.to_thread(rig.loop.stop)
        third = (await client.post("/actions", json=NOOP)).json()["id"]
        rig.loop = LoopThread(rig.url, rig.keys)
        for name in (first, second):
            await rig.end_action(name)
        for name in (first, second, third):
            view = (await client.get(f"/actions/{name}", params={"wait": 60})).json()
            assert view["outcome"] == "completed"


async def test_restarted_node_goes_on_and_runs_nothing_twice(rig: Rig) -> None:
    """1. An action runs. 2. Its worker goes. 3. The next one has its mark: it is not run again."""
    runs = 0
    script = rig.driver.script

    def counting(order):
        nonlocal runs
        runs += 1
        return script(order)

    rig.driver.script = counting
    work = {"task": "t", "kind": "exec", "exec": {"command": ["sleep", "600"]}}
    async with rig.client() as client:
        name = (await client.post("/actions", json=work)).json()["id"]
        await rig.until_started(name)
        await rig.crash_node()
        await rig.start_node()
        view = (await client.get(f"/actions/{name}", params={"wait": 60})).json()
        after = (await client.post("/actions?wait=60", json=NOOP)).json()
    assert view["outcome"] in {"infra_failed", "unknown"}
    assert runs == 1
    assert after["outcome"] == "completed"


async def test_leader_survives_the_loss_of_redis(tmp_path, keys: Keys) -> None:
    """1. Redis is killed under a waiting action. 2. It comes back. 3. The action finishes."""
    server = RedisServer(tmp_path / "r").start()
    rig = Rig(server.url, keys, tmp_path)
    rig.loop = LoopThread(rig.url, keys)
    await rig.start_node()
    work = {"task": "t", "kind": "exec", "cost": {"cpu": 4}, "exec": {"command": ["sleep", "1"]}}
    try:
        async with rig.client() as client:
            names = [(await client.post("/actions", json=work)).json()["id"] for _ in range(2)]
            await asyncio.to_thread(server.kill)
            refused = await client.post("/actions", json=work)
            await asyncio.to_thread(server.start)
            views = []
            for name in names:
                answer = await client.get(f"/actions/{name}", params={"wait": 60})
                while answer.status_code == 503:
                    answer = await client.get(f"/actions/{name}", params={"wait": 60})
                views.append(answer.json())
        assert refused.status_code == 503
        assert refused.headers["retry-after"]
        assert [view["outcome"] for view in views] == ["completed", "completed"]
    finally:
        await rig.stop_node()
        rig.loop.stop()
        rig.close()
        server.stop()


async def test_an_outage_of_redis_costs_one_term(tmp_path, keys: Keys) -> None:
    """The connections of the term before are dead: none of them may end the next one too."""
    server = RedisServer(tmp_path / "r").start()
    rig = Rig(server.url, keys, tmp_path)
    rig.loop = LoopThread(rig.url, keys)
    await rig.start_node()
    try:
        async with rig.client() as client:
            assert (await client.post("/actions?wait=60", json=NOOP)).json()["outcome"]
            before = rig.loop.loop.leadership.epoch
            await asyncio.to_thread(server.kill)
            await asyncio.to_thread(server.start)
            answer = await client.post("/actions?wait=60", json=NOOP)
            while answer.status_code == 503:
                answer = await client.post("/actions?wait=60", json=NOOP)
        assert answer.json()["outcome"] == "completed"
        assert rig.loop.loop.leadership.epoch == before + 1
    finally:
        await rig.stop_node()
        rig.loop.stop()
        rig.close()
        server.stop()


async def test_a_standby_is_seen_before_it_is_needed(rig: Rig, redis_client: redis.Redis) -> None:
    standby = LoopThread(rig.url, rig.keys)
    try:
        name = standby.loop.leadership.name
        async with asyncio.timeout(120):
            while not (row := redis_client.hget(rig.keys.workers, name)):
                await asyncio.sleep(0.01)
        assert json.loads(cast("bytes", row))["role"] == "standby"
    finally:
        standby.stop()
