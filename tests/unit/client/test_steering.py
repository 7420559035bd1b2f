"""Verbs of operators: the same call from Python and from the shell."""

from __future__ import annotations

import httpx
import pytest
from click.testing import CliRunner

from tangram_client import Client
from tangram_client.cli import verbs
from tangram_client.cli.shell import Shell

CALLS = {
    "task pause swe": ("/api/v1/tasks/swe/pause", b"{}"),
    "task resume swe": ("/api/v1/tasks/swe/resume", b"{}"),
    "task priority swe 5": ("/api/v1/tasks/swe/priority", b'{"priority":5}'),
    "task priority swe": ("/api/v1/tasks/swe/priority", b'{"priority":null}'),
    "task cancel swe": ("/api/v1/tasks/swe/cancel", b"{}"),
    "service evict reward": ("/api/v1/services/reward/evict", b"{}"),
    "node drain n1 --reason disk": ("/api/v1/nodes/n1/drain", b'{"reason":"disk"}'),
    "node resume n1": ("/api/v1/nodes/n1/resume", b"{}"),
    "node forget n1": ("/api/v1/nodes/n1/forget", b"{}"),
}


@pytest.mark.parametrize("line", CALLS)
def test_a_line_of_the_shell_is_one_request(line: str) -> None:
    seen: list[httpx.Request] = []

    def answer(request: httpx.Request) -> httpx.Response:
        seen.append(request)
        return httpx.Response(202, json={})

    shell = Shell(url="http://tangram", token="t", transport=httpx.MockTransport(answer))
    result = CliRunner().invoke(verbs, line.split(), obj=shell)

    assert result.exit_code == 0, result.output
    (request,) = seen
    assert (request.url.path, request.content.replace(b" ", b"")) == CALLS[line]
    assert request.headers["User-Agent"] == "tangram-cli"


def test_python_names_the_project() -> None:
    seen: list[str] = []

    def answer(request: httpx.Request) -> httpx.Response:
        seen.append(str(request.url))
        return httpx.Response(202, json={})

    transport = httpx.MockTransport(answer)
    with Client("http://tangram", "t", project="vision", transport=transport) as client:
        client.pause_task("swe")

    assert seen == ["http://tangram/api/v1/tasks/swe/pause?project=vision"]
