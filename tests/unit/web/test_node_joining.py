"""The first start of a node exchanges a token; later ones need none."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest

from tangram_web.node_joining import CannotJoin, join

ADMISSION = {
    "node": "gpu-1", "pool": "big", "isolation": "", "key_prefix": "acl", "user": "acl-node-gpu-1",
    "redis": {"url": "rediss://redis.example:6379/0", "ca": "PEM"},
}  # fmt: skip


class Web:
    """Answers as web processes do: with what is in ``answers``, then with an admission."""

    def __init__(self) -> None:
        self.asked: list[httpx.Request] = []
        self.answers: list[Callable[[], httpx.Response]] = []
        self.pauses: list[float] = []

    def handle(self, request: httpx.Request) -> httpx.Response:
        self.asked.append(request)
        return self.answers.pop(0)() if self.answers else httpx.Response(200, json=ADMISSION)

    def start(self, home: Path, **more: str) -> dict[str, str]:
        """Start a node, and return its settings."""
        environment = {
            "TANGRAM_JOIN": "https://tangram.example/",
            "TANGRAM_HOME": str(home),
            "TANGRAM_NODE": "gpu-1",
            **more,
        }
        join(environment, transport=httpx.MockTransport(self.handle), pause=self.pauses.append)
        return environment

    @property
    def hashes(self) -> list[str]:
        return [json.loads(each.content)["password_sha256"] for each in self.asked]


@pytest.fixture
def web() -> Web:
    return Web()


def test_a_node_joins_once_and_starts_again_without_a_token(web: Web, tmp_path: Path) -> None:
    first = web.start(tmp_path, TANGRAM_JOIN_TOKEN="tgj_1")
    (request,) = web.asked
    assert str(request.url) == "https://tangram.example/api/v1/nodes/gpu-1/join"
    assert request.headers["Authorization"] == "Bearer tgj_1"
    url = urlsplit(first["TANGRAM_REDIS_URL"])
    assert (url.hostname, url.port, url.username) == ("redis.example", 6379, "acl-node-gpu-1")
    assert hashlib.sha256(str(url.password).encode()).hexdigest() == web.hashes[0]
    folder = tmp_path / "nodes" / "gpu-1"
    assert f"ssl_ca_certs={str(folder).replace('/', '%2F')}%2Fredis-ca.pem" in url.query
    assert (folder / "redis-ca.pem").read_text() == "PEM"
    assert {each.stat().st_mode & 0o777 for each in folder.iterdir()} == {0o600}
    assert (first["TANGRAM_KEY_PREFIX"], first["TANGRAM_NODE_POOL"]) == ("acl", "big")
    assert "TANGRAM_NODE_ISOLATION" not in first
    again = web.start(tmp_path)
    assert again["TANGRAM_REDIS_URL"] == first["TANGRAM_REDIS_URL"]
    assert len(web.asked) == 1


def test_a_start_that_missed_the_answer_repeats_its_request(web: Web, tmp_path: Path) -> None:
    def cut() -> httpx.Response:
        raise KeyboardInterrupt

    web.answers = [cut]
    with pytest.raises(KeyboardInterrupt):
        web.start(tmp_path, TANGRAM_JOIN_TOKEN="tgj_1")
    web.start(tmp_path, TANGRAM_JOIN_TOKEN="tgj_1")
    assert len(web.hashes) == 2
    assert len(set(web.hashes)) == 1


def test_another_token_makes_a_node_join_again(web: Web, tmp_path: Path) -> None:
    before = web.start(tmp_path, TANGRAM_JOIN_TOKEN="tgj_1")
    (tmp_path / "token").write_text("tgj_2\n")
    after = web.start(tmp_path, TANGRAM_JOIN_TOKEN_FILE=str(tmp_path / "token"))
    assert before["TANGRAM_REDIS_URL"] != after["TANGRAM_REDIS_URL"]
    assert len(set(web.hashes)) == 2


def test_a_server_that_does_not_answer_is_asked_again(web: Web, tmp_path: Path) -> None:
    def away() -> httpx.Response:
        raise httpx.ConnectError("refused")

    web.answers = [away, away, lambda: httpx.Response(503, headers={"Retry-After": "7"}), away]
    web.start(tmp_path, TANGRAM_JOIN_TOKEN="tgj_1")
    assert web.pauses == [1.0, 2.0, 7.0, 8.0]


def test_a_refusal_has_the_words_of_the_server(web: Web, tmp_path: Path) -> None:
    web.answers = [lambda: httpx.Response(410, json={"detail": "the join token has expired: …"})]
    with pytest.raises(CannotJoin, match="answers 410: the join token has expired"):
        web.start(tmp_path, TANGRAM_JOIN_TOKEN="tgj_1")


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({}, "has not joined yet: set TANGRAM_JOIN_TOKEN"),
        ({"TANGRAM_REDIS_URL": "redis://r", "TANGRAM_JOIN_TOKEN": "t"}, "both set: remove one"),
        ({"TANGRAM_JOIN": "http://tangram.example", "TANGRAM_JOIN_TOKEN": "t"}, "https://"),
        ({"TANGRAM_NODE": "../a", "TANGRAM_JOIN_TOKEN": "t"}, "cannot be the name of a node"),
    ],
)
def test_what_cannot_join_is_refused_before_a_request(
    web: Web, tmp_path: Path, given: dict[str, str], why: str
) -> None:
    with pytest.raises(CannotJoin, match=why):
        web.start(tmp_path, **given)
    assert web.asked == []


def test_without_an_address_nothing_is_set(tmp_path: Path) -> None:
    environment = {"TANGRAM_HOME": str(tmp_path)}
    join(environment)
    assert environment == {"TANGRAM_HOME": str(tmp_path)}
