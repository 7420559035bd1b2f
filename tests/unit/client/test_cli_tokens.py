"""`tangram token list | create | renew | revoke`."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import pytest
from click.testing import CliRunner, Result

from tangram_client.cli import verbs
from tangram_client.cli.shell import Shell


def a_token(name: str, **given: Any) -> dict[str, Any]:
    return {
        "id": f"tok_{name}", "name": name, "project": None, "scopes": ["read"], "networks": [],
        "created_at": "2026-11-01T00:00:00Z", "expires_at": None, "last_used_at": None,
        "last_used_from": "", "revoked_at": None, **given,
    }  # fmt: skip


def in_days(days: float) -> str:
    return (datetime.now(UTC) + timedelta(days=days)).isoformat()


TOKENS = [
    a_token("near", expires_at=in_days(6.5), last_used_at="2026-11-20T10:00:00Z",
            last_used_from="10.1.2.3", networks=["10.0.0.0/8"]),
    a_token("far", expires_at=in_days(80)),
    a_token("over", expires_at=in_days(-1)),
    a_token("gone", revoked_at="2026-11-01T00:00:00Z"),
    a_token("lasting"),
]  # fmt: skip


class Server:
    """Answers as the API of tokens, in pages of three."""

    def __init__(self) -> None:
        self.asked: list[httpx.Request] = []

    def handle(self, request: httpx.Request) -> httpx.Response:
        self.asked.append(request)
        if request.method == "GET":
            if "cursor" in request.url.params:
                return httpx.Response(200, json={"results": TOKENS[3:], "next": None})
            following = "http://t/api/v1/tokens?limit=100&cursor=abc"
            return httpx.Response(200, json={"results": TOKENS[:3], "next": following})
        if request.method == "DELETE":
            return httpx.Response(204)
        made = a_token("new", expires_at=in_days(90), token="tgm_value", forms={"e2b": "e2b_value"})
        return httpx.Response(200 if "renew" in request.url.path else 201, json=made)


@pytest.fixture
def server() -> Server:
    return Server()


def tangram(server: Server, *arguments: str) -> Result:
    shell = Shell(transport=httpx.MockTransport(server.handle))
    return CliRunner().invoke(verbs, ["token", *arguments], obj=shell, env={"TANGRAM_TOKEN": "t"})


def test_tokens_of_all_pages_are_listed_with_end_and_last_use(server: Server) -> None:
    lines = tangram(server, "list").stdout.splitlines()

    assert len(lines) == 1 + len(TOKENS)
    assert "(in 6 days)" in lines[1]
    assert "10.1.2.3" in lines[1]
    assert "10.0.0.0/8" in lines[1]
    assert [word in line for word, line in zip(
        ("every", "expired", "revoked", "never"), lines[2:], strict=True)] == [True] * 4  # fmt: skip
    assert json.loads(tangram(server, "list", "-o", "json").stdout) == TOKENS


def test_a_new_token_is_the_only_output(server: Server) -> None:
    done = tangram(server, "create", "trainer", "--scope", "read", "--network", "10.0.0.0/8")

    assert done.stdout == "tgm_value\n"
    body = json.loads(server.asked[0].content)
    assert body == {"name": "trainer", "scopes": ["read"], "networks": ["10.0.0.0/8"]}
    assert server.asked[0].headers["idempotency-key"]


@pytest.mark.parametrize(("form", "printed"), [("e2b", "e2b_value"), ("other", "tgm_value")])
def test_a_new_token_is_printed_in_the_form_of_a_protocol(
    server: Server, form: str, printed: str
) -> None:
    done = tangram(server, "create", "trainer", "--scope", "read", "--form", form)

    assert done.stdout == f"{printed}\n"
    assert ("has no form" in done.stderr) == (form == "other")


def test_the_end_of_a_new_token_is_chosen(server: Server) -> None:
    tangram(server, "create", "a", "--scope", "read", "--days", "7")
    tangram(server, "create", "b", "--scope", "read", "--never-expires")
    both = tangram(server, "create", "c", "--scope", "read", "--days", "7", "--never-expires")

    first, second = (json.loads(each.content)["expires_at"] for each in server.asked)
    left = datetime.fromisoformat(first) - datetime.now(UTC)
    assert timedelta(days=6.9) < left <= timedelta(days=7)
    assert second is None
    assert both.exit_code == 2


def test_tokens_are_renewed_and_revoked(server: Server) -> None:
    assert tangram(server, "renew", "tok_new", "--days", "30").exit_code == 0
    assert tangram(server, "revoke", "tok_new").exit_code == 0

    asked = [(each.method, each.url.path) for each in server.asked]
    assert asked == [("POST", "/api/v1/tokens/tok_new/renew"), ("DELETE", "/api/v1/tokens/tok_new")]
    assert json.loads(server.asked[0].content) == {"days": 30}


def test_join_tokens_are_created_listed_and_revoked() -> None:
    made = {
        "id": "join_1", "node": "", "prefix": "gpu-", "pool": "", "isolation": "", "uses": 2, "used": 1,
        "created_by": "ada", "expires_at": "2026-11-30T10:00:00Z", "useless": "has expired",
    }  # fmt: skip
    asked: list[httpx.Request] = []

    def handle(request: httpx.Request) -> httpx.Response:
        asked.append(request)
        if request.method == "POST":
            return httpx.Response(201, json={**made, "token": "tgj_value"})
        if request.method == "DELETE":
            return httpx.Response(204)
        return httpx.Response(200, json={"results": [made], "next": None})

    def run(*words: str) -> Result:
        shell = Shell(transport=httpx.MockTransport(handle))
        arguments = ["node", "token", *words]
        return CliRunner().invoke(verbs, arguments, obj=shell, env={"TANGRAM_TOKEN": "t"})

    created = run("create", "--prefix", "gpu-", "--uses", "2", "--minutes", "5")
    listed = run("list")
    revoked = run("revoke", "join_1")

    assert created.stdout == "tgj_value\n"
    assert json.loads(asked[0].content) == {"prefix": "gpu-", "uses": 2, "seconds": 300}
    assert listed.stdout.splitlines()[1].split()[:5] == ["join_1", "gpu-…", "any", "1", "of"]
    assert "has expired" in listed.stdout
    assert revoked.exit_code == 0
    assert (asked[-1].method, asked[-1].url.path) == ("DELETE", "/api/v1/node-tokens/join_1")
