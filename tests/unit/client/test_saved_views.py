"""`client.views`, and `tangram view`."""

from __future__ import annotations

import json
from typing import Any

import httpx

from tangram_client import Client
from tangram_client.aio import AsyncClient
from tangram_client.testing import FakeServer
from tests.unit.client.cli_runner import tangram
from tests.unit.client.test_rollouts import answers

VIEW: dict[str, Any] = {
    "id": "view_1", "name": "Slow", "list": "actions", "q": "act:>5s", "sort": "-act", "project": None,
}  # fmt: skip


def sent(server: FakeServer) -> list[tuple[str, str, Any]]:
    return [
        (each.method, each.path.removeprefix("/api/v1"), json.loads(each.body or "null"))
        for each in server.sent
    ]


def test_views_are_sent_as_the_api_takes_them(server: FakeServer) -> None:
    answers(server, {"views": [VIEW]}, *[VIEW] * 4)
    with Client("http://fake", "t", project="p", transport=server.transport) as client:
        found = client.views.list("actions")
        client.views.save("Slow", "act:>5s", sort="-act", columns=("act",))
        client.views.rename("Slow", "Slow ones")
        client.views.share("Slow ones/2", None)
        client.views.delete("view_1")

    assert found == (VIEW,)
    assert dict(server.sent[0].params) == {"mine": "true", "list": "actions"}
    assert sent(server)[1:] == [
        ("POST", "/views", {"name": "Slow", "q": "act:>5s", "list": "actions", "sort": "-act",
                            "project": "p", "columns": ["act"]}),
        ("PATCH", "/views/Slow", {"name": "Slow ones"}),
        ("PATCH", "/views/Slow ones/2", {"project": None}),
        ("DELETE", "/views/view_1", None),
    ]  # fmt: skip


async def test_a_view_of_a_client_without_a_project_is_of_its_account(server: FakeServer) -> None:
    answers(server, VIEW)
    async with AsyncClient("http://fake", "t", transport=server.transport) as client:
        await client.views.save("All")

    assert sent(server) == [("POST", "/views", {"name": "All", "q": "", "list": "actions"})]


def test_the_command_line_lists_saves_shares_and_deletes_views(server: FakeServer) -> None:
    answers(server, {"views": [VIEW]}, VIEW, VIEW, {**VIEW, "project": "p"}, VIEW)
    listed = tangram(server, "view", "list").stdout.splitlines()[-1]
    saved = tangram(server, "view", "save", "Slow", "act:>5s", "--sort", "-act", "--project", "p")
    renamed = tangram(server, "view", "rename", "Slow", "Slower")
    shared = tangram(server, "view", "share", "Slower", "--project", "p")
    deleted = tangram(server, "view", "delete", "Slower")

    assert listed.split() == "view_1 Slow actions yours alone act:>5s -act".split()
    assert (saved.stdout, saved.exit_code, renamed.exit_code) == ("view_1\n", 0, 0)
    assert "is shared with p" in shared.stderr
    assert "Slower is deleted" in deleted.stderr
    assert sent(server)[1][2]["project"] == "p"
    assert sent(server)[3:] == [
        ("PATCH", "/views/Slower", {"project": "p"}),
        ("DELETE", "/views/Slower", None),
    ]


def test_the_command_line_says_why_a_view_is_not_saved(server: FakeServer) -> None:
    problem = {"title": "Unprocessable Content", "status": 422, "detail": "did you mean state:?"}
    server._faults.append(lambda _: httpx.Response(422, json=problem))

    refused = tangram(server, "view", "save", "a", "stat:x")

    assert refused.exit_code == 1
    assert "did you mean state:?" in refused.stderr
