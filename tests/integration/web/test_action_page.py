"""The page of an action opens with what ran, for members of its project, and without secrets."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest
from django.contrib.auth import get_user_model
from django.test import Client

from domain.action import ExecSpec, Kind
from domain.command_text import MASK
from domain.errors import Unavailable
from domain.ports import ExecResult
from domain.rewards import RewardRule
from tangram_web.accounts.models import Membership, Role
from tangram_web.audit.models import AuditEntry
from tangram_web.lib import submissions
from tangram_web.lib.submissions import PageSubmission, SubmissionAnswer
from tangram_web.records.models import ActionRecord
from tangram_web.records.projection import project
from tests.integration.web.journal import Journal, an_action, an_id

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


@pytest.fixture
def member(defaults: None, redis_bus: Any) -> Callable[[Role], Client]:
    """Browsers of members of project ``default``, where one action ran."""
    journal = Journal()
    reward = RewardRule("junit", path="out/report.xml", files={"test_a.py": "assert 1"})
    command = ExecSpec(command=("pytest", "-q"), stdin="abc")
    journal.run(
        an_action(1, kind=Kind.EXEC, trajectory="t", exec=command, reward=reward, by="trainer")
    )
    secret = ExecSpec(command=("deploy",), env={"API_KEY": SECRET})
    journal.run(an_action(2, kind=Kind.EXEC, exec=secret))
    journal.run(an_action(3, kind=Kind.EXEC, exec=ExecSpec(command=("cat",), stdin="x" * 5000)))
    project(journal.entries)

    def signed_in(role: Role) -> Client:
        user = get_user_model().objects.create_user(f"a {role}")
        Membership.objects.create(user=user, project_id="default", role=role)
        client = Client()
        client.force_login(user)
        return client

    return signed_in


@pytest.fixture
def submitted(monkeypatch: pytest.MonkeyPatch) -> list[PageSubmission]:
    """What pages submit; the action that each becomes is the first one."""
    found: list[PageSubmission] = []

    def submit(asked: PageSubmission) -> SubmissionAnswer:
        found.append(asked)
        if b"too wide" in asked.body:
            error = {"pointer": "/cost/cpu", "detail": "4000 never fit"}
            return SubmissionAnswer(422, {"detail": "no", "errors": [error]})
        return SubmissionAnswer(202, {"id": an_id(1), "state": "queued"})

    monkeypatch.setattr(submissions, "_submit", submit)
    return found


def test_it_names_its_files_and_the_token_that_submitted_it(
    member: Callable[[Role], Client],
) -> None:
    viewer = member(Role.VIEWER)
    text = viewer.get(f"/actions/{an_id(1)}/").content.decode()
    earlier = viewer.get(f"/actions/{an_id(2)}/").content.decode()

    assert "<dt>Submitted by</dt><dd>trainer</dd>" in text
    assert "not recorded" in earlier
    assert 'id="files"' not in earlier
    for words in ("<code>test_a.py</code></td><td>given with the request", "8 B", "read for the reward",
                  "<code>tangram cp t:out/report.xml report.xml</code>"):  # fmt: skip
        assert words in text
    assert "Run again" not in text


def test_a_request_is_changed_and_submitted_as_another_action(
    member: Callable[[Role], Client], submitted: list[PageSubmission]
) -> None:
    browser, address = member(Role.SUBMITTER), f"/actions/{an_id(1)}/again/"
    assert f'href="{address}"' in browser.get(f"/actions/{an_id(1)}/").content.decode()
    form = browser.get(address)
    body = msgspec.json.decode(form.context["text"])
    given = {"text": form.context["text"].replace('"-q"', '"-x"'), "key": form.context["key"],
             "place": "new", "trajectory": form.context["trajectory"]}  # fmt: skip
    done = browser.post(address, given)

    assert (done.status_code, done["Location"]) == (302, f"/actions/{an_id(1)}/")
    (asked,) = submitted
    sent = msgspec.json.decode(asked.body)
    assert sent["trajectory"].startswith("t-again-")
    assert sent == {
        **body,
        "trajectory": sent["trajectory"],
        "exec": {"command": ["pytest", "-x"], "stdin": "abc"},
    }
    assert (asked.principal.name, asked.principal.project) == ("a submitter", "default")
    browser.post(address, {**given, "place": "same"})
    assert msgspec.json.decode(submitted[1].body)["trajectory"] == "t"
    assert submitted[0].key == submitted[1].key
    entry = AuditEntry.objects.order_by("id").first()
    assert entry is not None
    assert (entry.verb, entry.target, entry.after) == (
        "submit",
        f"action/{an_id(1)}",
        {"like": an_id(1)},
    )


def test_a_refusal_names_the_field_and_keeps_the_text(
    member: Callable[[Role], Client], submitted: list[PageSubmission]
) -> None:
    browser, address = member(Role.SUBMITTER), f"/actions/{an_id(1)}/again/"
    refused = browser.post(address, {"text": '{"task": "too wide"}'})
    garbled = browser.post(address, {"text": "{"})
    listed = browser.post(address, {"text": "[]"})

    assert [each.status_code for each in (refused, garbled, listed)] == [422, 422, 422]
    assert "<code>/cost/cpu</code>: 4000 never fit" in refused.content.decode()
    assert "too wide" in refused.content.decode()
    assert "this is not JSON" in garbled.content.decode()
    assert "one JSON object" in listed.content.decode()
    assert len(submitted) == 1


def test_what_is_masked_or_cut_is_not_submitted(
    member: Callable[[Role], Client], submitted: list[PageSubmission]
) -> None:
    browser = member(Role.SUBMITTER)
    masked = browser.get(f"/actions/{an_id(2)}/again/")
    refused = browser.post(f"/actions/{an_id(2)}/again/", {"text": masked.context["text"]})
    cut = browser.get(f"/actions/{an_id(3)}/again/").content.decode()
    browser.post(f"/actions/{an_id(3)}/again/", {"text": "{}"})

    assert SECRET not in masked.content.decode()
    assert "its secrets are masked: /exec/env/API_KEY" in masked.content.decode()
    assert "<code>/exec/env/API_KEY</code>: it is masked" in refused.content.decode()
    assert "more than 4,096 are cut" in cut
    assert "<textarea" not in cut
    assert not submitted
    whole = masked.context["text"].replace(MASK, "abc")
    assert browser.post(f"/actions/{an_id(2)}/again/", {"text": whole}).status_code == 302


def test_viewers_do_not_submit_and_a_missing_gateway_is_named(
    member: Callable[[Role], Client], monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_gateway(_: PageSubmission) -> SubmissionAnswer:
        raise Unavailable("the web process is starting")

    monkeypatch.setattr(submissions, "_submit", no_gateway)
    address = f"/actions/{an_id(1)}/again/"
    late = member(Role.SUBMITTER).post(address, {"text": "{}"})

    assert member(Role.VIEWER).get(address).status_code == 403
    assert late.status_code == 503
    assert "the web process is starting" in late.content.decode()


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
