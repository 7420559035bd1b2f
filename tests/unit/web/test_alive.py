"""A worker's health check looks for the worker's own sign of life, and for no other's."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tangram_web.healthcheck import WITHIN_SECONDS, is_alive, read_hash
from tests.redis_server import RedisServer

NOW = 1_000_000.0


def rows(*names: str, age_seconds: float = 1.0) -> dict[str, str]:
    return {name: json.dumps({"role": "any", "at": NOW - age_seconds}) for name in names}


def test_a_worker_of_this_host_that_was_seen_just_now_is_well() -> None:
    assert is_alive(rows("loop@here:7:ab"), "loop", "here", "n", NOW)


def test_a_node_is_known_by_its_own_name_wherever_it_is() -> None:
    assert is_alive(rows("node@n-1"), "node", "here", "n-1", NOW)
    assert not is_alive(rows("node@n-10"), "node", "here", "n-1", NOW)


def test_a_rollout_worker_is_known_by_its_own_name() -> None:
    assert is_alive(rows("rollout@r-1"), "rollout", "here", "r-1", NOW)
    assert not is_alive(rows("rollout@r-10", "node@r-1"), "rollout", "here", "r-1", NOW)


def test_another_host_or_another_role_does_not_count() -> None:
    assert not is_alive(rows("loop@there:7:ab"), "loop", "here", "n", NOW)
    assert not is_alive(rows("loop@here2:7:ab"), "loop", "here", "n", NOW)
    assert not is_alive(rows("projector@here:7:ab"), "loop", "here", "n", NOW)


def test_a_sign_of_life_grows_old() -> None:
    old = rows("loop@here:7:ab", age_seconds=WITHIN_SECONDS + 1)
    assert not is_alive(old, "loop", "here", "n", NOW)
    assert is_alive({**old, **rows("loop@here:9:cd")}, "loop", "here", "n", NOW)


@pytest.mark.slow
def test_replies_of_a_real_redis_are_parsed(tmp_path: Path) -> None:
    server = RedisServer(tmp_path / "r").start()
    try:
        with server.client() as client:
            client.hset("t:workers", mapping={"loop@é:1": '{"at": 1}', "node@n": "x" * 100_000})
            assert read_hash(server.url, "t:workers") == {
                "loop@é:1": '{"at": 1}',
                "node@n": "x" * 100_000,
            }
            assert read_hash(server.url, "t:none") == {}
            client.set("t:text", "no hash")
        with pytest.raises(ValueError, match="WRONGTYPE"):
            read_hash(server.url, "t:text")
    finally:
        server.stop()
