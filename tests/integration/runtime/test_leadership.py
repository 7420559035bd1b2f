"""One leader, fenced for real; the journal brings a new one level."""

from __future__ import annotations

import asyncio

import pytest
import redis

from domain.errors import Fenced
from domain.keys import Keys
from scheduler.runtime.leadership import Leadership
from tests.integration.runtime.rig import LoopThread, Rig
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


def test_epoch_never_falls_behind_what_the_database_knows(
    redis_client: redis.Redis, keys: Keys
) -> None:
    won: list[int] = []
    leader = Leadership(redis_client, keys, "a", epoch_floor=lambda: 41, epoch_won=won.append)
    leader.try_elect()
    assert won == [42]


async def test_new_leader_goes_on_where_the_old_one_stopped(rig: Rig) -> None:
    """1. An action runs, another waits. 2. The leader ends. 3. A new one finishes both."""
    assert rig.loop is not None
    work = {"task": "t", "kind": "exec", "cost": {"cpu": 4}, "exec": {"command": ["sleep", "0.5"]}}
    async with rig.client() as client:
        first = (await client.post("/actions", json=work)).json()["id"]
        second = (await client.post("/actions", json=work)).json()["id"]
        assert (await client.get(f"/actions/{second}")).json()["state"] == "queued"
        await asyncio.to_thread(rig.loop.stop)
        third = (await client.post("/actions", json=NOOP)).json()["id"]
        rig.loop = LoopThread(rig.url, rig.keys)
        for name in (first, second, third):
            view = (await client.get(f"/actions/{name}", params={"wait": 30})).json()
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
    work = {"task": "t", "kind": "exec", "exec": {"command": ["sleep", "60"]}}
    async with rig.client() as client:
        name = (await client.post("/actions?wait=0.2", json=work)).json()["id"]
        await rig.crash_node()
        await rig.start_node()
        view = (await client.get(f"/actions/{name}", params={"wait": 30})).json()
        after = (await client.post("/actions?wait=30", json=NOOP)).json()
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
                answer = await client.get(f"/actions/{name}", params={"wait": 30})
                while answer.status_code == 503:
                    answer = await client.get(f"/actions/{name}", params={"wait": 30})
                views.append(answer.json())
        assert refused.status_code == 503
        assert refused.headers["retry-after"]
        assert [view["outcome"] for view in views] == ["completed", "completed"]
    finally:
        await rig.stop_node()
        rig.loop.stop()
        rig.close()
        server.stop()
