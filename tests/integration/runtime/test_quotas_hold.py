"""I13 end to end: client processes, restarts and fail-over in mid-window, judged by the journal."""

from __future__ import annotations

import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest
import redis

from domain.action import Action, Kind, LeaseSpec
from domain.codec import encode
from domain.decisions import Finish, Grant
from domain.events import ActionSubmitted
from domain.ids import ActionId
from domain.inventory import Config, PoolConfig, ProjectConfig
from domain.limits import Limits, Quota
from domain.redis_keys import Keys
from scheduler.runtime.redis.clients import connect
from scheduler.runtime.redis.journal import Journal
from tests.integration.runtime.rig import LoopThread
from tests.redis_server import RedisServer

CLIENTS, CALLS = 8, 15
WINDOW_SECONDS = 0.4
LIMITS = Limits((Quota(10_000, WINDOW_SECONDS), Quota(30_000, 3 * WINDOW_SECONDS)))
CONFIG = Config(
    revision=1,
    projects={"default": ProjectConfig("default")},
    pools={"default": PoolConfig("default")},
    resources={"api:search": 1_000_000},
    limits={"api:search": LIMITS},
)
#: A trainer that leases one unit again and again, straight into the inbox.
CLIENT = """
import os, sys, time, redis
from domain.action import Action, Kind, LeaseSpec
from domain.codec import encode, pack_fields
from domain.events import ActionSubmitted
url, inbox, who, count = sys.argv[1:]
client = redis.Redis.from_url(url)
for n in range(int(count)):
    action = Action(id=f"act_{who}_{n}", project="default", task="t", kind=Kind.LEASE,
                    cost={"api:search": (1000,)}, lease=LeaseSpec(0.2))
    event = ActionSubmitted(action=action, accepted_at=time.time())
    client.execute_command("XADD", inbox, "*", *pack_fields([encode(event)]))
"""


@pytest.fixture
def clients(runtime_redis: RedisServer, keys: Keys) -> Iterator[list[subprocess.Popen[bytes]]]:
    started = [
        subprocess.Popen([sys.executable, "-c", CLIENT, runtime_redis.url, keys.inbox, str(n), str(CALLS)])
        for n in range(CLIENTS)
    ]  # fmt: skip
    yield started
    for process in started:
        process.kill()
        process.wait()


def grants_of(client: redis.Redis, keys: Keys) -> tuple[list[float], Counter[str]]:
    """Return when units were granted, and who is over, as the journal has it."""
    times: list[float] = []
    over: Counter[str] = Counter()
    for _, entry in Journal(client, keys).after("0-0"):
        times += [entry.at for decision in entry.decisions if isinstance(decision, Grant)]
        over.update(d.action_id for d in entry.decisions if isinstance(d, Finish))
    return times, over


@pytest.mark.slow
def test_quotas_hold_over_client_processes_and_leaders(
    runtime_redis: RedisServer,
    redis_client: redis.Redis,
    keys: Keys,
    clients: list[subprocess.Popen[bytes]],
) -> None:
    loop = LoopThread(runtime_redis.url, keys, CONFIG)
    deadline, restarts = time.monotonic() + 240, 0
    while len(grants_of(redis_client, keys)[1]) < CLIENTS * CALLS:
        assert time.monotonic() < deadline
        time.sleep(WINDOW_SECONDS / 3)  # in the midst of a window, whatever happens in it
        loop.stop()
        if restarts % 2:  # as after a crash: everything is replayed
            redis_client.delete(keys.snapshot)
        loop = LoopThread(runtime_redis.url, keys, CONFIG)
        restarts += 1
    loop.stop()
    times, over = grants_of(redis_client, keys)
    assert restarts >= 3
    assert len(times) == CLIENTS * CALLS
    assert set(over.values()) == {1}
    judge(times)


def judge(times: list[float]) -> None:
    """Raise unless time went forward and every window of grants holds every quota."""
    assert all(before <= after for before, after in pairwise(times))
    for quota in LIMITS.quotas:
        for begins in times:
            inside = sum(begins <= at < begins + quota.window_seconds for at in times)
            assert inside * 1000 <= quota.amount


def submit(client: redis.Redis, keys: Keys, count: int) -> None:
    """Append leases of one unit each to the inbox."""
    for n in range(count):
        action = Action(
            id=ActionId(f"act_{n}"),
            project="default",
            task="t",
            kind=Kind.LEASE,
            cost={"api:search": (1000,)},
            lease=LeaseSpec(0.2),
        )
        event = ActionSubmitted(action=action, accepted_at=time.time())
        client.xadd(keys.inbox, {"0": encode(event)})


def wait_for_the_end(client: redis.Redis, keys: Keys, count: int) -> list[float]:
    deadline = time.monotonic() + 240
    while len((seen := grants_of(client, keys))[1]) < count:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert len(seen[0]) == count
    return seen[0]


@pytest.mark.slow
def test_quotas_hold_over_a_power_cut_of_redis_in_mid_window(tmp_path: Path, keys: Keys) -> None:
    server = RedisServer(tmp_path / "redis").start()
    with connect(server.url) as client:
        loop = LoopThread(server.url, keys, CONFIG)
        submit(client, keys, 40)
        while len(grants_of(client, keys)[0]) < 15:
            time.sleep(0.01)
        server.kill()
        server.start()
        times = wait_for_the_end(client, keys, 40)
        loop.stop()
    server.stop()
    judge(times)


@pytest.mark.slow
def test_quotas_hold_when_the_wall_clock_is_set_back_between_leaders(
    runtime_redis: RedisServer,
    redis_client: redis.Redis,
    keys: Keys,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    loop = LoopThread(runtime_redis.url, keys, CONFIG)
    submit(redis_client, keys, 40)
    while len(grants_of(redis_client, keys)[0]) < 10:
        time.sleep(0.01)
    loop.stop()
    true = time.time
    monkeypatch.setattr(time, "time", lambda: true() - 3600)
    loop = LoopThread(runtime_redis.url, keys, CONFIG)
    times = wait_for_the_end(redis_client, keys, 40)
    loop.stop()
    judge(times)
