"""History over REST: isolated by project, filtered, page by page, with few queries."""

from __future__ import annotations

import pytest

from contract.responses import ActionResponse, WaitDetails
from domain.action import ActionState, Kind, Outcome
from domain.errors import Unavailable
from domain.principals import Scope
from tangram_web.lib import scheduler_client
from tangram_web.records.models import ActionRecord
from tangram_web.records.projection import project
from tests.integration.web.conftest import pointers
from tests.integration.web.journal import Journal, a_node, an_action, an_id

LISTS = ["actions", "trajectories", "tasks", "nodes"]


@pytest.fixture
def history(defaults):
    """Twelve actions of two projects; the last two are not finished."""
    journal = Journal()
    journal.write([a_node()])
    for number in range(10):
        owner = ("default", "other")[number % 2]
        action = an_action(
            number, kind=Kind.EXEC, project=owner, task=f"task-{number}", trajectory=f"t-{number}",
            door="e2b" if number == 6 else "",
        )  # fmt: skip
        journal.submit(action)
        journal.grant(action)
        journal.finish(action, Outcome.TIMEOUT if number == 4 else Outcome.COMPLETED)
    journal.submit(an_action(10), an_action(11, project="other"))
    project(journal.entries)


def ids(answer) -> list[str]:
    assert answer.status_code == 200, answer.content
    return [row.get("id", row.get("name")) for row in answer.json()["results"]]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("actions", [an_id(number) for number in (10, 8, 6, 4, 2, 0)]),
        ("trajectories", ["t-8", "t-6", "t-4", "t-2", "t-0"]),
        ("tasks", ["task-8", "task-6", "task-4", "task-2", "task-1", "task-0"]),
        ("nodes", ["n1"]),
    ],
)
def test_list_shows_the_callers_project_newest_first(history, caller, name, expected):
    client = caller(Scope.READ, project="default")

    assert ids(client.get(f"/api/v1/{name}")) == expected


def test_rows_of_actions_have_their_exit_code(history, caller):
    client = caller(Scope.READ, project="default")
    ActionRecord.objects.filter(pk=an_id(0)).update(
        exit_code=3, result={"exit_code": 3, "stdout": "text"}
    )

    rows = {row["id"]: row for row in client.get("/api/v1/actions").json()["results"]}
    whole = client.get("/api/v1/actions", {"include": "result"}).json()["results"]

    assert rows[an_id(0)]["result"] == {"exit_code": 3}
    assert rows[an_id(10)]["result"] is None
    assert {row["id"]: row for row in whole}[an_id(0)]["result"]["stdout"] == "text"
    assert client.get("/api/v1/actions", {"include": "spec"}).status_code == 422


def test_rows_of_queued_actions_say_why_they_wait(history, caller, monkeypatch):
    asked = []

    def live_actions(ids, project):
        asked.append((list(ids), project))
        waiting = WaitDetails("short_of", "waits for 1 of cpu:n1")
        return {ids[0]: ActionResponse(id=ids[0], state=ActionState.QUEUED, waiting=waiting)}

    monkeypatch.setattr(scheduler_client, "live_actions", live_actions)
    client = caller(Scope.READ, project="default")

    first, second, *_ = client.get("/api/v1/actions", {"include": "waiting"}).json()["results"]
    assert asked == [([an_id(10)], "default")]
    assert first["waiting"]["reason"] == "waits for 1 of cpu:n1"
    assert second["waiting"] is None

    def away(ids, project):
        raise Unavailable("no loop")

    monkeypatch.setattr(scheduler_client, "live_actions", away)
    assert client.get("/api/v1/actions", {"include": "waiting"}).status_code == 200


@pytest.mark.parametrize("path", ["trajectories/t-1", "tasks/task-1"])
def test_object_of_another_project_is_not_found(history, caller, path):
    stranger = caller(Scope.READ, project="third")
    administrator = caller(Scope.READ)

    assert stranger.get(f"/api/v1/{path}").status_code == 404
    assert administrator.get(f"/api/v1/{path}", {"project": "other"}).status_code in {200, 404}


