"""Webhooks: what is told, signed, tried again, given up, and sent again by hand."""

from __future__ import annotations

import asyncio
import base64
import hmac
import json
from collections.abc import Callable
from datetime import timedelta
from hashlib import sha256
from random import Random
from typing import Any

import pytest
from asgiref.sync import async_to_sync, sync_to_async
from django.contrib.auth import get_user_model
from django.test import Client
from django.utils import timezone

from domain.decisions import RemoveEnvironment
from domain.events import NodeLost, TrajectoryFinished
from domain.ids import trajectory_key
from domain.limits import Limits
from managers.quota.calls.driver import open_connections
from managers.quota.pace import Pace, PaceState
from tangram_web.audit.models import AuditEntry
from tangram_web.people.models import Membership, Role
from tangram_web.pools.models import Project
from tangram_web.records import projection
from tangram_web.webhooks import outbox
from tangram_web.webhooks.delivering import CLAIM_SECONDS, claim_due, deliver_due, prune
from tangram_web.webhooks.models import Attempt, Delivery, Endpoint, State
from tangram_web.webhooks.schedule import MOST_ATTEMPTS, PAUSES_SECONDS, pause_seconds
from tangram_web.webhooks.signing import new_secret, signature
from tests.api_server import LocalApi, answer, local_api
from tests.integration.web.journal import Journal

ALL = ["trajectory.finished", "breaker.opened", "quota.exhausted", "node.lost"]
MARKUP = "<script>alert(1)</script>"


@pytest.fixture
def endpoint(defaults: None, settings: Any) -> Callable[..., Endpoint]:
    """Make endpoints; this machine may be called."""
    settings.TANGRAM_WEBHOOKS_LOOPBACK = True
    settings.TANGRAM_WEBHOOK_SECONDS = 5.0

    def make(url: str = "https://hooks.example.com/", **given: Any) -> Endpoint:
        fields = {"project_id": "default", "events": ALL, "secret": new_secret(), **given}
        return Endpoint.objects.create(url=url, **fields)

    return make


@pytest.fixture
def admin(defaults: None) -> Client:
    return signed_in(Role.ADMIN)


def signed_in(role: Role, project: str = "default") -> Client:
    Project.objects.get_or_create(name=project, defaults={"default_pool_id": "default"})
    user, _ = get_user_model().objects.get_or_create(username=f"{role}-{project}")
    Membership.objects.get_or_create(user=user, project_id=project, role=role)
    client = Client()
    client.force_login(user)
    return client


def a_delivery(endpoint: Endpoint, **given: Any) -> Delivery:
    fields = {"event": "node.lost", "subject": "node/n1", "body": '{"type":"node.lost"}',
              "message_id": outbox.new_message_id(), "next_at": timezone.now()}  # fmt: skip
    return Delivery.objects.create(endpoint=endpoint, **{**fields, **given})


def sent(behave: Callable[[LocalApi], None], endpoint: Callable[..., Endpoint]) -> tuple[Any, Any]:
    """Send one message to a local server that behaves so; return the row and what was asked."""

    async def one() -> LocalApi:
        async with local_api() as api:
            behave(api)
            made = await sync_to_async(endpoint)(f"http://127.0.0.1:{api.port}/hook?a=1")
            await sync_to_async(a_delivery)(made)
            assert await deliver_due(open_connections, Random(0)) == 1
            return api

    api = async_to_sync(one)()
    return Delivery.objects.select_related("endpoint").get(), api


# What is told


def test_the_end_of_a_trajectory_is_told_to_its_project_alone_and_once(endpoint):
    Project.objects.create(name="other", default_pool_id="default")
    mine, _ = endpoint(), endpoint(project_id="other")
    journal = Journal()
    journal.write([TrajectoryFinished(project="default", trajectory="t1", reason="done")])
    gone = RemoveEnvironment(trajectory_key("default", "t1"), "n1", "done")
    journal.write([], [gone])

    projection.project(journal.entries[:1], also=outbox.feed)
    projection.project(journal.entries, also=outbox.feed)
    projection.project(journal.entries, also=outbox.feed)

    told = Delivery.objects.get()
    assert told.endpoint == mine
    assert json.loads(told.body)["data"] == {
        "project": "default", "trajectory": "t1", "reason": "done",
    }  # fmt: skip


