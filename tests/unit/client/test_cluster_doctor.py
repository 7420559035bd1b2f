"""`tangram doctor --cluster`: findings by severity, each with its cure; 1 where there is a fault."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

from tangram_client.testing import FakeServer
from tests.unit.client.cli_runner import tangram

EXAMINED = {"nodes": 2, "doors": 2, "parts": 4, "groups": 1}
FAULT = {
    "severity": "fault", "kind": "disk_short", "subject": "n1",
    "sentence": "Node n1 has a full disk [/data].", "cure": "Delete files.",
}  # fmt: skip
NOTE = {
    "severity": "note", "kind": "version", "subject": "n2",
    "sentence": "The version of node n2 is 0.1.0.", "cure": "upgrade it",
}  # fmt: skip


def with_findings(server: FakeServer, *findings: dict[str, str]) -> FakeServer:
    body: dict[str, Any] = {"in_order": not findings, "examined": EXAMINED, "findings": findings}
    handle = server.handle

    def answer(request: httpx.Request) -> httpx.Response:
        if request.url.path == "/api/v1/cluster/checks":
            return httpx.Response(200, json=body)
        return handle(request)

    server.transport = httpx.MockTransport(answer)
    return server


def test_a_healthy_cluster_says_what_was_examined_and_ends_with_0(server: FakeServer) -> None:
    result = tangram(with_findings(server), "doctor", "--cluster")

    assert result.exit_code == 0
    assert result.stdout == "No faults. Examined: 2 nodes, 2 doors, 4 parts, 1 groups.\n"


def test_findings_are_grouped_with_their_cures_and_a_fault_ends_with_1(server: FakeServer) -> None:
    result = tangram(with_findings(server, FAULT, NOTE), "doctor", "--cluster")

    assert result.exit_code == 1
    assert [line.strip() for line in result.stdout.splitlines()] == [
        "Faults", "disk short  Node n1 has a full disk [/data].", "→ Delete files.",
        "Notes", "version  The version of node n2 is 0.1.0.", "→ upgrade it",
        "1 fault. Examined: 2 nodes, 2 doors, 4 parts, 1 groups.",
    ]  # fmt: skip


def test_a_note_alone_ends_with_0(server: FakeServer) -> None:
    assert tangram(with_findings(server, NOTE), "doctor", "--cluster").exit_code == 0


@pytest.mark.parametrize("arguments", [("--json",), ("-o", "json")])
def test_the_list_of_findings_is_json(server: FakeServer, arguments: tuple[str, ...]) -> None:
    result = tangram(with_findings(server, FAULT, NOTE), "doctor", "--cluster", *arguments)

    assert json.loads(result.stdout) == [FAULT, NOTE]
    assert result.exit_code == 1


def test_a_server_of_an_earlier_version_is_named(server: FakeServer) -> None:
    result = tangram(server, "doctor", "--cluster")

    assert result.exit_code == 1
    assert "of an earlier version" in result.stderr
