"""Numbers of SQL queries of each page, whatever it shows: the committed baseline.

A count may go down; one that goes up is a page that asks for each row. `query_counts.json` is
rewritten by running this module with ``RECORD_QUERY_COUNTS=1``.
"""

from __future__ import annotations

import json
import os
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from django.contrib.auth import get_user_model
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import resolve

from tangram_web.dashboard.urls import urlpatterns
from tangram_web.lib import scheduler_client
from tangram_web.records.models import ActionRecord, TaskRecord, TrajectoryRecord

BASELINE = Path(__file__).with_name("query_counts.json")
NOW = datetime(2026, 11, 20, 12, tzinfo=UTC)
PAGES = (
    "/", "/history.json", "/queues/", "/actions/", "/actions/?task=swe&outcome=completed",
    "/actions/act_00001/", "/trajectories/", "/trajectories/default/t-1/", "/tasks/",
    "/tasks/default/swe/", "/cpu/", "/gpu/", "/apis/", "/decisions/", "/workers/",
    "/audit/", "/export/actions.csv", "/trace/trajectories/default/t-1.json",
    "/trace/?trajectory=default/t-1", "/trace/?action=act_00001", "/trace/?range=60",
)  # fmt: skip


@pytest.fixture
def browser(defaults: None, redis_bus: Any, monkeypatch: pytest.MonkeyPatch) -> Client:
    client = Client()
    client.force_login(get_user_model().objects.create_user("ops", is_staff=True))
    # No loop answers: a request to the scheduler is no query.
    monkeypatch.setattr(scheduler_client, "ANSWER_SECONDS", 0.01)
    return client


def rows(count: int) -> None:
    """Add ``count`` actions, and a trajectory and a task for every ten."""
    for number in range(0, count, 10):
        given = {"project": "default", "opened_at": NOW, "actions": 10}
        name = f"t-{number // 10}"
        TrajectoryRecord.objects.create(key=f"default/{name}", name=name, task="swe", **given)
        task = "swe" if number == 0 else f"swe-{number}"
        TaskRecord.objects.create(key=f"default/{task}", name=task, **given)
    ActionRecord.objects.bulk_create(
        ActionRecord(
            id=f"act_{number:05}", project="default", task="swe", kind="exec", state="finished",
            trajectory=f"t-{number // 10}", outcome="completed", finished_seq=number, step=1,
            submitted_at=NOW + timedelta(seconds=number), finished_at=NOW + timedelta(seconds=number),
            queue_seconds=0.1, overhead_seconds=0.0, execution_seconds=1.0, act_seconds=1.1,
        )
        for number in range(count)
    )  # fmt: skip


def count_of(browser: Client, page: str) -> int:
    with CaptureQueriesContext(connection) as asked:
        answer = browser.get(page)
        assert answer.status_code == 200
        if answer.streaming:
            b"".join(answer.streaming_content)  # type: ignore[attr-defined]
    return len(asked)


def test_pages_ask_as_often_as_the_baseline_says(browser: Client) -> None:
    rows(30)
    counts = {page: count_of(browser, page) for page in PAGES}
    if os.environ.get("RECORD_QUERY_COUNTS"):
        BASELINE.write_text(json.dumps(counts, indent=2) + "\n")

    assert counts == json.loads(BASELINE.read_text())


@pytest.mark.parametrize("page", PAGES)
def test_more_rows_are_not_more_queries(browser: Client, page: str) -> None:
    rows(20)
    few = count_of(browser, page)
    ActionRecord.objects.all().delete()
    TrajectoryRecord.objects.all().delete()
    TaskRecord.objects.all().delete()
    rows(200)

    assert count_of(browser, page) == few


def test_all_pages_are_counted() -> None:
    resolved = {str(resolve(urlsplit(page).path).url_name) for page in PAGES}
    names = {str(pattern.name) for pattern in urlpatterns}

    assert names - resolved == {"gpu-past", "enter", "trace-window", "trace-action"}