def test_a_lost_node_is_told_to_all_that_want_it(endpoint):
    endpoint(), endpoint(events=["trajectory.finished"]), endpoint(enabled=False)
    journal = Journal()
    journal.write([NodeLost(node="n1", incarnation=1)])

    projection.project(journal.entries, also=outbox.feed)

    assert Delivery.objects.get().event == "node.lost"


def test_what_is_not_projected_is_not_told(endpoint, monkeypatch):
    endpoint()
    journal = Journal()
    journal.write([NodeLost(node="n1", incarnation=1)])

    def breaks(*_: Any) -> None:
        raise RuntimeError("the database went away")

    monkeypatch.setattr(projection, "fold_nodes", breaks)
    with pytest.raises(RuntimeError):
        projection.project(journal.entries, also=outbox.feed)
    assert not Delivery.objects.exists()

    monkeypatch.undo()
    projection.project(journal.entries, also=outbox.feed)
    assert Delivery.objects.count() == 1


def test_a_circuit_and_a_quota_are_told_when_they_turn_bad_and_only_then(endpoint):
    endpoint()
    pace = Pace(Limits(), PaceState(open_until=10.0))
    bad = {"api:search": {"hindrance": pace.hindrance(1.0), "quotas": [
        {"units": 5, "left": 0, "window_seconds": 60}]}}  # fmt: skip
    well = {"api:search": {"hindrance": None, "quotas": [
        {"units": 5, "left": 1, "window_seconds": 60}]}}  # fmt: skip

    for stands in (well, bad, bad, well, bad):
        outbox.feed_standing(stands, timezone.now())

    told = sorted(Delivery.objects.values_list("event", flat=True))
    assert told == ["breaker.opened"] * 2 + ["quota.exhausted"] * 2


# How it is sent


def test_a_message_is_signed_so_that_its_receiver_can_check_it(endpoint):
    row, api = sent(lambda api: api.says(answer(204, b"", reason="No Content")), endpoint)

    asked = api.asked[0]
    said = asked.headers["webhook-signature"]
    signed = f"{row.message_id}.{asked.headers['webhook-timestamp']}.".encode() + asked.body
    key = base64.b64decode(row.endpoint.secret.removeprefix("whsec_"))
    expected = base64.b64encode(hmac.new(key, signed, sha256).digest()).decode()
    assert said == f"v1,{expected}"
    assert asked.headers["webhook-id"] == row.message_id
    assert (asked.method, asked.path) == ("POST", "/hook?a=1")
    assert (row.state, row.attempts) == (State.DELIVERED, 1)


def test_the_signature_is_that_of_the_specifications_example():
    said = signature(
        "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw",
        "msg_p5jXN8AQM9LWM0D4loKWxJek",
        1614265330,
        b'{"test": 2432232314}',
    )

    assert said == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="


def test_two_secrets_sign_during_a_rotation_and_one_afterwards(endpoint, admin):
    made = endpoint()
    old = made.secret

    page = admin.post(f"/webhooks/{made.pk}/rotate").content.decode()

    made.refresh_from_db()
    assert made.secret in page
    now = timezone.now()
    assert made.secrets_at(now) == [made.secret, old]
    assert made.secrets_at(now + timedelta(hours=25)) == [made.secret]
    assert made.secret not in admin.get(f"/webhooks/{made.pk}/").content.decode()


@pytest.mark.parametrize(
    ("response", "said"),
    [
        (answer(500, b"no", reason="Broken"), "HTTP 500"),
        (answer(302, b"", "Location: http://127.0.0.1:1/\r\n", reason="Found"), "HTTP 302"),
        (b"nonsense\r\n\r\n", "RemoteProtocolError"),
    ],
    ids=["an error", "a redirect, which is not followed", "no HTTP"],
)
def test_a_failure_is_tried_again_later(endpoint, response, said):
    before = timezone.now()
    row, api = sent(lambda api: api.says(response), endpoint)

    assert (row.state, row.attempts) == (State.PENDING, 1)
    assert said in row.last_said
    assert row.next_at >= before + timedelta(seconds=PAUSES_SECONDS[0])
    assert row.endpoint.failing_since is not None
    assert len(api.asked) == 1


