"""Verbs on actions and tasks that are selected in a list: in the projects of those who may, a thousand at most."""

from __future__ import annotations

from typing import Any

import pytest

from tangram_web.accounts.models import Role
from tangram_web.audit.models import AuditEntry
from tangram_web.lib import scheduler_client
from tangram_web.operations.effects import PROPOSALS
from tangram_web.operations.verbs.selected_tasks import tasks_target
from tangram_web.pools.models import Project
from tangram_web.records.models import ActionRecord, TaskRecord
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


@pytest.fixture
def tasks(world: None) -> None:
    """Another task, with an action of its own, and one of a project that is hidden."""
    Project.objects.create(name="secret", default_pool_id="default")
    for key in ("default/other", "secret/plan"):
        project, _, name = key.partition("/")
        TaskRecord.objects.create(key=key, project=project, name=name, opened_at=NOW)
        ActionRecord.objects.create(id=f"act_of_{name}", project=project, task=name, kind="exec",
                                    submitted_at=NOW, state="queued")  # fmt: skip


@pytest.mark.django_db(transaction=True)
def test_the_priority_of_selected_tasks_is_set_once_for_each(
    tasks: None, browser: Any, redis_bus: Any
) -> None:
    operator, chosen = browser(Role.OPERATOR), {"target": "act_1,act_2,default/other,act_9"}

    shown = operator.post("/act/tasks/priority/", {**chosen, "look": "1", "priority": "7"})
    done = operator.post("/act/tasks/priority/", {**chosen, "priority": "7"}, follow=True)
    refused = operator.post(
        "/act/tasks/priority/", {"target": "act_1,secret/plan", "priority": "7"}
    )

    assert shown.context["effect"].counts == {"waiting": 2, "granted": 0, "running": 1}
    assert "default/other, default/swe move" in shown.context["effect"].says
    assert shown.context["line"] == (
        "tangram task priority other 7 --project default"
        " && tangram task priority swe 7 --project default"
    )
    assert (done.status_code, refused.status_code) == (200, 404)
    assert [(each.task, each.priority) for each in reported(redis_bus)] == [
        ("other", 7),
        ("swe", 7),
    ]
    (entry,) = AuditEntry.objects.all()
    assert (entry.target, entry.project) == ("tasks/2 selected", "default")
    assert entry.before == {"priorities": {"default/other": None, "default/swe": None}}
    assert entry.after == {"priority": 7, "tasks": ["default/other", "default/swe"]}


def test_tasks_that_have_the_priority_already_are_left_out(
    tasks: None, browser: Any, redis_bus: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    steered = {"default/swe": {"paused": True, "priority": 7}}
    monkeypatch.setattr(scheduler_client, "status", lambda: {"steered_tasks": steered, "pools": {}})
    target = tasks_target("default/swe,default/other")
    proposal = PROPOSALS["tasks", "priority"](target, {"priority": 7})
    form = (
        browser(Role.OPERATOR)
        .get("/act/tasks/priority/", {"target": "default/swe"})
        .context["form"]
    )
    browser(Role.ADMIN).post("/act/tasks/priority/", {"target": target.name, "priority": "7"})

    assert form["priority"].value() == 7
    assert [type(each).__name__ for each in proposal.now] == ["TaskPaused", "TaskPrioritised"]
    assert [getattr(each, "task", "") for each in proposal.then] == ["other"]
    assert [each.task for each in reported(redis_bus)] == ["other"]


def test_a_verb_takes_a_hundred_tasks_at_most(tasks: None, browser: Any) -> None:
    TaskRecord.objects.bulk_create(
        TaskRecord(key=f"default/t{number}", project="default", name=f"t{number}", opened_at=NOW)
        for number in range(101)
    )
    admin = browser(Role.ADMIN)

    def refusal(target: str) -> str:
        answer = admin.post("/act/tasks/priority/", {"target": target, "look": "1"})
        assert answer.status_code == 404
        return str(answer.content.decode())

    many = ",".join(f"default/t{number}" for number in range(101))
    assert "at most 100 tasks; these are 101" in refusal(many)
    assert "at most 1,000 rows" in refusal(",".join(f"act_{number}" for number in range(1001)))
    assert "there are no such tasks" in refusal("act_9,default/none")


def test_lists_name_the_tasks_of_their_rows_for_comparisons(tasks: None, browser: Any) -> None:
    admin = browser(Role.ADMIN)
    actions, listed = (admin.get(f"/{tab}/?q=").content.decode() for tab in ("actions", "tasks"))
    found = admin.get("/explorer/actions/ids.json?q=").json()
    keys = admin.get("/explorer/tasks/ids.json?q=").json()

    assert 'data-id="act_1" data-task="default/swe"' in actions
    assert 'data-id="default/swe" data-task="default/swe"' in listed
    for page in (actions, listed):
        assert 'action="/act/tasks/priority/"' in page
        assert 'id="selected-compare" href="/compare/"' in page
    assert "/act/actions/cancel/" in actions
    assert "/act/actions/cancel/" not in listed
    assert dict(zip(found["ids"], found["tasks"], strict=True)) == {
        "act_1": "default/swe", "act_2": "default/swe", "act_of_other": "default/other",
    }  # fmt: skip
    assert keys["ids"] == keys["tasks"] == ["default/swe", "default/other"]
