"""The explorer: what filters select, orders page by page, counts, completion, and saved views."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import parse_qs

import pytest
from django.contrib.auth import get_user_model
from django.test import Client

from domain.errors import Unavailable
from domain.ids import action_id
from tangram_web.accounts.models import Membership, Role
from tangram_web.explorer import facets, listing
from tangram_web.explorer.conditions import all_rows_of
from tangram_web.explorer.fields import ACTIONS, TABS, Tab
from tangram_web.explorer.language import parse
from tangram_web.explorer.models import SavedView
from tangram_web.explorer.orders import orders_of
from tangram_web.explorer.reading import read_page
from tangram_web.explorer.saved_views import matching_count, save_view
from tangram_web.lib import scheduler_client
from tangram_web.live.access import Sight
from tangram_web.pools.models import Project
from tangram_web.records.models import ActionRecord, RolloutRecord, TaskRecord, TrajectoryRecord

AT = datetime(2026, 11, 20, 12, tzinfo=UTC)
NOW = AT.timestamp()


@pytest.fixture
def staff(defaults: None, redis_bus: Any) -> Client:
    client = Client()
    client.force_login(get_user_model().objects.create_user("ops", is_staff=True))
    return client


def name(number: int, ago: float) -> str:
    return str(action_id(int((NOW - ago) * 1000), number.to_bytes(8, "big")))


def action(number: int, ago: float, **given: Any) -> str:
    """Store an action that was submitted so many seconds ago; finished, unless it says a state."""
    ended = {
        "state": "finished", "outcome": "completed", "finished_seq": number, "act_seconds": float(number),
        "queue_seconds": number / 4, "overhead_seconds": 0.1, "execution_seconds": number / 2,
        "exit_code": 0, "node": "n1", "finished_at": AT,
    }  # fmt: skip
    row = {"project": "default", "task": "swe", "trajectory": "t-1", "kind": "exec",
           "submitted_at": AT - timedelta(seconds=ago), **({} if "state" in given else ended), **given}  # fmt: skip
    return str(ActionRecord.objects.create(id=name(number, ago), **row).pk)


@pytest.fixture
def some(db: None) -> dict[int, str]:
    """Eight actions: five finished, one running, two waiting, one of them for two hours."""
    TaskRecord.objects.create(key="default/swe", project="default", name="swe", opened_at=AT)
    TaskRecord.objects.create(key="default/math", project="default", name="math", opened_at=AT)
    return {
        1: action(1, 7000),
        2: action(2, 3000, exit_code=137, door="e2b"),
        3: action(3, 2000, exit_code=1, task="math", trajectory=None),
        4: action(4, 1000, outcome="timeout", exit_code=None),
        5: action(5, 500, outcome="expired", exit_code=None, act_seconds=None, queue_seconds=None,
                  execution_seconds=None, node=None),
        6: action(6, 7200, state="queued", cost={"cpu": [4]}),
        7: action(7, 60, state="queued", cost={"api:x": [1]}, task="math"),
        8: action(8, 30, state="running", node="n2", started_at=AT - timedelta(seconds=10),
                  granted_at=AT - timedelta(seconds=12)),
    }  # fmt: skip


def found(text: str, order: str = "", tab: Tab = ACTIONS, sight: Sight | None = None) -> list[str]:
    which = next((each for each in orders_of(tab) if each.name == order), orders_of(tab)[0])
    query = parse(tab, text)
    page = read_page(tab, query, sight or Sight(), which, falls=which.falls, now=NOW)
    return [row.pk for row in page.rows]


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        ("", [8, 7, 5, 4, 3, 2, 1, 6]),
        ("since:1h", [8, 7, 5, 4, 3, 2, 6]),  # the one that waits is listed all the same
        ("until:40m", [2, 1, 6]),
        ("state:queued", [7, 6]),
        ("state:queued,finished", [7, 5, 4, 3, 2, 1, 6]),
        ("-state:finished", [8, 7, 6]),
        ("exit:!=0", [3, 2]),
        ("exit:137", [2]),
        ("exit:none", [8, 7, 5, 4, 6]),
        ("-exit:0,1", [8, 7, 5, 4, 2, 6]),
        ("exit:0.5..200", [3, 2]),
        ("outcome:timeout,expired", [5, 4]),
        ("outcome:none", [8, 7, 6]),
        ("act:>2s", [8, 7, 4, 3, 6]),
        ("act:<61s state:queued", [7]),
        ("act:2s..4s", [4, 3, 2]),
        ("queue:>30s", [7, 6]),
        ("execution:>=10s", []),
        ("execution:>5s", [8]),
        ("task:ma*", [7, 3]),
        ("task:none*", []),
        ("-task:swe", [7, 3]),
        ("trajectory:none", [3]),
        ("door:native -state:queued", [8, 5, 4, 3, 1]),
        ("node:none", [7, 5, 6]),
        ("waits:cores", [6]),
        ("waits:api*", [7]),
        ("math", [7, 3]),
        ("kind:call", []),
    ],
)
def test_a_filter_selects(some: dict[int, str], text: str, numbers: list[int]) -> None:
    assert found(text) == [some[number] for number in numbers]


def test_an_id_is_found_by_its_beginning(some: dict[int, str]) -> None:
    assert found(some[3]) == found(f"id:{some[3][:18]}*") == [some[3]]
    assert found("id:act_9") == []


@pytest.mark.parametrize(
    ("order", "numbers"),
    [
        ("submitted", [8, 7, 5, 4, 3, 2, 1, 6]),
        ("act", [6, 7, 8, 4, 3, 2, 1, 5]),  # what still counts is compared with what has ended
        ("queue", [6, 7, 4, 3, 2, 1, 8, 5]),
        ("execution", [8, 4, 3, 2, 1, 7, 5, 6]),
        ("finished", [5, 4, 3, 2, 1, 8, 7, 6]),
        ("exit", [2, 3, 1, 8, 7, 5, 4, 6]),
        ("task", [3, 7, 6, 1, 2, 4, 5, 8]),
        ("trajectory", [6, 1, 2, 4, 5, 7, 8, 3]),
    ],
)
def test_an_order_has_rows_without_a_value_last(
    some: dict[int, str], order: str, numbers: list[int]
) -> None:
    assert found("", order) == [some[number] for number in numbers]


def fill() -> None:
    for number in range(40):
        live = number % 7 == 0
        action(
            number, 100 - number, state="queued" if number % 2 else "running"
        ) if live else action(
            number, 5000 - number % 5, act_seconds=float(number % 3), exit_code=number % 4 or None
        )
    for number in range(30):
        given = {"project": "default", "opened_at": AT - timedelta(seconds=number % 4)}
        TrajectoryRecord.objects.create(
            key=f"default/t-{number}", name=f"t-{number}", task=f"k{number % 3}", actions=number % 5, **given
        )  # fmt: skip
        TaskRecord.objects.create(key=f"default/k{number}", name=f"k{number}", **given)
        RolloutRecord.objects.create(
            id=f"rol_{number:028x}", project="default", task="k", submitted_at=AT, turns=number % 3,
            **({"state": "finished", "finished_seq": number, "reward": number % 2, "outcome": "completed"}
               if number % 3 else {"state": "waiting"}),
        )  # fmt: skip


@pytest.mark.parametrize(
    ("pool", "found"),
    [("gpu", {0, 1}), ("default", {2, 3}), ("other", set()), ("g*", {0, 1})],
)
def test_rows_are_found_by_the_pool_that_the_scheduler_uses(
    defaults: None, pool: str, found: set[int]
) -> None:
    """Of the request, else of the task, else of the project; a task without a row has none."""
    TaskRecord.objects.create(
        key="default/bound", project="default", name="bound", pool="gpu", opened_at=AT
    )
    made = [
        action(0, 10, task="free", pool="gpu"),
        action(1, 10, task="bound"),
        action(2, 10, task="free", state="queued"),
        action(3, 10, task="bound", pool="default"),
    ]

    rows = all_rows_of(ACTIONS, parse(ACTIONS, f"pool:{pool}"), Sight(), NOW)

    assert {made.index(each) for each in rows.values_list("pk", flat=True)} == found


@pytest.mark.parametrize("tab", TABS.values(), ids=lambda tab: tab.name)
def test_pages_of_any_order_have_each_row_once_in_the_order_of_one_page(db: None, tab: Tab) -> None:
    fill()
    for order in orders_of(tab):
        for falls in (True, False):
            whole = read_page(tab, parse(tab, ""), Sight(), order, falls=falls, now=NOW, limit=500)
            rows: list[str] = []
            cursor = None
            while True:
                page = read_page(tab, parse(tab, ""), Sight(), order, falls=falls, now=NOW + len(rows),
                                 cursor=cursor, limit=7)  # fmt: skip
                rows += [row.pk for row in page.rows]
                cursor = page.next
                if cursor is None:
                    break
            assert rows == [row.pk for row in whole.rows], (order.name, falls)
            assert len(rows) == len(set(rows)) == (40 if tab is ACTIONS else 30)


def test_a_page_leads_to_the_next_in_its_order(staff: Client, monkeypatch: pytest.MonkeyPatch) -> None:  # fmt: skip
    monkeypatch.setattr(listing, "read_page", lambda *a, **k: read_page(*a, **{**k, "limit": 5}))
    for number in range(8):
        action(number, 5000 - number)
    first = staff.get("/actions/?q=&sort=act").context["found"]
    second = staff.get(f"/actions/?{first.older}").context["found"]

    assert parse_qs(first.older)["sort"] == ["act"]
    assert [row.act_seconds for row in (*first.rows, *second.rows)] == [float(n) for n in range(8)]
    assert second.older == ""
    assert parse_qs(second.newest) == {"sort": ["act"]}


def test_counts_have_facets_and_a_heatmap(staff: Client, some: dict[int, str]) -> None:
    shown = staff.get("/explorer/actions/counts?q=").context
    values = {each.field.name: {v.text: v.count for v in each.values} for each in shown["counted"].facets}  # fmt: skip

    assert shown["counted"].text == "8"
    assert values["state"] == {"finished": 5, "queued": 2, "running": 1}
    assert values["exit"] == {"none": 5, "0": 1, "137": 1, "1": 1}
    assert values["door"] == {"native": 7, "e2b": 1}
    assert sum(cell.count for cell in shown["heat"].cells) == 4


def test_a_pressed_facet_adds_its_filter_and_takes_it_away(
    staff: Client, some: dict[int, str]
) -> None:
    def state(query: str) -> dict[str, Any]:
        shown = staff.get("/explorer/actions/counts", {"q": query}).context["counted"].facets
        return {v.text: v for v in next(f for f in shown if f.field.name == "state").values}

    assert state("task:swe")["queued"].query == "task:swe state:queued"
    assert state("state:queued task:swe")["queued"].query == "task:swe"
    assert state("state:queued task:swe")["queued"].chosen


def test_counts_are_exact_to_a_bound_and_say_so_beyond(
    staff: Client, some: dict[int, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(facets, "EXACT", 8)
    assert staff.get("/explorer/actions/counts?q=").context["counted"].text == "8"
    monkeypatch.setattr(facets, "EXACT", 7)
    shown = staff.get("/explorer/actions/counts?q=")
    assert shown.context["counted"].text == "7+"
    assert "Of the latest 7" in shown.content.decode()


def test_completion_has_names_then_values_with_counts_and_names_what_finds_nothing(
    staff: Client, some: dict[int, str]
) -> None:
    def complete(query: str, typed: str) -> Any:
        answer = staff.get("/explorer/actions/complete.json", {"q": query, "typed": typed}).json()
        return [(each["text"], each["count"]) for each in answer["options"]], answer["problem"]

    assert complete("", "ex") == ([("exit:", None), ("execution:", None)], "")
    assert complete("", "-task:s")[0] == [("-task:swe", 6)]
    assert complete("", "state:queued,r")[0] == [("state:queued,running", 1)]
    values, problem = complete("state:queued", "exit:")
    assert ("exit:none", 2) in values
    assert ("exit:!=0", 0) in values
    assert "only exit:none finds anything" in problem
    assert "did you mean state:?" in complete("", "stat:q")[1]


def test_reasons_are_of_those_actions_that_a_reader_sees(
    staff: Client, some: dict[int, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[list[str]] = []

    def live(ids: list[str]) -> dict[str, Any]:
        asked.append(ids)
        raise Unavailable("the scheduler does not answer")

    monkeypatch.setattr(scheduler_client, "live_actions", live)
    answer = staff.get("/explorer/reasons.json", {"ids": f"{some[6]},act_none"}).json()

    assert answer == {"reasons": {}, "problem": "the scheduler does not answer"}
    assert asked == [[some[6]]]


def test_what_is_typed_joins_the_query_of_the_address(staff: Client) -> None:
    answer = staff.get("/actions/", {"q": "task:swe", "add": "exit:!=0", "sort": "-act"})

    assert parse_qs(answer["Location"].partition("?")[2]) == {
        "q": ["task:swe exit:!=0"],
        "sort": ["-act"],
    }


def test_mistakes_select_nothing_and_are_named(staff: Client, some: dict[int, str]) -> None:
    text = staff.get("/actions/", {"q": "task:swe stat:queued"}).content.decode()

    assert "stat:queued (character 10): actions have no filter stat; did you mean state:?" in text
    assert some[1] not in text


def test_columns_are_of_the_address_or_remembered(staff: Client, some: dict[int, str]) -> None:
    given = staff.get("/actions/?q=&columns=act,reward").context["found"]
    staff.post("/explorer/actions/columns", {"columns": "node,act", "q": "task:swe"})
    kept = staff.get("/actions/?q=").context["found"]

    assert [each.name for each in given.columns] == ["command", "act", "reward"]
    assert [each.name for each in kept.columns] == ["command", "node", "act"]
    assert "columns" not in kept.link()
    assert "columns=command%2Cact%2Creward" in given.link()


def test_a_view_is_saved_opened_with_and_deleted(staff: Client, some: dict[int, str]) -> None:
    staff.post("/explorer/actions/views",
               {"name": "Failing", "query": "exit:!=0", "order": "-act", "columns": ""})  # fmt: skip
    view = SavedView.objects.get()
    listed = staff.get("/actions/").content.decode()
    staff.post(f"/explorer/views/{view.id}", {"verb": "default"})
    opened = staff.get("/actions/").context["found"]
    count = matching_count(view, now=NOW)
    staff.post(f"/explorer/views/{view.id}", {"verb": "delete"})

    assert ">Failing</a>" in listed
    assert opened.text == "exit:!=0"
    assert len(opened.rows) == count == 2
    assert staff.get("/actions/").context["found"].text == "since:1h"


def test_a_view_that_cannot_be_is_refused_with_the_reason(staff: Client) -> None:
    for given, reason in (
        ({"name": "a", "query": "stat:x"}, "did you mean state:?"),
        ({"name": " ", "query": ""}, "1 to 80 printable characters"),
        ({"name": "a", "query": "", "order": "moon"}, "no order"),
        ({"name": "a", "query": "", "project": "nowhere"}, "no project"),
    ):
        answer = staff.post("/explorer/actions/views", given)
        assert answer.status_code == 422
        assert reason in answer.content.decode()
    assert not SavedView.objects.exists()


def test_views_are_seen_by_members_of_their_project_alone(staff: Client) -> None:
    Project.objects.create(name="secret", default_pool_id="default")
    users = get_user_model().objects
    for project in ("default", "secret", None):
        SavedView.objects.create(owner=users.get(username="ops"), tab="actions", query="",
                                 name=f"of {project}", project_id=project)  # fmt: skip
    member = Client()
    member.force_login(users.create_user("ada"))
    Membership.objects.create(user=users.get(username="ada"), project_id="default", role=Role.VIEWER)  # fmt: skip

    text = member.get("/actions/").content.decode()
    theirs = SavedView.objects.get(name="of default")
    answer = member.post(f"/explorer/views/{theirs.id}", {"verb": "delete"})

    assert "of default" in text
    assert "of secret" not in text
    assert "of None" not in text
    assert answer.status_code == 404
    assert SavedView.objects.count() == 3


def test_the_api_lists_in_the_orders_of_the_explorer_page_by_page(
    staff: Client, some: dict[int, str]
) -> None:
    order, address, pages = [], "/api/v1/actions?sort=-act&q=state:finished&limit=2", 0
    while address:
        answer = staff.get(address).json()
        order += [row["id"] for row in answer["results"]]
        address, pages = answer["next"], pages + 1

    assert order == [
        some[number] for number in (4, 3, 2, 1, 5)
    ]  # one expired: it has no completion time
    assert pages == 3
    rising = staff.get("/api/v1/tasks?sort=name").json()["results"]
    assert [row["id"] for row in rising] == ["math", "swe"]
    assert staff.get("/api/v1/trajectories?sort=-opened&q=task:swe").json()["results"] == []


@pytest.mark.parametrize(
    ("query", "named"),
    [
        ("sort=speed", "sort"),
        ("sort=act&task=swe", "task"),
        ("sort=act&cursor=nothing", "cursor"),
        ("sort=act&q=state:no", "q"),
        ("sort=act&limit=0", "limit"),
    ],
)
def test_a_sorted_list_names_the_parameter_that_is_wrong(
    staff: Client, query: str, named: str
) -> None:
    refused = staff.get(f"/api/v1/actions?{query}")

    assert refused.status_code == 422
    assert refused.json()["errors"][0]["pointer"] == f"?{named}"


def test_the_api_lists_saved_views_of_a_project_and_of_no_person(staff: Client) -> None:
    user = get_user_model().objects.get(username="ops")
    save_view(user, tab="actions", name="Slow", query="act:>5s", order="-act", project="default")
    save_view(user, tab="tasks", name="Alone", query="actions:>1")

    found = staff.get("/api/v1/views?list=actions").json()["views"]

    assert [(each["name"], each["q"], each["sort"], each["project"]) for each in found] == [
        ("Slow", "act:>5s", "-act", "default")
    ]
    assert staff.get("/api/v1/views?list=tasks").json() == {"views": []}
    assert staff.get("/api/v1/views?list=cats").status_code == 422
