"""A power cut tears the end of Redis' file anywhere: only whole steps are recovered."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import pytest
import redis

from domain.codec import encode
from domain.events import TimeAdvanced
from domain.redis_keys import Keys
from scheduler.runtime.loop.leadership import Leadership
from scheduler.runtime.redis.lua_scripts import SUBMIT
from tests.redis_server import RedisServer

ORDERS = [(f"node:{number}", b"order" * 50) for number in range(4)]


def the_file(directory: Path) -> Path:
    """Where the newest entries are: one file of Redis 6, the last increment of Redis 7."""
    files = [*directory.glob("appendonlydir/*.incr.aof"), *directory.glob("appendonly.aof")]
    return max(files, key=lambda path: path.stat().st_mtime)


@contextmanager
def torn(directory: Path, place: Path, bytes_lost: int) -> Iterator[redis.Redis]:
    """What a server finds whose file lost its last bytes."""
    shutil.copytree(directory, place, ignore=shutil.ignore_patterns("*.sock", "*.log"))
    file = the_file(place)
    with file.open("rb+") as opened:
        opened.truncate(file.stat().st_size - bytes_lost)
    server = RedisServer(place).start()
    try:
        with server.client() as client:
            yield client
    finally:
        server.stop()


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RedisServer]:
    server = RedisServer(tmp_path / "r").start()
    yield server
    server.stop()


def last_step(server: RedisServer, step: Any) -> int:
    """Do a step, kill the server; return how many bytes the step wrote."""
    with server.client() as client:
        before = the_file(server.directory).stat().st_size
        step(client)
        wrote = the_file(server.directory).stat().st_size - before
    server.kill()
    return wrote


def cuts(wrote: int) -> list[int]:
    return sorted({1, 2, wrote // 3, wrote // 2, wrote - 20})


def test_a_commit_is_in_the_journal_with_its_orders_or_not_at_all(
    server: RedisServer, keys: Keys, tmp_path: Path
) -> None:
    with server.client() as client:
        leader = Leadership(client, keys, "a")
        leader.try_elect()
        client.xadd(keys.inbox, {"0": b"first"})
        second = cast("bytes", client.xadd(keys.inbox, {"0": b"second"})).decode()
    wrote = last_step(server, lambda _: leader.commit(b"entry" * 50, second, ORDERS))
    leader.disconnect()
    for number, lost in enumerate(cuts(wrote)):
        with torn(server.directory, tmp_path / str(number), lost) as client:
            assert client.xlen(keys.journal) == 0
            assert [client.xlen(stream) for stream, _ in ORDERS] == [0] * len(ORDERS)
            assert client.xlen(keys.inbox) == 2
    with torn(server.directory, tmp_path / "whole", 0) as client:
        assert client.xlen(keys.journal) == 1
        assert [client.xlen(stream) for stream, _ in ORDERS] == [1] * len(ORDERS)


def test_a_submission_is_remembered_with_its_message_or_not_at_all(
    server: RedisServer, keys: Keys, tmp_path: Path
) -> None:
    message, key = encode(TimeAdvanced()) * 20, keys.idempotency("p", "k")
    names = [keys.inbox, keys.project_loads, keys.arrivals, key]
    arguments: list[Any] = [*names, 60, b"r", "", 0, 2, message, message]
    wrote = last_step(server, lambda client: client.eval(SUBMIT, len(names), *arguments))
    for number, lost in enumerate(cuts(wrote)):
        with torn(server.directory, tmp_path / str(number), lost) as client:
            assert (client.exists(key), client.xlen(keys.inbox)) == (0, 0)
    with torn(server.directory, tmp_path / "whole", 0) as client:
        assert (client.exists(key), client.xlen(keys.inbox)) == (1, 1)


def test_a_snapshot_is_the_old_one_or_the_new_one(
    server: RedisServer, keys: Keys, tmp_path: Path
) -> None:
    with server.client() as client:
        leader = Leadership(client, keys, "a")
        leader.try_elect()
        leader.put(keys.snapshot, b"old")
    wrote = last_step(server, lambda _: leader.put(keys.snapshot, b"new" * 100_000))
    leader.disconnect()
    for number, lost in enumerate(cuts(wrote)):
        with torn(server.directory, tmp_path / str(number), lost) as client:
            assert client.get(keys.snapshot) == b"old"