def test_administrator_names_the_project_of_an_object(history, caller):
    client = caller(Scope.READ)

    assert client.get("/api/v1/trajectories/t-1").status_code == 404
    found = client.get("/api/v1/trajectories/t-1", {"project": "other"})
    assert found.json()["task"] == "task-1"


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ({"state": "queued"}, [11, 10]),
        ({"state": "finished", "limit": "1"}, [9]),
        ({"outcome": "timeout"}, [4]),
        ({"task": "task-3"}, [3]),
        ({"trajectory": "t-3"}, [3]),
        ({"kind": "noop"}, [11, 10]),
        ({"node": "n1", "limit": "2"}, [9, 8]),
        ({"door": "e2b"}, [6]),
        ({"door": "native", "node": "n1", "limit": "4"}, [9, 8, 7, 5]),
        ({"since": "2030-01-01T00:00:00Z"}, []),
        ({"since": "2020-01-01T00:00:00Z", "limit": "1"}, [11]),
    ],
    ids=str,
)
def test_actions_are_filtered(history, caller, query, expected):
    answer = caller(Scope.READ).get("/api/v1/actions", query)

    assert ids(answer) == [an_id(number) for number in expected]


def test_pages_lead_to_every_action_once(history, caller):
    client = caller(Scope.READ)
    seen = []
    address = "/api/v1/actions?limit=5"
    while address:
        answer = client.get(address)
        seen += ids(answer)
        address = answer.json()["next"]

    assert seen == [an_id(number) for number in range(11, -1, -1)]


@pytest.mark.parametrize(
    ("query", "pointer"),
    [
        ({"limit": "0"}, "?limit"),
        ({"limit": "many"}, "?limit"),
        ({"limit": "9" * 40}, "?limit"),
        ({"cursor": "%%%"}, "?cursor"),
        ({"cursor": "cD0A"}, "?cursor"),
        ({"state": "sleeping"}, "?state"),
        ({"since": "yesterday"}, "?since"),
        ({"task": "a\0b"}, "?task"),
    ],
    ids=str,
)
def test_query_that_makes_no_sense_is_refused_by_name(history, caller, query, pointer):
    answer = caller(Scope.READ).get("/api/v1/actions", query)

    assert answer.status_code == 422
    assert pointers(answer) == [pointer]


@pytest.mark.parametrize("name", LISTS)
def test_list_takes_two_queries_however_long_it_is(
    history, caller, name, django_assert_num_queries
):
    client = caller(Scope.READ)
    client.get("/api/v1/nodes")  # the token's use is noted once a minute

    with django_assert_num_queries(2):
        client.get(f"/api/v1/{name}?limit=2")
    with django_assert_num_queries(2):
        client.get(f"/api/v1/{name}?limit=500")


@pytest.mark.parametrize("name", LISTS)
@pytest.mark.parametrize("method", ["put", "patch", "delete"])
def test_history_cannot_be_written(history, caller, name, method):
    answer = getattr(caller(Scope.ADMIN), method)(f"/api/v1/{name}", {})

    assert answer.status_code == 405


@pytest.mark.parametrize(
    ("name", "query", "expected"),
    [
        ("actions", "outcome:timeout", [an_id(4)]),
        ("actions", "state:queued", [an_id(10)]),
        ("actions", "task:task-1*,task-8", [an_id(10), an_id(8)]),
        ("actions", "-state:queued door:native task:task-*", [an_id(8), an_id(4), an_id(2), an_id(0)]),
        ("trajectories", "id:t-8,t-2", ["t-8", "t-2"]),
        ("tasks", "actions:>0 id:task-1*", ["task-1"]),
    ],
)  # fmt: skip
def test_a_list_takes_the_filter_of_the_explorer(history, caller, name, query, expected):
    client = caller(Scope.READ, project="default")

    assert ids(client.get(f"/api/v1/{name}", {"q": query})) == expected


def test_a_filter_that_cannot_be_read_names_its_terms_and_cures(history, caller):
    answer = caller(Scope.READ).get("/api/v1/actions", {"q": "stat:queued exit:high"})

    assert answer.status_code == 422
    assert answer["Content-Type"].startswith("application/problem+json")
    first, second = answer.json()["errors"]
    assert first == {
        "pointer": "?q",
        "detail": "stat:queued (character 1): actions have no filter stat; did you mean state:?",
    }
    assert "exit:high (character 13)" in second["detail"]
