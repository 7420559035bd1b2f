"""`client.rollouts`, `client.backends`, and `tangram rollout|backend`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import partial
from typing import Any

import httpx
import pytest

from tangram_client import Client
from tangram_client.testing import FakeServer
from tests.unit.client.cli_runner import tangram

RUNNING = {
    "id": "rol_1",
    "state": "assigned",
    "stage": "run",
    "turns": 3,
    "task": "t",
    "worker": "w1",
}
FINISHED = {
    "id": "rol_1", "state": "finished", "outcome": "completed", "reward": 0.5, "task": "t",
    "segments": [{"prompt_ids": [1], "response_ids": [2]}],
}  # fmt: skip
MADE = {"rollouts": [{"id": "rol_1"}, {"id": "rol_2"}]}


def answers(server: FakeServer, *bodies: Mapping[str, Any]) -> None:
    """Let the server answer the next requests with these bodies."""
    for body in bodies:
        response = httpx.Response(200, json=body)
        server._faults.append(partial(_answer, response))


def _answer(response: httpx.Response, _: object) -> httpx.Response:
    return response


def test_a_submission_names_handler_instances_and_samples(
    server: FakeServer, client: Client
) -> None:
    answers(server, MADE)
    made = client.rollouts.submit("t", "swe", [{"id": "a"}], samples=2, llm="small", group=None)
    sent = server.sent[-1]
    assert made == ["rol_1", "rol_2"]
    assert (sent.method, sent.path) == ("POST", "/api/v1/rollouts")
    assert json.loads(sent.body) == {
        "task": "t", "handler": "swe", "instances": [{"id": "a"}], "samples": 2, "llm": "small",
    }  # fmt: skip
    assert sent.headers["idempotency-key"]


def test_wait_looks_until_the_rollout_is_finished(server: FakeServer, client: Client) -> None:
    answers(server, RUNNING, FINISHED)
    found = client.rollouts.wait("rol_1")
    assert (found.outcome, found.reward) == ("completed", 0.5)
    assert found.segments == ({"prompt_ids": [1], "response_ids": [2]},)
    assert [each.path for each in server.sent[-2:]] == ["/api/v1/rollouts/rol_1"] * 2


def test_completions_are_read_from_a_cursor(server: FakeServer, client: Client) -> None:
    answers(server, {"items": [FINISHED], "next": "7", "more": True})
    page = client.rollouts.completions("3", limit=1, tokens=False)
    assert ([each.id for each in page.items], page.next, page.more) == (["rol_1"], "7", True)


@pytest.mark.parametrize(
    ("verb", "path"),
    [("cancel", "cancel"), ("park", "park"), ("resume", "resume")],
)
def test_verbs_are_sent_to_the_rollout(
    server: FakeServer, client: Client, verb: str, path: str
) -> None:
    answers(server, {"id": "rol_1", "asked": verb})
    getattr(client.rollouts, verb)("rol_1")
    assert server.sent[-1].path == f"/api/v1/rollouts/rol_1/{path}"


def test_rollout_submit_waits_and_fails_unless_all_completed(server: FakeServer) -> None:
    answers(
        server, MADE, FINISHED, {**FINISHED, "id": "rol_2", "outcome": "failed", "reward": None}
    )
    result = tangram(
        server, "rollout", "submit", "swe", "--instance", "a", "--samples", "2", "--wait"
    )
    _, first, second = result.stdout.splitlines()
    assert first.split()[:4] == ["rol_1", "finished", "completed", "0.5"]
    assert second.split()[:4] == ["rol_2", "finished", "failed", "–"]
    assert result.exit_code == 1


def test_rollout_submit_reads_options_as_json_and_a_file_as_the_whole_body(
    server: FakeServer,
) -> None:
    answers(server, MADE, MADE)
    tangram(server, "rollout", "submit", "noop", "--option", "reward=0.5", "--option", "name=x")
    assert json.loads(server.sent[-1].body)["options"] == {"reward": 0.5, "name": "x"}
    body = {"task": "t", "handler": "swe", "instances": [{"id": "a"}], "priority": 3}
    result = tangram(server, "rollout", "submit", "--file", "-", stdin=json.dumps(body))
    assert result.stdout.split() == ["rol_1", "rol_2"]
    assert json.loads(server.sent[-1].body) == {**body, "samples": 1}
    assert tangram(server, "rollout", "submit").exit_code == 2
    assert tangram(server, "rollout", "submit", "--file", "-", stdin="[]").exit_code == 2


def test_rollout_get_shows_one_or_those_that_are_not_finished(server: FakeServer) -> None:
    answers(server, RUNNING, {"items": [RUNNING], "more": False})
    _, row = tangram(server, "rollout", "get", "rol_1").stdout.splitlines()
    assert row.split() == ["rol_1", "assigned", "–", "–", "run", "3", "t", "–", "w1"]
    assert tangram(server, "rollout", "get", "-o", "name").stdout.split() == ["rol_1"]


def test_rollout_watch_prints_each_change_until_the_end(server: FakeServer) -> None:
    answers(server, RUNNING, RUNNING, FINISHED)
    first, last = tangram(server, "rollout", "watch", "rol_1").stdout.splitlines()
    assert "run" in first
    assert last.split()[:3] == ["rol_1", "finished", "completed"]


@pytest.mark.parametrize("verb", ["cancel", "park", "resume"])
def test_rollout_verbs_send_one_request_for_all_and_name_those_that_are_refused(
    server: FakeServer, verb: str
) -> None:
    problem = {"title": "Not Found", "status": 404, "code": "not_found", "detail": "no rol_2"}
    items = [{"id": "rol_1", "status": 202}, {"id": "rol_2", "status": 404, "problem": problem}]
    answers(server, {"asked": verb, "items": items}, {"asked": verb, "items": items[:1]})
    result = tangram(server, "rollout", verb, "rol_1", "rol_2")
    [sent] = server.sent
    assert sent.path == f"/api/v1/rollouts/{verb}"
    assert json.loads(sent.body) == {"ids": ["rol_1", "rol_2"]}
    assert (result.exit_code, "no rol_2" in result.stderr) == (3, True)
    assert tangram(server, "rollout", verb, "rol_1").exit_code == 0


def test_changes_of_more_rollouts_than_a_request_may_have_are_several_requests(
    server: FakeServer, client: Client
) -> None:
    made = client.rollouts.submit("t", "noop", [{"id": "a"}], samples=1000)
    made += client.rollouts.submit("t", "noop", [{"id": "b"}])
    before = len(server.sent)
    found = client.rollouts.park_many(made, reason="later")
    assert [(each.id, each.status) for each in found] == [(each, 202) for each in made]
    assert [len(json.loads(sent.body)["ids"]) for sent in server.sent[before:]] == [1000, 1]
    assert {view["state"] for view in server.rollouts.views.values()} == {"parked"}


def test_backends_are_added_listed_and_drained(server: FakeServer) -> None:
    backend = {
        "pool": "small", "name": "a:1", "number": 1, "address": "http://a:1", "seats": 4, "taken": 1,
        "weights_version": 2, "drained": True,
    }  # fmt: skip
    pools = {"pools": [{"pool": "small", "weights_version": 2, "backends": [backend]}]}
    answers(server, {"pool": "small", "backend": "a:1"}, pools, {"pool": "small", "backend": "a:1"})
    added = tangram(server, "backend", "add", "http://a:1/v1", "--pool", "small", "--seats", "4")
    assert added.stdout == "a:1\n"
    assert json.loads(server.sent[-1].body) == {
        "pool": "small",
        "address": "http://a:1/v1",
        "seats": 4,
    }
    _, row = tangram(server, "backend", "list").stdout.splitlines()
    assert row.split() == ["small", "a:1", "http://a:1", "1", "of", "4", "2", "drained"]
    tangram(server, "backend", "drain", "a:1", "--pool", "small")
    assert server.sent[-1].path == "/api/v1/backends/small/a:1/drain"
