"""The audit: each entry is written once, with its effect; entries are filtered and exported."""

from __future__ import annotations

import json
from typing import Any

import pytest
from django.contrib.auth import get_user_model
from django.db import transaction
from django.test import Client, RequestFactory
from django.utils import timezone

from domain.errors import InvariantViolation
from domain.event_base import RequestOrigin
from domain.events import (
    ActionCancelRequested,
    ServiceEvictionAsked,
    TaskCancelRequested,
    TaskPaused,
    TaskPrioritised,
)
from domain.principals import Scope
from tangram_web.audit.models import AuditEntry
from tangram_web.audit.services import Actor, record
from tangram_web.records.models import NodeRecord
from tangram_web.records.projection import project
from tests.integration.web.journal import OFFSET, Journal, an_id

ADA = Actor(name="ada", request_id="req-1")
MARKUP = "<script>alert(1)</script>"


@pytest.fixture
def browser(defaults: None) -> Client:
    client = Client()
    client.force_login(get_user_model().objects.create_user("ops", is_staff=True))
    return client


def test_nothing_changes_an_entry(db: None) -> None:
    entry = record(ADA, "drain", "node/n1", {"drained": False}, {"drained": True})

    for change in (
        entry.save,
        entry.delete,
        lambda: AuditEntry.objects.update(actor="eve"),
        lambda: AuditEntry.objects.filter(pk=entry.pk).delete(),
    ):
        with pytest.raises(InvariantViolation):
            change()
    assert AuditEntry.objects.get().actor == "ada"


def test_an_entry_goes_with_the_effect_that_failed(db: None) -> None:
    def fail() -> None:
        with transaction.atomic():
            record(ADA, "drain", "node/n1")
            raise LookupError

    with pytest.raises(LookupError):
        fail()

    assert AuditEntry.objects.count() == 0


def test_a_request_of_a_page_acts_for_its_user(db: None) -> None:
    request: Any = RequestFactory().post("/nodes/n1/drain/")
    request.user = get_user_model().objects.create_user("ops", is_staff=True)
    request.request_id = "req-7"

    entry = record(request, "drain", "node/n1")

    assert (entry.actor, entry.via, entry.request_id) == ("ops", "web", "req-7")


@pytest.mark.django_db(transaction=True)
def test_rest_distinguishes_the_command_line_from_other_clients(
    redis_bus: Any, caller: Any
) -> None:
    client = caller(Scope.ADMIN)
    for name in ("n1", "n2"):
        NodeRecord.objects.create(name=name, pool="default", joined_at=timezone.now())

    client.post("/api/v1/nodes/n1/drain", headers={"User-Agent": "tangram-cli"})
    client.post("/api/v1/nodes/n2/drain")

    found = dict(AuditEntry.objects.filter(verb="drain").values_list("target", "via"))
    assert found == {"node/n1": "cli", "node/n2": "api"}


def test_a_cancel_through_the_gateway_is_audited_once(defaults: None) -> None:
    asked = RequestOrigin(by="trainer", request_id="req-9", via="cli")
    journal = Journal()
    journal.write(
        [
            ActionCancelRequested(action_id=an_id(1), project="default", asked=asked),
            ActionCancelRequested(action_id=an_id(2), project="default"),
        ]
    )

    project(journal.entries)
    project(journal.entries)

    entry = AuditEntry.objects.get()
    assert (entry.actor, entry.via, entry.verb) == ("trainer", "cli", "cancel")
    assert (entry.target, entry.request_id) == (f"action/{an_id(1)}", "req-9")
    assert entry.at.timestamp() >= OFFSET


