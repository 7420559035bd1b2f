"""No address brings a page down, and nothing that users supply becomes markup."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote

import pytest
from django.contrib.auth import get_user_model
from django.test import Client

from tangram_web.dashboard.middleware import POLICY
from tangram_web.lib import scheduler_client
from tangram_web.records.models import ActionRecord, TaskRecord, TrajectoryRecord

NOW = datetime(2026, 11, 20, 12, tzinfo=UTC)
MARKUP = "</script><svg onload=alert(1)>\"'"
LONG = "x" * 10_000
LISTS = ("/actions/", "/trajectories/", "/tasks/", "/export/actions.csv", "/export/tasks.json")
NONSENSE = (LONG, MARKUP, "\0", "%", "../../etc/passwd", "' OR 1=1 --", "\u202e\ud7ff", "-1", "NaN",
            "2026-13-45T00:00:00Z", "0001-01-01T00:00:00+14:00")  # fmt: skip


@pytest.fixture
def browser(defaults: None, redis_bus: Any, monkeypatch: pytest.MonkeyPatch) -> Client:
    client = Client()
    client.force_login(get_user_model().objects.create_user("ops", is_staff=True))
    monkeypatch.setattr(scheduler_client, "ANSWER_SECONDS", 0.01)
    return client


@pytest.mark.parametrize("text", NONSENSE, ids=range(len(NONSENSE)))
@pytest.mark.parametrize("page", LISTS)
def test_a_search_for_anything_is_answered(browser: Client, page: str, text: str) -> None:
    for name in ("task", "trajectory", "project", "state", "outcome", "before"):
        answer = browser.get(page, {name: text})
        assert answer.status_code in (200, 400), name
        assert MARKUP.encode() not in answer.getvalue()


@pytest.mark.parametrize("text", NONSENSE, ids=range(len(NONSENSE)))
@pytest.mark.parametrize(
    "page",
    ["/actions/{}/", "/trajectories/{}/", "/tasks/{}/", "/trace/actions/{}.json",
     "/trace/trajectories/{}.json", "/export/{}.csv"],
)  # fmt: skip
def test_an_unknown_object_is_404(browser: Client, page: str, text: str) -> None:
    answer = browser.get(page.format(quote(text, safe="")))

    assert answer.status_code == 404
    assert MARKUP.encode() not in answer.getvalue()


@pytest.mark.parametrize("text", NONSENSE, ids=range(len(NONSENSE)))
@pytest.mark.parametrize("name", ["action", "trajectory", "range", "to", "at"])
def test_a_trace_or_an_instant_of_anything_is_answered(
    browser: Client, name: str, text: str
) -> None:
    for page in ("/trace/", "/gpu/", "/gpu/past.json"):
        answer = browser.get(page, {name: text})
        assert answer.status_code in (200, 400, 404), page
        assert MARKUP.encode() not in answer.getvalue()


@pytest.mark.parametrize("query", [{"range": LONG}, {"range": "1e309"}, {"to": MARKUP}])
def test_an_impossible_range_is_400(browser: Client, query: dict[str, str]) -> None:
    assert browser.get("/history.json", query).status_code == 400
    assert browser.get("/trace/window.json", query).status_code == 400
    assert browser.get("/export/history.csv", query).status_code == 400


def test_input_of_users_is_escaped_on_every_page(browser: Client) -> None:
    TaskRecord.objects.create(key="p/t", project=MARKUP, name=MARKUP, pool=MARKUP, opened_at=NOW)
    TrajectoryRecord.objects.create(
        key="p/r", project="p", name=MARKUP, task=MARKUP, node=MARKUP, opened_at=NOW
    )
    ActionRecord.objects.create(
        id="act_1", project="p", task=MARKUP, trajectory=MARKUP, kind="exec", family=MARKUP,
        group=MARKUP, detail=MARKUP, step=1, cost={MARKUP: [1]}, node=MARKUP, units={MARKUP: 1}, metadata={MARKUP: MARKUP},
        submitted_at=NOW, state="finished", outcome="completed", finished_seq=1, finished_at=NOW,
        queue_seconds=0.0, overhead_seconds=0.0, execution_seconds=1.0, act_seconds=1.0,
        result={"stdout": MARKUP, "stderr": MARKUP, "exit_code": 0}, spec={"x": MARKUP},
    )  # fmt: skip
    pages = ("/actions/", "/actions/act_1/", "/trajectories/", "/trajectories/p/r/", "/tasks/",
             "/tasks/p/t/", "/trace/?action=act_1", "/trace/?trajectory=p/r")  # fmt: skip
    for page in pages:
        answer = browser.get(page)
        assert answer.status_code == 200, page
        assert b"<svg onload" not in answer.content, page


@pytest.mark.parametrize(
    "page", ["/", "/cpu/", "/actions/", "/tasks/", "/workers/", "/gpu/?at=1", "/trace/?range=60"]
)
def test_no_page_has_scripts_or_styles_of_its_own(browser: Client, page: str) -> None:
    answer = browser.get(page)
    text = answer.content.decode()

    assert answer["Content-Security-Policy"] == POLICY
    assert "unsafe" not in POLICY
    assert text.count("<script") == text.count("<script src=") + text.count(
        '<script type="module" src='
    )
    assert "<style" not in text
    assert " style=" not in text
    assert " onclick=" not in text


def test_people_without_staff_rights_see_nothing(defaults: None, redis_bus: Any) -> None:
    client = Client()
    client.force_login(get_user_model().objects.create_user("guest"))

    for page in ("/", "/cpu/", "/history.json", "/export/actions.csv", "/trace/window.json",
                 "/trace/?range=60", "/gpu/past.json?at=1"):  # fmt: skip
        assert client.get(page).status_code == 403
