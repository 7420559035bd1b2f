"""Saved views that endpoints watch: one message when a view begins to find rows, one when it finds none any more."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.contrib.auth import get_user_model
from django.test import Client

from domain.ids import action_id
from tangram_web.explorer.models import SavedView
from tangram_web.lib.sealing import seal
from tangram_web.pools.models import Project
from tangram_web.records.models import ActionRecord
from tangram_web.webhooks.models import PURPOSE, Delivery, Endpoint, WatchedView
from tangram_web.webhooks.signing import new_secret
from tangram_web.webhooks.watched_views import announce_views, watches

pytestmark = pytest.mark.django_db

AT = datetime(2026, 11, 20, 12, tzinfo=UTC)
EVENTS = ["view.found", "view.empty"]


@pytest.fixture(autouse=True)
def _projects(defaults: None) -> None:
    Project.objects.create(name="other", default_pool_id="default")


def a_view(query: str = "state:queued", project: str = "default", **given: Any) -> SavedView:
    return SavedView.objects.create(
        name="Waits", tab="actions", query=query, project_id=project, **given
    )


def endpoint(*views: SavedView, project: str = "default") -> Endpoint:
    return Endpoint.objects.create(
        project_id=project, url=f"https://{project}.example.com/", events=EVENTS, views=[view.pk for view in views],
        secret=seal(new_secret(), PURPOSE),
    )  # fmt: skip


def waiting(number: int, project: str = "default") -> ActionRecord:
    made = str(action_id(int(AT.timestamp() * 1000), number.to_bytes(8, "big")))
    return ActionRecord.objects.create(
        id=made, project=project, task="swe", trajectory="t-1", kind="exec", state="queued", submitted_at=AT,
        cost={"cpu": [1]},
    )  # fmt: skip


def sent() -> list[tuple[str, str, int]]:
    rows = Delivery.objects.order_by("id").values_list("event", "endpoint__project", "body")
    return [(event, project, json.loads(body)["data"]["rows"]) for event, project, body in rows]


def test_a_view_is_announced_when_it_begins_to_find_rows_and_when_it_finds_none() -> None:
    view = a_view(order="-queue")
    endpoint(view)
    assert watches()
    assert announce_views(AT) == 0

    first = waiting(1)
    assert announce_views(AT + timedelta(seconds=30)) == 1
    second = waiting(2)
    assert announce_views(AT + timedelta(seconds=60)) == 0
    ActionRecord.objects.filter(pk__in=[first.pk, second.pk]).delete()
    assert announce_views(AT + timedelta(seconds=90)) == 1
    assert announce_views(AT + timedelta(seconds=120)) == 0

    assert sent() == [("view.found", "default", 1), ("view.empty", "default", 0)]
    ended = json.loads(Delivery.objects.latest("id").body)["data"]
    assert ended["since"] == "2026-11-20T12:00:30Z"
    assert ended["evidence"] == "/actions/?q=state%3Aqueued&sort=-queue"
    waiting(3)
    announce_views(AT + timedelta(seconds=150))
    assert [event for event, _, _ in sent()] == ["view.found", "view.empty", "view.found"]


def test_a_view_counts_rows_of_its_project_and_tells_endpoints_that_watch_it() -> None:
    own, other = a_view(), a_view(project="other")
    endpoint(own)
    endpoint(other, project="other")
    endpoint(project="default")

    waiting(1, project="other")
    announce_views(AT)

    assert sent() == [("view.found", "other", 1)]


def test_a_view_that_is_deleted_or_watched_no_more_is_forgotten_without_a_message() -> None:
    view = a_view()
    watching = endpoint(view)
    waiting(1)
    announce_views(AT)
    assert WatchedView.objects.count() == 1

    watching.enabled = False
    watching.save()
    announce_views(AT)

    assert not WatchedView.objects.exists()
    assert not watches()
    assert [event for event, _, _ in sent()] == ["view.found"]


def test_the_form_offers_views_of_the_project_and_refuses_others() -> None:
    user = get_user_model().objects.create_superuser("root")
    own = a_view(owner=user)
    alone = SavedView.objects.create(name="Mine", tab="actions", owner=user)
    client = Client()
    client.force_login(user)

    form = client.get(f"/webhooks/?events=view.found&views={own.pk}").content.decode()
    assert f'value="{own.pk}" checked' in form
    assert alone.pk not in form

    made = {"project": "default", "url": "https://hooks.example.com/", "events": EVENTS}
    nothing = client.post("/webhooks/", made)
    foreign = client.post("/webhooks/", {**made, "project": "other", "views": [own.pk]})
    assert (nothing.status_code, foreign.status_code) == (422, 422)
    assert "choose at least one saved view" in nothing.content.decode()
    assert "choose views that are saved for members of other" in foreign.content.decode()
    client.post("/webhooks/", {**made, "views": [own.pk]})
    assert Endpoint.objects.get().views == [own.pk]
