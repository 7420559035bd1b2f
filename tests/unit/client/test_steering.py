"""Verbs of operators: the same call from Python and from the shell."""

from __future__ import annotations

import httpx
import pytest
from click.testing import CliRunner

from tangram_client import Client
from tangram_client.cli import verbs
from tangram_client.cli.shell import Shell
from tangram_client.testing import FakeServer
from tests.unit.client.cli_runner import tangram

CALLS = {
    "task pause swe": ("/api/v1/tasks/swe/pause", b"{}"),
    "task resume swe": ("/api/v1/tasks/swe/resume", b"{}"),
    "task priority swe 5": ("/api/v1/tasks/swe/priority", b'{"priority":5}'),
    "task priority swe": ("/api/v1/tasks/swe/priority", b'{"priority":null}'),
    "task cancel swe": ("/api/v1/tasks/swe/cancel", b"{}"),
    "service evict reward": ("/api/v1/services/reward/evict", b"{}"),
    "node drain n1 --reason disk": ("/api/v1/nodes/n1/drain", b'{"reason":"disk"}'),
    "node drain n1 --finish-trajectories": ("/api/v1/nodes/n1/drain", b'{"finishing":true}'),
    "node resume n1": ("/api/v1/nodes/n1/resume", b"{}"),
    "node forget n1": ("/api/v1/nodes/n1/forget", b"{}"),
    "node revoke n1": ("/api/v1/nodes/n1/revoke", b"{}"),
}


@pytest.mark.parametrize("line", CALLS)
def test_a_line_of_the_shell_is_one_request(line: str) -> None:
    seen: list[httpx.Request] = []

    def answer(request: httpx.Request) -> httpx.Response:
        seen.append(request)
        return httpx.Response(202, json={"user_deleted": False})

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


def test_node_groups_are_listed_with_their_instances(server: FakeServer) -> None:
    instance = {
        "name": "batch-1", "state": "running", "handle": "pid 7", "machine": "gpu-1", "reason": "", "joined": False,
        "drained": True,
    }  # fmt: skip
    spec = {"engine": "ssh", "count": 2}
    group = {
        "name": "batch", "spec": spec, "wanted": 2, "ready": 0, "instances": [instance], "error": "no core is free",
    }  # fmt: skip
    server._faults.extend([lambda _: httpx.Response(200, json={"groups": [group]})] * 2)

    heading, first, second = tangram(server, "node", "groups").stdout.splitlines()

    assert server.sent[-1].path == "/api/v1/node-groups"
    assert heading.split()[:5] == ["GROUP", "ENGINE", "POOL", "WANTED", "READY"]
    assert first.split()[:5] == ["batch", "ssh", "default", "2", "0"]
    assert "no core is free" in first
    assert "running, has not joined, drained" in second
    assert tangram(server, "node", "groups", "-o", "name").stdout.split() == ["batch"]


def test_a_group_with_bounds_says_why_it_has_its_number_of_nodes(server: FakeServer) -> None:
    says = "2 more nodes would lower the mean ACT by 31%, from 12.0 s to 8.3 s"
    group = {
        "name": "batch", "spec": {"engine": "ssh", "max_count": 8}, "wanted": 4, "ready": 2, "instances": [],
        "error": "", "estimate": {"wanted": 4, "more": 2, "gain": 0.31, "reason": says},
    }  # fmt: skip
    server._faults.extend([lambda _: httpx.Response(200, json={"groups": [group]})])

    _, line = tangram(server, "node", "groups").stdout.splitlines()

    assert line.split()[:5] == ["batch", "ssh", "default", "4", "2"]
    assert says in line
