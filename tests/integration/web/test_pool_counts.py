"""Verbs on pools count actions by the scheduler, as the page of all pools does."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from django.contrib.auth import get_user_model
from django.test import Client

from tangram_web.lib import scheduler_client
from tangram_web.records.models import ActionRecord

pytestmark = pytest.mark.django_db


@pytest.fixture
def admin(defaults: None, redis_bus: Any, monkeypatch: pytest.MonkeyPatch) -> Client:
    """A browser of an admin; rows of actions name no pool, since their requests did not."""
    monkeypatch.setattr(scheduler_client, "ANSWER_SECONDS", 0.01)
    ActionRecord.objects.create(
        id="act_1", project="default", task="swe", kind="exec", submitted_at=datetime.now(UTC)
    )
    client = Client()
    client.force_login(get_user_model().objects.create_superuser("admin"))
    return client


@pytest.mark.parametrize("verb", ["pause", "resume", "policy", "share"])
def test_a_verb_on_a_pool_counts_what_the_page_of_pools_counts(
    admin: Client, verb: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts = {"queued": 29, "granted": 3, "running": 2}
    monkeypatch.setattr(scheduler_client, "status", lambda: {"pools": {"default": counts}})

    effect = admin.get(f"/act/pool/{verb}/", {"target": "default"}).context["effect"]
    (pool,) = admin.get("/operate/").context["pools"]

    assert effect.counts == pool["counts"] == {"waiting": 29, "granted": 3, "running": 2}


def test_a_verb_on_a_pool_says_that_its_actions_cannot_be_counted(admin: Client) -> None:
    effect = admin.get("/act/pool/pause/", {"target": "default"}).context["effect"]

    assert effect.counts == {}
    assert "cannot be counted now: the scheduler does not answer" in effect.warning
