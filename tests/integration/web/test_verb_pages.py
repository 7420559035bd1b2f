"""The page of a verb: its simulated effect or the reason why there is none, its way back, its lists."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from domain.policies import known_policies
from tangram_web.accounts.models import Role
from tangram_web.audit.models import AuditEntry
from tangram_web.lib.explorer_links import explorer_link
from tangram_web.operations.effects import NOT_SIMULATED, PROPOSALS
from tangram_web.operations.verbs import VERBS
from tangram_web.records.models import TaskRecord
from tests.integration.web.test_operations import ASKED, address, browser, world

__all__ = ["browser", "world"]  # fixtures
pytestmark = pytest.mark.django_db
NOW = datetime(2026, 11, 20, 12, tzinfo=UTC)


def test_every_verb_is_simulated_or_says_why_not() -> None:
    assert PROPOSALS.keys() | NOT_SIMULATED.keys() == VERBS.keys()
    assert not PROPOSALS.keys() & NOT_SIMULATED.keys()


@pytest.mark.parametrize("verb", VERBS, ids="-".join)
def test_without_a_window_the_effect_is_a_reason(browser: Any, verb: Any) -> None:
    target, given, _ = ASKED[verb]
    admin = browser(Role.ADMIN, everywhere=True)

    answer = admin.get(f"{address(verb)}effect/", {"target": target, **given})

    assert answer.status_code == 200
    assert answer.context["effect"].reason.endswith(".")
    assert AuditEntry.objects.count() == 0


def test_the_effect_of_a_verb_is_for_its_roles_alone(browser: Any) -> None:
    TaskRecord.objects.create(key="secret/swe", project="secret", name="swe", opened_at=NOW)
    submitter = browser(Role.SUBMITTER)

    own = submitter.get("/act/task/pause/effect/", {"target": "default/swe"})
    others = submitter.get("/act/task/pause/effect/", {"target": "secret/swe"})

    assert (own.status_code, others.status_code) == (403, 404)


@pytest.mark.parametrize(
    ("came_from", "back"),
    [
        ("http://testserver/queues/?project=default", "/queues/?project=default"),
        ("http://elsewhere/queues/", "/operate/"),
        ("http://testserver/act/pool/share/?target=default", "/operate/"),
    ],
)
def test_back_leads_to_where_the_reader_came_from(browser: Any, came_from: str, back: str) -> None:
    admin = browser(Role.ADMIN, everywhere=True)

    shown = admin.get("/act/pool/pause/", {"target": "default"}, headers={"referer": came_from})

    assert shown.context["back"] == back
    again = admin.post("/act/pool/pause/", {"target": "default", "back": back, "typed": "no"})
    assert again.context["back"] == back
    other = admin.get("/act/pool/pause/", {"target": "default", "back": "//elsewhere/"})
    assert other.context["back"] == "/operate/"


def test_policies_are_a_described_list_with_their_parameter(browser: Any) -> None:
    admin = browser(Role.ADMIN, everywhere=True)
    given = {"target": "default", "look": "1"}

    shown = admin.get("/act/pool/policy/", {"target": "default", "policy": "fixed(4)"})
    chosen = admin.post("/act/pool/policy/", {**given, "policy": "fixed(k)", "units": "8"})
    missing = admin.post("/act/pool/policy/", {**given, "policy": "fixed(k)"})

    text = shown.content.decode()
    assert '<option value="fixed(k)" selected>fixed(k): grants each action k units' in text
    assert 'value="4"' in text
    assert all(f'<option value="{form}"' in text for form in known_policies())
    assert '"policy":"fixed(8)"' in chosen.context["line"]
    assert "needs a number of units" in missing.content.decode()


def test_counts_lead_to_the_actions_that_they_count(browser: Any) -> None:
    shown = browser(Role.ADMIN, everywhere=True).get("/act/task/pause/", {"target": "default/swe"})

    assert explorer_link("actions", state="queued", task="swe", project="default") in (
        each["link"] for each in shown.context["counts"]
    )
