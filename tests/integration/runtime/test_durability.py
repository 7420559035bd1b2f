"""A batch is in the inbox whole or not at all, and what was answered is on disk first."""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest
import redis

from domain.errors import Unavailable
from domain.redis_keys import Keys
from scheduler.runtime.gateway.submitter import Submitter
from scheduler.runtime.redis.clients import connect_async, durability_risks
from scheduler.runtime.redis.journal import Journal
from tests.redis_server import RedisServer

MESSAGES = 400
#: Killed at another moment of the stream of batches each time.
ROUNDS = (3, 17, 40)


async def submit_until_killed(server: RedisServer, keys: Keys, batches: int) -> set[int]:
    """Append batches, some with keys, kill Redis after so many; return those that were answered."""
    client = connect_async(server.url)
    submitter = Submitter(client, keys)
    serving = asyncio.ensure_future(submitter.run())
    answered: set[int] = set()

    async def submit(number: int) -> None:
        messages = [f"{number}/{n}/".encode() + b"x" * 500 for n in range(MESSAGES)]
        key = keys.idempotency("p", str(number)) if number % 2 else ""
        with contextlib.suppress(Unavailable):
            await submitter.append(messages, key=key, remember=b"r")
            answered.add(number)

    async def one_after_another(first: int) -> None:
        for number in range(first, 400, 4):
            if server.process is None:
                return
            await submit(number)

    submitting = asyncio.gather(*(one_after_another(first) for first in range(4)))
    async with asyncio.timeout(120):
        while len(answered) < batches:
            await asyncio.sleep(0)
    await asyncio.to_thread(server.kill)
    await submitting
    serving.cancel()
    await asyncio.wait({serving})
    await client.aclose()
    return answered


@pytest.mark.parametrize("batches", ROUNDS)
async def test_no_batch_is_half_there_after_a_kill(
    tmp_path: Path, keys: Keys, batches: int
) -> None:
    server = RedisServer(tmp_path / "r").start()
    try:
        answered = await submit_until_killed(server, keys, batches)
        server.start()
        with server.client() as client:
            entries = cast("list[Any]", client.xrange(keys.inbox))
            remembered = {
                int(key.rpartition(b":")[2]) for key in client.scan_iter(f"{keys.prefix}:idem*")
            }
        there = Counter(
            int(message.partition(b"/")[0]) for _, fields in entries for message in fields.values()
        )
    finally:
        server.stop()
    assert answered <= there.keys()
    assert set(there.values()) == {MESSAGES}
    assert remembered == {number for number in there if number % 2}, "a key is kept with its batch"


def test_nothing_is_answered_that_could_not_be_synced(
    tmp_path: Path, keys: Keys, program: Callable[[str], str]
) -> None:
    """What a power cut would find: where the disk fails to sync, nothing was promised."""
    strace = program("strace")
    server = RedisServer(tmp_path / "r").start()
    try:
        assert server.process is not None
        with server.client() as client:
            client.xadd(keys.inbox, {"0": b"before"})
            failing = subprocess.Popen(
                [strace, "-f", "-o", os.devnull, "-p", str(server.process.pid),
                 "-e", "trace=fsync,fdatasync", "-e", "inject=fsync,fdatasync:error=EIO"],
                stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
            )  # fmt: skip
            assert failing.stderr is not None
            assert "attached" in failing.stderr.readline()
            with pytest.raises(redis.ConnectionError):
                client.xadd(keys.inbox, {"0": b"promised"})
            failing.wait(120)
            failing.stderr.close()
    finally:
        server.stop()


def test_a_redis_that_would_forget_is_reported(tmp_path: Path) -> None:
    server = RedisServer(tmp_path / "r").start()
    try:
        with server.client() as client:
            assert durability_risks(client) == ""
            client.config_set("appendfsync", "everysec")
            assert "a power cut loses" in durability_risks(client)
            client.config_set("appendfsync", "always")
            client.config_set("maxmemory-policy", "allkeys-lru")
            assert durability_risks(client) == "", "a memory without bound is never full"
            client.config_set("maxmemory", 2**30)
            assert "silently drops" in durability_risks(client)
    finally:
        server.stop()


def test_the_journal_is_kept_for_a_reader_that_never_was(
    redis_client: redis.Redis, keys: Keys
) -> None:
    """The projector may start for the first time long after the loop did."""
    for _ in range(300):  # Redis drops entries by the hundred
        newest = cast("bytes", redis_client.xadd(keys.journal, {"e": b""}))
    journal = Journal(redis_client, keys)
    assert journal.trim(newest.decode(), -60.0, ("projector",)) == 0
    journal.set_position("projector", newest.decode())
    assert journal.trim(newest.decode(), -60.0, ("projector",)) > 0
    journal.close()
