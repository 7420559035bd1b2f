"""A command that fails is counted apart on every page, although its outcome is completed."""

from __future__ import annotations

from typing import Any

import pytest
from django.contrib.auth import get_user_model
from django.test import Client

from domain.action import Kind, Outcome
from domain.ports import ExecResult
from tangram_web.lib.endings import FAILED
from tangram_web.live.frames import FrameFold
from tangram_web.records.projection import project
from tests.integration.web.journal import Journal, an_action

pytestmark = pytest.mark.django_db


@pytest.fixture
def journal() -> Journal:
    """Two commands fail and one passes; one is cancelled, one has no exit code."""
    journal = Journal()
    for number, code in enumerate((3, 0, 3)):
        result = ExecResult(code, "", "")
        journal.run(an_action(number, kind=Kind.EXEC), result=result)
    journal.run(an_action(8, kind=Kind.EXEC), outcome=Outcome.CANCELLED)
    journal.run(an_action(9))
    return journal


@pytest.fixture
def browser(defaults: None, redis_bus: Any, journal: Journal) -> Client:
    project(journal.entries)
    client = Client()
    client.force_login(get_user_model().objects.create_user("ops", is_staff=True))
    return client


def test_a_task_counts_failing_commands_apart_from_completed_ones(browser: Client) -> None:
    context = browser.get("/tasks/default/task-1/").context

    counts = {end["outcome"]: end["actions"] for end in context["outcomes"]}
    assert counts == {"completed": 2, FAILED: 2, "cancelled": 1}
    assert context["failing"] == 2
    assert [task.failing for task in browser.get("/tasks/").context["found"].rows] == [2]


@pytest.mark.parametrize(("code", "found"), [("failed", 2), ("3", 2), ("0", 1), ("-9", 0)], ids=str)
def test_actions_are_filtered_by_exit_code(browser: Client, code: str, found: int) -> None:
    page = browser.get("/actions/", {"exit": code, "task": "task-1"}, follow=True)

    assert len(page.context["found"].rows) == found
    assert page.content.decode().count('data-is="failed"') == (found if code in "failed3" else 0)


def test_an_impossible_exit_code_is_explained(browser: Client) -> None:
    text = browser.get("/actions/", {"exit": "three"}, follow=True).content.decode()

    assert "exit:three (character 1): &#x27;three&#x27; is not a number; write a number" in text


def test_the_overview_counts_failing_commands_as_the_task_does(journal: Journal) -> None:
    fold = FrameFold()
    for _, entry in journal.entries:
        fold.fold(entry)

    body = fold.frames(journal.entries[-1][1].at)["overview"].body

    totals = {row["outcome"]: row["total"] for row in body["outcomes"] if row["total"]}
    assert totals == {"completed": 2, FAILED: 2, "cancelled": 1}
    assert [row["exit_code"] for row in body["finished"]] == [None, None, 3, 0, 3]
