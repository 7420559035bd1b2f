"""Webhooks at pages: secrets shown once, sent again by hand, each role what it may."""

from __future__ import annotations

import re
from datetime import timedelta

import pytest
from django.test import Client
from django.utils import timezone

from tangram_web.accounts.models import Role
from tangram_web.audit.models import AuditEntry
from tangram_web.webhooks.models import Delivery, DeliveryAttempt, DeliveryState, Endpoint
from tangram_web.webhooks.services import reseal_secrets
from tests.integration.web.webhooks.helpers import ALL, a_delivery, signed_in

MARKUP = "<script>alert(1)</script>"


def shown_once(page: str) -> str:
    found = re.search(r"whsec_[A-Za-z0-9+/=]+", page)
    assert found is not None
    return found[0]


def test_two_secrets_sign_during_a_rotation_and_one_afterwards(endpoint, admin):
    made = endpoint()
    (old,) = made.secrets_at(timezone.now())

    new = shown_once(admin.post(f"/webhooks/{made.pk}/rotate").content.decode())

    made.refresh_from_db()
    now = timezone.now()
    assert made.secrets_at(now) == [new, old]
    assert made.secrets_at(now + timedelta(hours=25)) == [new]
    assert new not in admin.get(f"/webhooks/{made.pk}/").content.decode()


def test_the_database_holds_no_secret_and_follows_a_rotated_key(admin, settings):
    page = admin.post("/webhooks/", {"project": "default", "url": "https://hooks.example.com/a",
                                     "events": ALL[:1]}).content.decode()  # fmt: skip
    made, secret = Endpoint.objects.get(), shown_once(page)
    assert secret.removeprefix("whsec_") not in made.secret
    assert reseal_secrets() == 0

    settings.SECRET_KEY, settings.SECRET_KEY_FALLBACKS = "the next key", [settings.SECRET_KEY]
    assert reseal_secrets() == 1
    settings.SECRET_KEY_FALLBACKS = []
    made.refresh_from_db()
    assert made.secrets_at(timezone.now()) == [secret]

    settings.SECRET_KEY = "a key without the former one"
    assert reseal_secrets() == 0  # left as it is, for the key may come back
    made.refresh_from_db()
    settings.SECRET_KEY = "the next key"
    assert made.secrets_at(timezone.now()) == [secret]


def test_an_endpoint_is_added_its_secret_shown_once_and_changed(admin):
    page = admin.post("/webhooks/", {"project": "default", "url": "https://hooks.example.com/a",
                                     "events": ALL[:1]}).content.decode()  # fmt: skip

    made, secret = Endpoint.objects.get(), shown_once(page)
    assert secret not in admin.get("/webhooks/").content.decode()
    answer_ = admin.post(f"/webhooks/{made.pk}/", {"url": made.url, "events": ALL})
    assert answer_.status_code == 302
    made.refresh_from_db()
    assert (made.events, made.enabled) == (sorted(ALL), False)
    reported = AuditEntry.objects.filter(target=f"webhook/{made.pk}")
    assert sorted(reported.values_list("verb", flat=True)) == ["create", "update"]
    assert not any(secret in str(entry.after) for entry in reported)


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
    dead = a_delivery(made, state=DeliveryState.DEAD, attempts=10, last_said=MARKUP, subject=MARKUP)
    DeliveryAttempt.objects.create(delivery=dead, status=500, said=MARKUP, body=MARKUP)
    page = admin.get(f"/webhooks/{made.pk}/?state=dead").content.decode()
    assert dead.message_id in page
    assert MARKUP not in page

    admin.post(f"/webhooks/{made.pk}/replay/{dead.pk}")

    before = dead.message_id
    dead.refresh_from_db()
    assert (dead.state, dead.attempts, dead.message_id) == (DeliveryState.PENDING, 0, before)


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
