"""Choice of the Redis server and of its socket."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tangram_web.supervisor.data_folder import DataFolder
from tangram_web.supervisor.errors import StartFailed
from tangram_web.supervisor.redis_server import (
    MAX_SOCKET_PATH_BYTES,
    EmbeddedRedis,
    ExternalRedis,
    choose_redis,
    server_version,
    socket_path,
)


def nowhere(_name):
    """Find nothing on PATH."""


def no_wheel():
    """Find no wheel."""


@pytest.fixture
def make_server(tmp_path):
    """Make a program that says which version it is, as Redis does."""

    def make(version):
        binary = tmp_path / f"redis-{version}"
        binary.write_text(f"#!/bin/sh\necho 'Redis server v={version} sha=00000000:0 bits=64'\n")
        binary.chmod(0o700)
        return binary

    return make


def test_url_wins_over_everything(home, make_server):
    redis = choose_redis(
        home,
        {"TANGRAM_REDIS_URL": "redis://:secret@db:6379/0"},
        which=lambda _: str(make_server("7.0.15")),
    )

    assert redis == ExternalRedis("redis://:secret@db:6379/0")
    assert "secret" not in redis.description


@pytest.mark.parametrize("name", ["redis-server", "valkey-server"])
def test_server_on_path_wins_over_the_wheel(home, make_server, name):
    on_path = make_server("7.0.15")
    redis = choose_redis(
        home, {}, which=lambda asked: str(on_path) if asked == name else None, wheel=no_wheel
    )

    assert isinstance(redis, EmbeddedRedis)
    assert (redis.binary, redis.version) == (on_path, "7.0.15")


def test_wheel_is_used_when_path_has_none(home, make_server):
    bundled = make_server("6.2.14")
    redis = choose_redis(home, {}, which=nowhere, wheel=lambda: bundled)

    assert isinstance(redis, EmbeddedRedis)
    assert redis.binary == bundled


def test_no_redis_at_all_says_what_to_install(home):
    with pytest.raises(StartFailed, match="apt-get install redis-server"):
        choose_redis(home, {}, which=nowhere, wheel=no_wheel)


def test_data_of_a_newer_redis_are_not_ignored_silently(home, make_server):
    (home.redis / "appendonlydir").mkdir()
    bundled = make_server("6.2.14")

    with pytest.raises(StartFailed, match="written by Redis 7"):
        choose_redis(home, {}, which=nowhere, wheel=lambda: bundled)


def test_program_that_does_not_run_is_reported(tmp_path):
    with pytest.raises(StartFailed, match="does not run"):
        server_version(tmp_path / "missing")


def test_embedded_server_is_closed_to_the_network_and_durable(home, make_server):
    binary = make_server("7.0.15")
    redis = choose_redis(home, {}, which=lambda _: str(binary))
    assert isinstance(redis, EmbeddedRedis)
    command = redis.program.command
    settings = dict(zip(command[1::2], command[2::2], strict=True))

    assert settings["--port"] == "0"
    assert settings["--appendfsync"] == "always"
    assert settings["--maxmemory-policy"] == "noeviction"
    assert settings["--unixsocket"] == str(home.redis / "redis.sock")
    assert home.redis.stat().st_mode & 0o077 == 0


def test_the_socket_is_in_the_data_folder_while_its_path_is_short_enough():
    length = MAX_SOCKET_PATH_BYTES - len("//redis/redis.sock")
    home = DataFolder(Path("/" + "h" * length))

    assert len(os.fsencode(socket_path(home))) == MAX_SOCKET_PATH_BYTES
    assert socket_path(home) == home.redis / "redis.sock"


def test_the_socket_of_a_long_path_is_in_a_private_folder(tmp_path):
    home = DataFolder(Path("/" + "h" * 120))

    path = socket_path(home, tmp_path)

    assert path.parent.parent == tmp_path
    assert path.parent.stat().st_mode & 0o777 == 0o700
    assert socket_path(home, tmp_path) == path, "the same folder finds the same socket"


def test_folder_that_others_may_enter_is_refused(tmp_path):
    home = DataFolder(Path("/" + "h" * 120))
    socket_path(home, tmp_path).parent.chmod(0o755)

    with pytest.raises(StartFailed, match="not a private folder"):
        socket_path(home, tmp_path)


def test_link_in_place_of_the_private_folder_is_refused(tmp_path):
    home = DataFolder(Path("/" + "h" * 120))
    folder = socket_path(home, tmp_path).parent
    folder.rmdir()
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    folder.symlink_to(tmp_path / "elsewhere")

    with pytest.raises(StartFailed, match="not a private folder"):
        socket_path(home, tmp_path)
