"""The configuration at pages: form and text, review, save, 412 and merge, what strands, going back."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest
import yaml
from django.contrib.auth import get_user_model
from django.test import Client

from domain.codec import decode_command, unpack_fields
from domain.events import ActionCancelRequested
from tangram_web.audit.models import AuditEntry
from tangram_web.configuration.forms import HELPS, SpecForm, members_of
from tangram_web.lib import bus
from tangram_web.pools import manifests, services
from tangram_web.pools.models import Pool, Resource
from tangram_web.pools.selectors import current_config
from tangram_web.records.models import ActionRecord
from tests.integration.web.test_configuration import ADA

NOW = datetime(2026, 11, 20, 12, tzinfo=UTC)
MARKUP = "<script>alert(1)</script>"
SHRINK = """
apiVersion: tangram/v1
kind: Resource
metadata: {name: "api:demo"}
spec: {limit_units: 2}
"""
POLICY = """
apiVersion: tangram/v1
kind: Pool
metadata: {name: default}
spec: {policy: paper}
"""
LARGE = POLICY.replace("default", "large")


@pytest.fixture
def admin(defaults: None, redis_bus: Any) -> Client:
    client = Client()
    client.force_login(get_user_model().objects.create_superuser("root"))
    return client


def save(client: Client, text: str, revision: int = 1, **more: str) -> Any:
    given = {"text": text, "revision": str(revision), "save": "1", **more}
    return client.post("/configuration/review/", given)


def test_a_text_is_reviewed_and_saved_as_a_revision(admin: Client) -> None:
    reviewed = admin.post("/configuration/review/", {"text": POLICY, "revision": "1"})
    assert (
        "<del>malleable</del>" in reviewed.content.decode() or "paper" in reviewed.content.decode()
    )
    assert current_config().revision == 1

    saved = save(admin, POLICY)

    assert saved.headers["Location"] == "/configuration/revisions/2/"
    assert Pool.objects.get(name="default").policy == "paper"
    entry = AuditEntry.objects.get()
    assert (entry.actor, entry.via, entry.verb) == ("root", "web", "apply")


def test_a_form_of_every_kind_is_made_from_the_schema(admin: Client) -> None:
    for kind in manifests.KINDS:
        page = admin.get("/configuration/edit/", {"kind": kind})
        assert page.status_code == 200
        assert page.context["form"].fields.keys() > {"name"}

    filled = admin.get("/configuration/edit/", {"kind": "Resource", "name": "api:demo"})
    assert filled.context["form"].initial["limit_units"] == 8


@pytest.mark.parametrize("kind", manifests.KINDS)
def test_every_member_is_explained_and_every_example_is_taken(kind: str) -> None:
    needed: dict[str, dict[str, Any]] = {
        "Resource": {"limit_units": 8},
        "Fleet": {"engine": "vllm"},
        "Selector": {"degrees": [{"tp": 1, "pp": 1, "dp": 1}]},
        "NodeGroup": {"engine": "ssh"},
        "GpuService": {"engine": "process", "command": ["serve"],
                       "degrees": [{"gpus": 1, "memory_bytes": 1}]},
    }  # fmt: skip

    assert list(HELPS[kind]) == list(members_of(kind)[0])
    for member, reported in HELPS[kind].items():
        if reported.example:
            spec = needed.get(kind, {}) | {member: yaml.safe_load(reported.example)}
            document = {
                "apiVersion": "tangram/v1",
                "kind": kind,
                "metadata": {"name": "new"},
                "spec": spec,
            }
            msgspec.convert(document, manifests.Manifest)


@pytest.mark.parametrize("kind", manifests.KINDS)
def test_a_blank_form_that_is_sent_back_declares_nothing(kind: str) -> None:
    blank = SpecForm(kind, None)
    shown = {name: blank[name].value() for name in blank.fields}

    sent = SpecForm(kind, None, {n: v for n, v in shown.items() if v not in (None, False)})

    complaints = {name for name in sent.errors if sent.fields[name].required}
    assert set(sent.errors) == complaints
    sent.cleaned_data["name"] = "new"
    assert sent.document()["spec"] == {}


def test_a_form_leads_to_the_same_review(admin: Client) -> None:
    given = {"kind": "Resource", "name": "api:demo", "limit_units": "5", "revision": "1",
             "quotas": "- {units: 3, window_seconds: 1}"}  # fmt: skip

    reviewed = admin.post("/configuration/edit/", given)

    (change,) = reviewed.context["changes"]
    assert (change.kind, change.after["limit_units"]) == ("Resource", 5)
    assert change.after["quotas"][0]["units"] == 3
    wrong = admin.post("/configuration/edit/", {**given, "quotas": "[: {"})
    assert wrong.status_code == 422
    assert "line 1, column" in wrong.content.decode()


@pytest.mark.parametrize(
    "text",
    [
        "[" * 20_000,
        "a: &a [1]\nb: *a",
        "2026-02-30",
        "a\n---\nb",
        "!!python/name:os.system",
        "\x07",
    ],
    ids=["deep", "anchors", "no day", "two documents", "tag", "control"],
)
def test_a_form_reads_a_member_as_strictly_as_a_text(admin: Client, text: str) -> None:
    given = {"kind": "Resource", "name": "api:demo", "limit_units": "5", "revision": "1"}

    answer = admin.post("/configuration/edit/", {**given, "quotas": text})

    assert answer.status_code == 422
    assert current_config().revision == 1


def test_a_mistake_is_named_with_its_place_and_the_text_is_kept(admin: Client) -> None:
    answer = save(admin, POLICY.replace("paper", "fastest") + f"# {MARKUP}")

    page = answer.content.decode()
    assert answer.status_code == 422
    assert "is no policy" in page
    assert "metadata: {name: default}" in page
    assert MARKUP not in page


def test_two_admins_who_edit_the_same_revision_merge(admin: Client) -> None:
    services.pool_update(actor=ADA, name="default", paused=True)

    answer = save(admin, POLICY, revision=1)

    assert answer.status_code == 412
    assert current_config().revision == 2
    assert answer.context["merge"]["conflicts"] == []
    merged = answer.context["text"]
    assert save(admin, merged, revision=answer.context["revision"]).status_code == 302
    pool = Pool.objects.get(name="default")
    assert (pool.policy, pool.paused) == ("paper", True)


def test_a_member_that_both_changed_is_a_conflict(admin: Client) -> None:
    services.pool_update(actor=ADA, name="default", policy="minimum")

    answer = save(admin, POLICY, revision=1)

    (clash,) = answer.context["merge"]["conflicts"]
    assert (clash.member, clash.theirs, clash.mine) == ("policy", "minimum", "paper")


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("choice", ["refuse", "wait", "cancel"])
def test_a_change_that_strands_waiting_actions_is_refused_or_handled_as_chosen(
    admin: Client, redis_bus: Any, choice: str
) -> None:
    ActionRecord.objects.create(
        id="act_1", project="default", task="t", kind="noop", state="queued", submitted_at=NOW,
        cost={"api:demo": [4, 8]},
    )  # fmt: skip

    reviewed = admin.post("/configuration/review/", {"text": SHRINK, "revision": "1"})
    assert [one.action_id for one in reviewed.context["stranded"]] == ["act_1"]
    answer = save(admin, SHRINK, stranded=choice)

    limit = Resource.objects.get(name="api:demo").limit_units
    reported = [decode_command(m) for _, f in redis_bus.xrange(bus.keys().inbox)
            for m in unpack_fields(f)]  # fmt: skip
    cancelled = [each.action_id for each in reported if isinstance(each, ActionCancelRequested)]
    assert (answer.status_code, limit) == ((409, 8) if choice == "refuse" else (302, 2))
    assert cancelled == (["act_1"] if choice == "cancel" else [])


def test_a_revision_is_rolled_back_from_its_page(admin: Client) -> None:
    save(admin, POLICY)

    shown = admin.get("/configuration/revisions/1/").content.decode()
    assert "Roll back to 1" in shown
    admin.post("/configuration/revisions/1/", {"revision": "2"})

    assert current_config().revision == 3
    assert Pool.objects.get(name="default").policy == "malleable"
    stale = admin.post("/configuration/revisions/2/", {"revision": "2"})
    assert stale.status_code == 412
    listed = admin.get("/configuration/revisions/").content.decode()
    assert "update Pool default" in listed


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("choice", ["", "wait", "cancel"])
def test_going_back_to_what_would_strand_waiting_work_is_refused_or_as_chosen(
    admin: Client, redis_bus: Any, choice: str
) -> None:
    save(admin, SHRINK)
    save(admin, SHRINK.replace("limit_units: 2", "limit_units: 8"), revision=2)
    ActionRecord.objects.create(
        id="act_1", project="default", task="t", kind="noop", state="queued", submitted_at=NOW,
        cost={"api:demo": [4, 8]},
    )  # fmt: skip

    shown = admin.get("/configuration/revisions/2/")
    assert [one.action_id for one in shown.context["stranded"]] == ["act_1"]
    answer = admin.post(
        "/configuration/revisions/2/", {"revision": "3", **({"stranded": choice} if choice else {})}
    )

    limit = Resource.objects.get(name="api:demo").limit_units
    assert (answer.status_code, limit) == ((302, 2) if choice else (409, 8))
    cancelled = [
        each.action_id
        for _, fields in redis_bus.xrange(bus.keys().inbox)
        for each in map(decode_command, unpack_fields(fields))
        if isinstance(each, ActionCancelRequested)
    ]
    assert cancelled == (["act_1"] if choice == "cancel" else [])


def test_an_edit_is_merged_with_a_revision_that_was_rolled_back_under_it(admin: Client) -> None:
    """1. A user edits at revision 2. 2. Revision 1 is restored as 3. 3. The edit is merged with it."""
    save(admin, POLICY)
    services.pool_update(actor=ADA, name="default", policy="malleable")
    edited = POLICY.replace("policy: paper", "policy: paper, paused: true")

    answer = save(admin, edited, revision=2)

    assert answer.status_code == 412
    assert answer.context["merge"]["conflicts"] == []
    save(admin, answer.context["text"], revision=answer.context["revision"])
    pool = Pool.objects.get(name="default")
    assert (pool.policy, pool.paused) == ("malleable", True)


def test_a_merge_does_not_delete_what_was_created_meanwhile(admin: Client) -> None:
    whole = admin.get("/configuration/").context["text"]
    services.pool_create(actor=ADA, name="new")

    answer = save(admin, whole + "---\n" + LARGE, revision=1, prune="1")

    assert answer.status_code == 412
    assert b'value="1" checked' in answer.content
    merged, revision = answer.context["text"], answer.context["revision"]
    assert save(admin, merged, revision=revision, prune="1").status_code == 302
    assert set(Pool.objects.values_list("name", flat=True)) == {"default", "new", "large"}


def test_only_admins_change_the_configuration(admin: Client) -> None:
    operator = Client()
    operator.force_login(get_user_model().objects.create_user("ops", is_staff=True))

    assert operator.get("/configuration/").status_code == 200
    assert operator.get("/configuration/revisions/1/").status_code == 200
    for answer in (save(operator, POLICY), operator.get("/configuration/edit/"),
                   operator.post("/configuration/try/", {"text": POLICY}),
                   operator.post("/configuration/revisions/1/")):  # fmt: skip
        assert answer.status_code == 403
    assert AuditEntry.objects.count() == 0
    assert Client().get("/configuration/").status_code == 302
