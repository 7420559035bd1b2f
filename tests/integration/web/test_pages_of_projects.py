"""Pages of people, webhooks and simulations: nothing brings them down, and rows cost no queries."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

import pytest
from django.contrib.auth import get_user_model
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from domain.principals import Scope
from tangram_web.accounts.models import Membership
from tangram_web.audit.services import SYSTEM
from tangram_web.pools.services import token_create
from tangram_web.simulations.models import Simulation
from tangram_web.webhooks.models import Delivery, DeliveryAttempt, Endpoint
from tests.integration.web.test_pages_take_nonsense import MARKUP, NONSENSE

HOOK = "whk_0000000000000000"
PAGES = ("/people/", "/people/tokens/", "/people/sessions/", "/webhooks/", f"/webhooks/{HOOK}/",
         "/simulate/")  # fmt: skip


@pytest.fixture
def browser(defaults: None) -> Client:
    client = Client()
    client.force_login(get_user_model().objects.create_superuser("root", password=None))
    Endpoint.objects.create(
        id=HOOK, project_id="default", url="https://a.example/", secret="whsec_"
    )
    return client


def rows(first: int, last: int) -> None:
    for number in range(first, last):
        user = get_user_model().objects.create_user(f"user-{number}")
        Membership.objects.create(user=user, project_id="default")
        token_create(actor=SYSTEM, name="t", scopes=[Scope.READ], project="default", user=user)
        request = {"workload": "ai-coding", "policies": ["minimum"]}
        Simulation.objects.create(project_id="default", owner=user, request=request)
        Endpoint.objects.create(project_id="default", url="https://b.example/", secret="whsec_")
        reported = Delivery.objects.create(
            endpoint_id=HOOK, message_id=f"m{number}", event="node.lost", next_at=timezone.now()
        )
        DeliveryAttempt.objects.create(delivery=reported, status=500)


def count_of(browser: Client, page: str) -> int:
    with CaptureQueriesContext(connection) as asked:
        assert browser.get(page).status_code == 200
    return len(asked)


@pytest.mark.parametrize("page", PAGES)
def test_more_rows_are_not_more_queries(browser: Client, page: str) -> None:
    rows(0, 2)
    few = count_of(browser, page)
    rows(2, 20)

    assert count_of(browser, page) == few


@pytest.mark.parametrize("text", NONSENSE, ids=range(len(NONSENSE)))
def test_nonsense_is_answered_and_never_becomes_markup(browser: Client, text: str) -> None:
    fields = ("project", "username", "role", "name", "days", "scopes", "workload", "window",
              "policies", "batch", "seeds", "title", "pasted", "url", "events", "confirm",
              "session", "state", "enabled", "rewards")  # fmt: skip
    sent: dict[str, Any] = dict.fromkeys(fields, text)
    for page in PAGES:
        for answer in (browser.get(page, sent), browser.post(page, {**sent, "project": "default"})):
            assert answer.status_code < 500, page
            assert MARKUP.encode() not in answer.content, page
    for path in ("/simulate/{}/", "/webhooks/{}/", "/webhooks/{}/ping", "/people/tokens/{}/revoke"):
        address = path.format(quote(text, safe=""))
        assert browser.get(address).status_code in (404, 405)
        assert browser.post(address).status_code in (404, 405)