def test_a_receiver_that_hangs_is_given_up_in_time(endpoint, settings):
    async def hang(*_: Any) -> None:
        await asyncio.Event().wait()

    def behave(api: LocalApi) -> None:
        settings.TANGRAM_WEBHOOK_SECONDS = 0.2
        api.behave = hang

    row, _ = sent(behave, endpoint)

    assert row.last_said == "no whole answer within 0.2 s"
    assert row.state == State.PENDING


def test_of_a_long_answer_only_the_beginning_is_kept(endpoint):
    row, _ = sent(lambda api: api.says(answer(200, b"x\0" * 50_000)), endpoint)

    assert len(row.tries.get().body) == 2048
    assert row.state == State.DELIVERED


def test_410_disables_the_endpoint_and_leaves_the_rest_dead(endpoint):
    row, _ = sent(lambda api: api.says(answer(410, b"", reason="Gone")), endpoint)

    assert row.state == State.DEAD
    assert not row.endpoint.enabled
    assert "410" in row.endpoint.notice


def test_retry_after_is_heeded(endpoint):
    busy = answer(503, b"", "Retry-After: 3600\r\n", reason="Busy")
    before = timezone.now()
    row, _ = sent(lambda api: api.says(busy), endpoint)

    assert row.next_at >= before + timedelta(seconds=3600)


@pytest.mark.parametrize("url", ["http://10.0.0.1/", "https://169.254.169.254/latest"])
def test_addresses_that_are_not_public_are_not_connected_to(endpoint, url):
    a_delivery(endpoint(url))

    async_to_sync(deliver_due)(open_connections, Random(0))

    assert "EgressRefused" in Delivery.objects.get().last_said


def test_this_machine_is_not_called_unless_a_setting_says_so(endpoint, settings):
    settings.TANGRAM_WEBHOOKS_LOOPBACK = False
    a_delivery(endpoint("http://127.0.0.1:9/"))

    async_to_sync(deliver_due)(open_connections, Random(0))

    assert "EgressRefused" in Delivery.objects.get().last_said


def test_ten_attempts_are_made_over_three_days_and_then_none():
    pauses = [pause_seconds(n, 0.0, Random(n)) for n in range(1, MOST_ATTEMPTS + 1)]

    assert MOST_ATTEMPTS == 10
    assert pauses[-1] is None
    for planned, given in zip(PAUSES_SECONDS, pauses, strict=False):
        assert given is not None
        assert planned <= given <= 1.1 * planned


def test_the_last_failure_leaves_a_message_dead(endpoint):
    made = a_delivery(endpoint("http://10.0.0.1/"), attempts=MOST_ATTEMPTS - 1)

    async_to_sync(deliver_due)(open_connections, Random(0))

    made.refresh_from_db()
    assert made.state == State.DEAD


def test_an_endpoint_that_fails_for_days_is_disabled_and_says_so(endpoint):
    made = endpoint("http://10.0.0.1/", failing_since=timezone.now() - timedelta(days=6))
    a_delivery(made)

    async_to_sync(deliver_due)(open_connections, Random(0))

    made.refresh_from_db()
    assert not made.enabled
    assert "5 days" in made.notice


def test_a_claimed_message_is_not_sent_twice_and_comes_back_when_its_sender_died(endpoint):
    a_delivery(endpoint())
    now = timezone.now()

    assert len(claim_due(now)) == 1
    assert claim_due(now) == []
    assert len(claim_due(now + timedelta(seconds=CLAIM_SECONDS + 1))) == 1


def test_old_messages_are_deleted_but_not_those_that_wait(endpoint):
    made = endpoint()
    old, waits = a_delivery(made, state=State.DEAD), a_delivery(made)
    Attempt.objects.create(delivery=old)
    Delivery.objects.update(created_at=timezone.now() - timedelta(days=40))

    prune(0)
    assert Delivery.objects.count() == 2
    prune(30)
    assert Delivery.objects.get() == waits


# The pages


