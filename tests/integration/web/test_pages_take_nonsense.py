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
from tests.integration.web.test_every_page import LONG, MARKUP, NONSENSE

NOW = datetime(2026, 11, 20, 12, tzinfo=UTC)
LISTS = ("/actions/", "/trajectories/", "/tasks/", "/export/actions.csv", "/export/tasks.json")


@pytest.fixture
def browser(defaults: None, redis_bus: Any, monkeypatch: pytest.MonkeyPatch) -> Client:
    client = Client()
    client.force_login(get_user_model().objects.create_user("ops", is_staff=True))
    monkeypatch.setattr(scheduler_client, "ANSWER_SECONDS", 0.01)
    return client


@pytest.mark.parametrize("page", LISTS)
def test_a_search_for_anything_is_answered(browser: Client, page: str) -> None:
    for text in NONSENSE:
        for name in (
            "task",
            "trajectory",
            "project",
            "state",
            "outcome",
            "before",
            "q",
            "sort",
            "after",
            "columns",
        ):
            answer = browser.get(page, {name: text}, follow=True)
            assert answer.status_code in (200, 400), (name, text[:40])
            assert MARKUP.encode() not in answer.getvalue()


def test_an_unknown_table_is_404(browser: Client) -> None:
    for text in NONSENSE:
        answer = browser.get(f"/export/{quote(text, safe='')}.csv")

        assert answer.status_code == 404
        assert MARKUP.encode() not in answer.getvalue()


@pytest.mark.parametrize("page", ["/trace/", "/gpu/", "/gpu/past.json"])
def test_a_trace_or_an_instant_of_anything_is_answered(browser: Client, page: str) -> None:
    for text in NONSENSE:
        for name in ("action", "trajectory", "range", "to", "at"):
            answer = browser.get(page, {name: text})
            assert answer.status_code in (200, 400, 404), (name, text[:40])
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
    pages = ("/actions/?q=", "/actions/act_1/", "/trajectories/?q=", "/trajectories/p/r/", "/tasks/",
             "/explorer/actions/counts", "/explorer/trajectories/counts", "/explorer/tasks/counts",
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
