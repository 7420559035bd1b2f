"""Verbs on actions that are selected in a list: in the projects of those who may, a thousand at most."""

from __future__ import annotations

from typing import Any

import pytest

from tangram_web.accounts.models import Role
from tangram_web.audit.models import AuditEntry
from tangram_web.records.models import ActionRecord
from tests.integration.web import test_operations as operations
from tests.integration.web.test_operations import NOW, reported

pytestmark = pytest.mark.django_db
world, browser = operations.world, operations.browser


@pytest.mark.django_db(transaction=True)
def test_selected_actions_are_cancelled_by_those_who_may_in_each_project(
    browser: Any, redis_bus: Any
) -> None:
    ActionRecord.objects.create(id="act_3", project="default", task="t", kind="exec", submitted_at=NOW,
                                state="finished", outcome="completed", finished_seq=1)  # fmt: skip
    member, chosen = browser(Role.SUBMITTER), {"target": "act_1,act_2,act_3,act_9"}

    shown = member.post("/act/actions/cancel/", {**chosen, "look": "1"})
    done = member.post("/act/actions/cancel/", {**chosen, "reason": ""}, follow=True)
    ActionRecord.objects.filter(pk="act_2").update(project="secret")
    refused = member.post("/act/actions/cancel/", {**chosen, "reason": ""})

    assert shown.context["effect"].counts == {"waiting": 1, "granted": 0, "running": 1}
    assert "1 of the selected actions have ended" in shown.content.decode()
    assert done.status_code == 200
    assert [each.action_id for each in reported(redis_bus)] == ["act_1", "act_2"]
    assert refused.status_code == 404
    (entry,) = AuditEntry.objects.all()
    assert (entry.target, entry.project) == ("actions/2 selected", "default")
    assert entry.after["actions"] == ["act_1", "act_2"]


def test_a_verb_takes_a_thousand_actions_at_most(browser: Any) -> None:
    target = ",".join(f"act_{number}" for number in range(1001))

    answer = browser(Role.ADMIN).post("/act/actions/cancel/", {"target": target, "look": "1"})

    assert answer.status_code == 404
    assert "at most 1,000 actions" in answer.content.decode()