def test_an_endpoint_is_added_its_secret_shown_once_and_changed(admin):
    page = admin.post("/webhooks/", {"project": "default", "url": "https://hooks.example.com/a",
                                     "events": ALL[:1]}).content.decode()  # fmt: skip

    made = Endpoint.objects.get()
    assert made.secret in page
    assert made.secret not in admin.get("/webhooks/").content.decode()
    answer_ = admin.post(f"/webhooks/{made.pk}/", {"url": made.url, "events": ALL})
    assert answer_.status_code == 302
    made.refresh_from_db()
    assert (made.events, made.enabled) == (sorted(ALL), False)
    told = AuditEntry.objects.filter(target=f"webhook/{made.pk}")
    assert sorted(told.values_list("verb", flat=True)) == ["create", "update"]
    assert not any(made.secret in str(entry.after) for entry in told)


@pytest.mark.parametrize(
    "url",
    [
        "http://hooks.example.com/", "https://10.0.0.1/", "https://localhost/", "https://[::1]/",
        "https://user:word@example.com/", "javascript:alert(1)", "https://", "https://a b/",
        "https://example.com:99999/", "file:///etc/passwd", "https://example.com/#x",
    ],
)  # fmt: skip
def test_addresses_that_must_not_be_called_are_refused_at_the_form(admin, url):
    answer_ = admin.post("/webhooks/", {"project": "default", "url": url, "events": ALL})

    assert answer_.status_code == 422
    assert not Endpoint.objects.exists()


def test_a_dead_message_is_sent_again_by_hand_under_its_own_id(endpoint, admin):
    made = endpoint()
    dead = a_delivery(made, state=State.DEAD, attempts=10, last_said=MARKUP, subject=MARKUP)
    Attempt.objects.create(delivery=dead, status=500, said=MARKUP, body=MARKUP)
    page = admin.get(f"/webhooks/{made.pk}/?state=dead").content.decode()
    assert dead.message_id in page
    assert MARKUP not in page

    admin.post(f"/webhooks/{made.pk}/replay/{dead.pk}")

    before = dead.message_id
    dead.refresh_from_db()
    assert (dead.state, dead.attempts, dead.message_id) == (State.PENDING, 0, before)


def test_a_test_message_is_sent_unless_the_endpoint_is_disabled(endpoint, admin):
    made = endpoint()
    admin.post(f"/webhooks/{made.pk}/ping")
    assert Delivery.objects.get().event == "endpoint.ping"

    Endpoint.objects.update(enabled=False)
    page = admin.post(f"/webhooks/{made.pk}/ping", follow=True).content.decode()
    assert "enable it first" in page
    assert Delivery.objects.count() == 1


def test_an_endpoint_is_deleted_once_its_address_was_typed(endpoint, admin):
    made = endpoint()
    admin.post(f"/webhooks/{made.pk}/delete", {"confirm": "yes"})
    assert Endpoint.objects.exists()

    admin.post(f"/webhooks/{made.pk}/delete", {"confirm": made.url})

    assert not Endpoint.objects.exists()


@pytest.mark.parametrize(
    ("role", "project", "sees", "pings", "changes"),
    [
        (Role.VIEWER, "default", 403, 403, 403),
        (Role.SUBMITTER, "default", 403, 403, 403),
        (Role.OPERATOR, "default", 200, 302, 403),
        (Role.ADMIN, "default", 200, 302, 302),
        (Role.ADMIN, "other", 404, 404, 404),
    ],
)
def test_each_role_may_what_it_may(endpoint, role, project, sees, pings, changes):
    made = endpoint()
    client = signed_in(role, project)

    assert client.get(f"/webhooks/{made.pk}/").status_code == sees
    assert client.post(f"/webhooks/{made.pk}/ping").status_code == pings
    same = {"url": made.url, "events": ALL, "enabled": "on"}
    assert client.post(f"/webhooks/{made.pk}/", same).status_code == changes
    rotated = client.post(f"/webhooks/{made.pk}/rotate").status_code
    assert rotated == (200 if changes == 302 else changes)


def test_forged_forms_are_refused(endpoint, admin):
    made = endpoint()
    strict = Client(enforce_csrf_checks=True)
    strict.cookies = admin.cookies

    assert strict.post(f"/webhooks/{made.pk}/rotate").status_code == 403