@pytest.mark.parametrize(
    ("event", "reported"),
    [
        (TaskPaused(project="p", task="t"), ("pause", "task/p/t", "p")),
        (TaskPaused(project="p", task="t", paused=False), ("resume", "task/p/t", "p")),
        (TaskPrioritised(project="p", task="t", priority=2), ("prioritise", "task/p/t", "p")),
        (TaskCancelRequested(project="p", task="t", reason="x"), ("cancel", "task/p/t", "p")),
        (ServiceEvictionAsked(service="reward"), ("evict", "service/reward", "")),
    ],
    ids=lambda each: type(each).__name__,
)
def test_each_verb_of_the_gateway_is_audited_with_its_target(
    defaults: None, event: Any, reported: tuple[str, str, str]
) -> None:
    event.asked = RequestOrigin(by="ops", request_id="req-1", via="api")
    journal = Journal()
    journal.write([event])

    project(journal.entries)

    entry = AuditEntry.objects.get()
    assert (entry.verb, entry.target, entry.project) == reported


def test_the_page_filters_and_shows_markup_as_text(browser: Client) -> None:
    record(ADA, "drain", "node/n1", {"drained": False}, {"drained": True, "reason": MARKUP})
    record(ADA, "update", "pool/default", {"policy": "paper"}, {"policy": "malleable"})

    everything = browser.get("/audit/").content.decode()
    nodes = browser.get("/audit/", {"kind": "node"}).content.decode()

    assert "pool/default" in everything
    assert "<del>paper</del>" in everything
    assert MARKUP not in everything
    assert "&lt;script&gt;" in everything
    assert "pool/default" not in nodes
    assert "is not a time" in browser.get("/audit/", {"since": "then"}).content.decode()
    assert browser.get("/audit/", {"actor": "\0"}).status_code == 200


def test_a_change_of_many_members_is_folded(browser: Client) -> None:
    record(ADA, "update", "pool/big", {}, {f"member_{number}": number for number in range(9)})
    record(ADA, "update", "pool/long", {}, {"text": "x" * 1000})
    record(ADA, "update", "pool/short", {"policy": "paper"}, {"policy": "malleable"})

    text = browser.get("/audit/").content.decode()

    assert text.count('<details class="change">') == 2
    assert "<summary>member_0, member_1, member_2 and 6 more</summary>" in text
    assert "<summary>text</summary>" in text


def test_the_page_goes_on_where_it_ended(browser: Client) -> None:
    for number in range(60):
        record(ADA, "drain", f"node/n{number}")

    first = browser.get("/audit/")
    second = browser.get(f"/audit/?{first.context['found'].older}")

    seen = [row.target for row in (*first.context["found"].rows, *second.context["found"].rows)]
    assert seen == [f"node/n{number}" for number in reversed(range(60))]


def test_the_audit_is_a_file(browser: Client) -> None:
    record(ADA, "drain", "node/n1", None, {"reason": "=1+1"})
    record(ADA, "resume", "node/n1")

    answer = browser.get("/export/audit.json?verb=drain")
    rows = json.loads(b"".join(answer.streaming_content))  # type: ignore[attr-defined]
    table: Any = browser.get("/export/audit.csv")
    as_csv = b"".join(table.streaming_content).decode()

    assert [(row["actor"], row["target"]) for row in rows] == [("ada", "node/n1")]
    assert as_csv.splitlines()[0].startswith("id,at,actor")
    assert browser.get("/export/audit.csv?since=then").status_code == 400


def test_a_token_of_one_project_sees_its_own_entries(caller: Any) -> None:
    everything = caller(Scope.OPERATE)
    own = caller(Scope.OPERATE, project="vision")
    record(ADA, "cancel", "action/a", project="vision")
    record(ADA, "cancel", "action/b", project="other")

    seen = own.get("/api/v1/audit?verb=cancel").json()["results"]

    assert [row["target"] for row in seen] == ["action/a"]
    assert len(everything.get("/api/v1/audit?verb=cancel").json()["results"]) == 2
    assert caller(Scope.READ).get("/api/v1/audit").status_code == 403
    assert own.get("/api/v1/audit?since=then").status_code in (400, 422)
    assert own.post("/api/v1/audit", {}).status_code == 405
