"""The embedded server: private, with a password, out of reach of sandboxes, and its data readable by Valkey."""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import pytest
import redis

from scheduler.runtime.redis.clients import connect, server_of
from tangram_web.celery import _broker_url
from tangram_web.supervisor.data_folder import DataFolder
from tangram_web.supervisor.errors import StartFailed
from tangram_web.supervisor.redis_server import EmbeddedRedis, choose_redis, wheel_binary

VALKEY = str(wheel_binary())
DEBIAN = str(shutil.which("redis-server"))


@pytest.fixture
def home(tmp_path: Path) -> DataFolder:
    return DataFolder.open(tmp_path / "home")


def answers(server: EmbeddedRedis) -> bool:
    """Whether a server has read its data: its socket listens before."""
    try:
        with connect(server.url) as client:
            return bool(client.ping())
    except redis.ConnectionError:  # while it loads, too
        return False


@contextmanager
def running(home: DataFolder, program: str) -> Iterator[EmbeddedRedis]:
    """Run the embedded server of ``home``."""
    chosen = choose_redis(home, {"TANGRAM_REDIS_SERVER": program})
    assert isinstance(chosen, EmbeddedRedis)
    process = subprocess.Popen(chosen.program().command, stdout=subprocess.DEVNULL)
    try:
        until = time.monotonic() + 60
        while not answers(chosen):
            assert process.poll() is None
            assert time.monotonic() < until
            time.sleep(0.005)
        yield chosen
    finally:
        process.terminate()
        process.wait(60)


def test_data_of_redis_7_0_are_read_by_valkey_and_not_given_back(home: DataFolder) -> None:
    """1. Debian's Redis writes. 2. Valkey reads and rewrites. 3. Redis is refused, and nothing is lost."""
    with running(home, DEBIAN) as server, connect(server.url) as client:
        assert server_of(client).product.value == "Redis"
        for n in range(1000):
            client.xadd("tangram:journal", {"e": f"entry {n}"})
        client.hset("tangram:positions", "projector", "1-0")
    with running(home, VALKEY) as server, connect(server.url) as client:
        assert str(server_of(client)).startswith("Valkey 9.1")
        assert client.xlen("tangram:journal") == 1000
        assert client.hget("tangram:positions", "projector") == b"1-0"
        client.bgrewriteaof()
        until = time.monotonic() + 60
        while cast("dict[str, Any]", client.info("persistence"))["aof_rewrite_in_progress"]:
            assert time.monotonic() < until
            time.sleep(0.01)
        client.xadd("tangram:journal", {"e": "of Valkey"})
    with pytest.raises(StartFailed, match=r"Valkey's format 80.*not read by.*Redis 7\.0\.15"):
        choose_redis(home, {"TANGRAM_REDIS_SERVER": DEBIAN})
    both = choose_redis(home, {})
    assert isinstance(both, EmbeddedRedis)
    assert str(both.binary) == VALKEY
    with running(home, VALKEY) as server, connect(server.url) as client:
        assert client.xlen("tangram:journal") == 1001


@pytest.mark.parametrize("program", [VALKEY, DEBIAN], ids=["valkey", "redis"])
def test_server_has_a_password_that_no_command_line_shows(home: DataFolder, program: str) -> None:
    with running(home, program) as server:
        with connect(server.url) as client:
            assert client.ping()
            configured = cast("dict[str, str]", client.config_get("port"))
            assert {*configured.values()} <= {"0", b"0"}
            pid = cast("dict[str, Any]", client.info("server"))["process_id"]
        with (
            redis.Redis(unix_socket_path=str(server.socket)) as stranger,
            pytest.raises(redis.AuthenticationError),
        ):
            stranger.ping()
        assert server.password.encode() not in Path(f"/proc/{pid}/cmdline").read_bytes()
        assert server.socket.stat().st_mode & 0o077 == 0
        assert server.socket.parent.stat().st_mode & 0o077 == 0
        listening = subprocess.run(
            ["ss", "-Htlnp"], capture_output=True, text=True, check=True
        ).stdout
        assert f"pid={pid}," not in listening


def test_jobs_reach_a_server_with_a_password(home: DataFolder) -> None:
    from kombu.connection import Connection

    with (
        running(home, VALKEY) as server,
        Connection(_broker_url(server.url)) as broker,
    ):
        queue = broker.SimpleQueue("q")
        queue.put({"job": 1})
        assert queue.get(timeout=10).payload == {"job": 1}
        queue.close()
