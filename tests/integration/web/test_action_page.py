"""The page of an action opens with what ran, for members of its project, and without secrets."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from django.contrib.auth import get_user_model
from django.test import Client

from domain.action import ExecSpec, Kind
from domain.command_text import MASK
from domain.ports import ExecResult
from tangram_web.records.models import ActionRecord
from tangram_web.records.projection import project
from tests.integration.web.journal import Journal, an_action

pytestmark = pytest.mark.django_db
SECRET = "hf_abcdefgh12345678"


@pytest.fixture
def page(defaults: None, redis_bus: Any) -> str:
    """Three commands of one trajectory ran; the page is that of the second one."""
    journal = Journal()
    for number, code in enumerate((0, 137, 0)):
        command = ExecSpec(
            command=("deploy", f"{number}", "--token", SECRET), env={"API_KEY": SECRET}
        )
        action = an_action(number, kind=Kind.EXEC, trajectory="t", exec=command)
        journal.run(action, result=ExecResult(code, "", ""))
    project(journal.entries)
    client = Client()
    client.force_login(get_user_model().objects.create_user("ops", is_staff=True))
    failed = ActionRecord.objects.get(exit_code=137)
    return client.get(f"/actions/{failed.pk}/").content.decode()


def test_it_names_the_command_what_its_exit_code_means_and_its_neighbours(page: str) -> None:
    assert f'<h1 class="mono">deploy 1 --token {MASK}</h1>' in page
    assert "Killed by signal 9 (SIGKILL)" in page
    assert f"deploy 0 --token {MASK}" in page
    assert f"deploy 2 --token {MASK}" in page


def test_it_has_no_secret_in_any_place(page: str) -> None:
    assert SECRET not in page
    assert "API_KEY" in page


def test_a_start_that_was_not_reported_is_computed_from_the_phases() -> None:
    granted_at = datetime(2026, 1, 1, tzinfo=UTC)
    action = ActionRecord(
        granted_at=granted_at,
        overhead_seconds=2.0,
        execution_seconds=1.0,
    )

    assert action.begun_at is not None
    assert (action.begun_at - granted_at).total_seconds() == 2.0
    action.execution_seconds = None
    assert action.begun_at is None


def test_the_report_of_a_task_has_the_numbers_of_its_page(page: str) -> None:
    """Of the page, of the API, and beside another task; a task that is hidden is not there."""
    client = Client()
    client.force_login(get_user_model().objects.get(username="ops"))
    shown = client.get("/tasks/default/task-1/").context
    report = client.get("/tasks/default/task-1/report/").context["report"]

    assert (report.finished, report.read) == (3, 3)
    assert report.outcomes == shown["outcomes"]
    assert [each["granted"] for each in report.costs] == [
        each.granted for each in shown["bill"].lines
    ]
    beside = client.get("/tasks/default/task-1/report/?with=task-1").context["report"]
    assert {each["difference"] for each in beside.comparison["measures"]} == {0.0}
    assert client.get("/tasks/default/none/report/").status_code == 404
    assert client.get("/tasks/default/task-1/report/?with=none").status_code == 404
