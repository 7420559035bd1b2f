"""A node is forgotten, over REST or at its page: done, refused with the reason, or requested while no loop leads."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from django.contrib.auth import get_user_model
from django.test import Client

from domain.codec import Reply, decode_command, unpack_fields
from domain.confirmation import Confirmation
from domain.events import NodeForgetAsked
from domain.principals import Scope
from tangram_web.audit.models import AuditEntry
from tangram_web.lib import bus, scheduler_client
from tangram_web.pools.models import NodeDrain
from tangram_web.pools.selectors import current_config
from tangram_web.records.models import NodeRecord, TrajectoryRecord

pytestmark = pytest.mark.django_db(transaction=True)
NOW = datetime(2026, 11, 20, 12, tzinfo=UTC)
PATH = "/api/v1/nodes/n1/forget"


@pytest.fixture
def operator(caller: Any, redis_bus: Any) -> Any:
    return caller(Scope.OPERATE)


@pytest.fixture
def admin(defaults: None, redis_bus: Any, monkeypatch: pytest.MonkeyPatch) -> Client:
    """An admin at the pages; n9 shows no life, n2 does."""
    monkeypatch.setattr(scheduler_client, "ANSWER_SECONDS", 0.01)
    NodeRecord.objects.create(name="n9", pool="default", joined_at=NOW, state="lost")
    NodeRecord.objects.create(name="n2", pool="default", joined_at=NOW)
    client = Client()
    client.force_login(get_user_model().objects.create_superuser("root"))
    return client


def reported(redis_bus: Any) -> list[Any]:
    entries = redis_bus.xrange(bus.keys().inbox)
    messages = [each for _, fields in entries for each in unpack_fields(fields)]
    return [decode_command(each) for each in messages]


def audited_verbs_of_the_node() -> list[str]:
    return list(AuditEntry.objects.filter(target="node/n1").values_list("verb", flat=True))


def answered(monkeypatch: pytest.MonkeyPatch, **reply: Any) -> None:
    monkeypatch.setattr(scheduler_client, "_reply", lambda *_, **__: Reply("r", **reply))


def test_a_forgotten_node_is_audited_and_drained_no_more(
    operator: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    answered(monkeypatch)
    NodeDrain.objects.create(node="n1")

    answer = operator.post(PATH)

    assert (answer.status_code, answer.json()) == (200, {"node": "n1", "forgotten": True})
    assert audited_verbs_of_the_node() == ["resume", "forget"]
    assert not NodeDrain.objects.exists()


@pytest.mark.parametrize(("code", "status"), [("conflict", 409), ("not_found", 404)])
def test_a_refusal_says_why_and_changes_nothing(
    operator: Any, monkeypatch: pytest.MonkeyPatch, code: str, status: int
) -> None:
    answered(monkeypatch, ok=False, code=code, detail="2 actions hold units of node n1")
    NodeDrain.objects.create(node="n1")

    answer = operator.post(PATH)

    assert answer.status_code == status
    assert (answer.json()["code"], answer.json()["detail"]) == (
        code, "2 actions hold units of node n1",
    )  # fmt: skip
    assert audited_verbs_of_the_node() == []
    assert NodeDrain.objects.exists()


def test_without_a_leader_it_is_requested_and_not_done_yet(
    operator: Any, redis_bus: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scheduler_client, "ANSWER_SECONDS", 0.01)

    answer = operator.post(PATH)

    assert answer.json() == {"node": "n1", "forgotten": False}
    assert audited_verbs_of_the_node() == ["forget"]
    assert redis_bus.xlen("tangram:inbox") == 1


def test_without_redis_nothing_is_written(operator: Any, settings: Any, tmp_path: Any) -> None:
    settings.TANGRAM_REDIS_URL = f"unix://{tmp_path}/missing.sock"

    assert operator.post(PATH).status_code == 503
    assert audited_verbs_of_the_node() == []


def test_a_node_that_is_not_drained_makes_no_revision(
    operator: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    answered(monkeypatch)
    before = current_config().revision

    operator.post(PATH)

    assert current_config().revision == before


def test_a_node_is_forgotten_with_its_drain_at_its_page(admin: Client, redis_bus: Any) -> None:
    NodeDrain.objects.create(node="n9", reason="retired")
    done = admin.post("/act/node/forget/", {"target": "n9", "typed": "n9"}, follow=True)

    entry = done.context["entry"]
    assert (entry.verb, entry.target, entry.after) == ("forget", "node/n9", None)
    assert entry.before == {
        "state": "lost",
        "pool": "default",
        "drained": True,
        "reason": "retired",
    }
    assert "cannot be undone" in done.content.decode()
    assert not NodeDrain.objects.filter(node="n9").exists()
    asked, config = reported(redis_bus)
    assert (type(asked), asked.node) == (NodeForgetAsked, "n9")
    assert "n9" not in config.config.drained_nodes


def test_a_refusal_of_the_scheduler_is_shown_and_not_written(
    admin: Client, redis_bus: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    NodeDrain.objects.create(node="n9")
    why = "node n9 lives: drain it, and stop its worker first"
    answered(monkeypatch, ok=False, code="conflict", detail=why)

    answer = admin.post("/act/node/forget/", {"target": "n9", "typed": "n9"})

    assert answer.status_code == 409
    assert why in answer.content.decode()
    assert AuditEntry.objects.count() == 0
    assert NodeDrain.objects.filter(node="n9").exists()
    assert reported(redis_bus) == []


def test_forgetting_a_node_that_lives_or_holds_work_is_warned_of(admin: Client) -> None:
    lives = admin.get("/act/node/forget/", {"target": "n2"}).context["effect"]
    quiet = admin.get("/act/node/forget/", {"target": "n9"}).context["effect"]
    TrajectoryRecord.objects.create(key="default/t", project="default", name="t", task="swe",
                                    opened_at=NOW, node="n9")  # fmt: skip
    busy = admin.get("/act/node/forget/", {"target": "n9"}).context["effect"]

    assert "it sends heartbeats" in lives.warning
    assert quiet.warning == ""
    assert busy.counts["open trajectories"] == 1
    assert "be forgotten before all of these have ended" in busy.warning


def test_only_a_node_that_is_lost_can_be_forgotten_from_the_page_of_operating(
    admin: Client,
) -> None:
    page = admin.get("/operate/").content.decode()

    assert "/act/node/forget/?target=n9" in page
    assert "/act/node/forget/?target=n2" not in page


def test_a_drain_on_the_page_can_let_trajectories_finish(admin: Client) -> None:
    given = {"target": "n2", "running": "finishes", "reason": ""}
    looked = admin.post("/act/node/drain/", {**given, "look": "1"})
    assert looked.context["effect"].warning == ""
    assert looked.context["line"] == "tangram node drain n2 --finish-trajectories"
    admin.post("/act/node/drain/", given)
    assert current_config().finishing_nodes == {"n2"}
    assert "its trajectories finish" in admin.get("/operate/").content.decode()


VERBS = {
    "drain": {"target": "n2", "running": "goes on"},
    "forget": {"target": "n9", "typed": "n9"},
}


@pytest.mark.parametrize("verb", VERBS)
def test_a_verb_is_done_once_replicas_have_it(
    admin: Client, redis_bus: Any, settings: Any, verb: str
) -> None:
    settings.TANGRAM_REDIS_WAIT = Confirmation(replicas=1, milliseconds=1)
    answer = admin.post(f"/act/node/{verb}/", VERBS[verb])
    assert answer.status_code == 503
    assert "0 of 1 replicas of Redis have confirmed" in answer.content.decode()
    assert "start its replicas" in answer.content.decode()
    # It may take effect all the same, so the audit has it, and a repetition is harmless.
    assert list(AuditEntry.objects.values_list("verb", flat=True)) == [verb]
    assert len(reported(redis_bus)) == 1


@pytest.mark.parametrize("replicas", [0, 1])
def test_a_verb_that_redis_refuses_for_lack_of_replicas_says_so(
    admin: Client, redis_bus: Any, settings: Any, replicas: int
) -> None:
    settings.TANGRAM_REDIS_WAIT = Confirmation(replicas=replicas, milliseconds=1)
    redis_bus.config_set("min-replicas-to-write", 1)
    try:
        answers = [admin.post(f"/act/node/{verb}/", given) for verb, given in VERBS.items()]
    finally:
        redis_bus.config_set("min-replicas-to-write", 0)
    for answer in answers:
        assert answer.status_code == 503
        assert "than its min-replicas-to-write: start its replicas" in answer.content.decode()
    # The drain is in the stored configuration, which the next start or change puts in force.
    assert list(AuditEntry.objects.values_list("verb", flat=True)) == ["drain"]
    assert reported(redis_bus) == []
