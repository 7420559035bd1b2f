"""`tangram diff | apply | export`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx
import pytest
from click.testing import CliRunner, Result

from tangram_client import call_action
from tangram_client.cli import verbs
from tangram_client.cli.shell import Shell

CHANGES: list[dict[str, Any]] = [
    {
        "verb": "update",
        "kind": "Resource",
        "name": "api:search",
        "before": {"limit_units": 20, "learn_from_units": 2},
        "after": {"limit_units": 30, "retries": {"attempts": 7}},
    },
    {"verb": "delete", "kind": "Node", "name": "n7", "before": {"drained": True}, "after": None},
]


class Server:
    """Answers with changes, and remembers what it was asked."""

    def __init__(self) -> None:
        self.changes: list[dict[str, Any]] = CHANGES
        self.asked: list[httpx.Request] = []

    def handle(self, request: httpx.Request) -> httpx.Response:
        self.asked.append(request)
        if request.method == "GET":
            assert request.headers["accept"] == "application/yaml"
            return httpx.Response(200, text="---\nkind: Pool\n")
        if b"broken" in request.content:
            problem = {
                "title": "x",
                "status": 422,
                "code": "broken_yaml",
                "detail": "line 1, column 2",
            }
            return httpx.Response(422, json=problem)
        if request.headers.get("if-match", "").endswith('6"'):
            return httpx.Response(412, json={"title": "x", "status": 412, "code": "stale"})
        return httpx.Response(200, json={"revision": 8, "changes": self.changes})


@pytest.fixture
def server() -> Server:
    return Server()


def tangram(server: Server, *arguments: str, stdin: str = "kind: Pool\n") -> Result:
    shell = Shell(transport=httpx.MockTransport(server.handle))
    env = {"TANGRAM_URL": "http://tangram.test", "TANGRAM_TOKEN": "tgm_x", "NO_COLOR": "1"}
    return CliRunner(env=env).invoke(verbs, arguments, obj=shell, input=stdin)


def test_diff_shows_every_member_that_differs_and_fails_when_there_is_one(server: Server) -> None:
    result = tangram(server, "diff", "-", "--prune")

    assert result.exit_code == 1
    assert result.stdout.splitlines() == [
        "~ Resource api:search",
        "    learn_from_units: 2 → default",
        "    limit_units: 20 → 30",
        '    retries: {"attempts": 7}',
        "- Node n7",
        "    drained: true → default",
    ]
    (asked,) = server.asked
    assert (asked.url.path, asked.url.params["prune"]) == ("/api/v1/config/diff", "true")
    assert (asked.content, asked.headers["content-type"]) == (b"kind: Pool\n", "application/yaml")


def test_diff_of_what_is_in_force_is_silent(server: Server) -> None:
    server.changes = []
    result = tangram(server, "diff", "-")
    assert (result.exit_code, result.stdout) == (0, "")


def test_an_error_of_diff_is_no_difference(server: Server) -> None:
    result = tangram(server, "diff", "-", stdin="broken")
    assert result.exit_code == 2
    assert "line 1, column 2" in result.stderr


def test_apply_sends_the_file_and_says_what_is_in_force(server: Server, tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text("kind: Pool  # é\n")
    result = tangram(server, "apply", str(file), "-o", "json")

    assert result.exit_code == 0
    assert json.loads(result.stdout)["revision"] == 8
    assert "revision 8 is in force" in result.stderr
    (asked,) = server.asked
    assert asked.content.decode() == "kind: Pool  # é\n"
    assert asked.headers["idempotency-key"]
    assert "if-match" not in asked.headers


@pytest.mark.parametrize("verb", ["diff", "apply"])
def test_a_file_that_is_no_text_is_a_usage_error(server: Server, tmp_path: Path, verb: str) -> None:
    file = tmp_path / "config.yaml"
    file.write_bytes(b"\x1f\x8b\xff")
    result = tangram(server, verb, str(file))

    assert (result.exit_code, server.asked) == (2, [])
    assert "is not UTF-8" in result.stderr


def test_apply_on_another_revision_is_a_conflict(server: Server) -> None:
    assert tangram(server, "apply", "-", "--if-revision", "6").exit_code == 4
    assert tangram(server, "apply", "-", "--if-revision", "7").exit_code == 0


def test_export_prints_the_file_as_it_is(server: Server) -> None:
    result = tangram(server, "export")
    assert (result.exit_code, result.stdout) == (0, "---\nkind: Pool\n")


def test_a_call_with_nothing_to_send_is_a_get() -> None:
    assert call_action("t", "api:search", "/q")["call"] == {
        "target": "api:search", "method": "GET", "path": "/q"
    }  # fmt: skip
    payload = call_action("t", "api:judge", json={"a": 1}, replay_safe=True, priority=None)
    assert payload == {
        "task": "t",
        "kind": "call",
        "call": {"target": "api:judge", "method": "POST", "path": "/", "json": {"a": 1}},
        "replay_safe": True,
    }
