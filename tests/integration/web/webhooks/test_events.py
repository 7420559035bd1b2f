"""Webhook events, written from the journal in the transaction that projects it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from domain.decisions import Degraded, RemoveEnvironment
from domain.events import NodeLost, TrajectoryFinished
from domain.ids import ResourceId, trajectory_key
from domain.limits import Degradation, Quota, QuotaUse
from domain.resources import MILLI
from tangram_web.pools.models import Project
from tangram_web.records import projection
from tangram_web.webhooks import outbox
from tangram_web.webhooks.models import Delivery
from tests.integration.web.journal import Journal


def test_the_end_of_a_trajectory_is_sent_to_its_project_alone_and_once(endpoint):
    Project.objects.create(name="other", default_pool_id="default")
    mine, _ = endpoint(), endpoint(project_id="other")
    journal = Journal()
    journal.write([TrajectoryFinished(project="default", trajectory="t1", reason="done")])
    gone = RemoveEnvironment(trajectory_key("default", "t1"), "n1", "done")
    journal.write([], [gone])

    projection.project(journal.entries[:1], also=outbox.store_events)
    projection.project(journal.entries, also=outbox.store_events)
    projection.project(journal.entries, also=outbox.store_events)

    reported = Delivery.objects.get()
    assert reported.endpoint == mine
    assert json.loads(reported.body)["data"] == {
        "project": "default", "trajectory": "t1", "reason": "done",
    }  # fmt: skip


def test_a_lost_node_is_sent_to_all_subscribers(endpoint):
    endpoint(), endpoint(events=["trajectory.finished"]), endpoint(enabled=False)
    journal = Journal()
    journal.write([NodeLost(node="n1", incarnation=1)])

    projection.project(journal.entries, also=outbox.store_events)

    assert Delivery.objects.get().event == "node.lost"


def test_events_that_are_not_projected_are_not_sent(endpoint, monkeypatch):
    endpoint()
    journal = Journal()
    journal.write([NodeLost(node="n1", incarnation=1)])

    def breaks(*_: Any, **__: Any) -> None:
        raise RuntimeError("the database went away")

    monkeypatch.setattr(projection, "_move", breaks)
    with pytest.raises(RuntimeError):
        projection.project(journal.entries, also=outbox.store_events)
    assert not Delivery.objects.exists()

    monkeypatch.undo()
    projection.project(journal.entries, also=outbox.store_events)
    assert Delivery.objects.count() == 1


def a_quota(left: int = 0, seconds: float = 60.0) -> Degraded:
    quota = Quota(5 * MILLI, window_seconds=seconds)
    return Degraded(ResourceId("api:search"), Degradation(QuotaUse(quota, 5 * MILLI, left, None)))


def test_a_circuit_that_opens_is_sent_each_time(endpoint):
    endpoint()
    journal = Journal()
    for _ in range(2):
        turn = Degradation(detail="its circuit is open after failures, for another 5 s")
        journal.write([], [Degraded(ResourceId("api:search"), turn)])

    projection.project(journal.entries, also=outbox.store_events)
    projection.project(journal.entries, also=outbox.store_events)  # read again after a crash

    reported = list(Delivery.objects.values_list("event", "subject"))
    assert reported == [("breaker.opened", "breaker/api:search")] * 2
    assert "its circuit is open" in Delivery.objects.all()[0].body


def test_a_quota_in_constant_use_is_sent_once_until_it_was_calm(endpoint):
    endpoint()
    journal = Journal()
    for _ in range(4):  # half a second between them
        journal.write([], [a_quota()])
    projection.project(journal.entries, also=outbox.store_events)
    journal.write([], [a_quota(), a_quota(seconds=1.0)])
    projection.project(journal.entries, also=outbox.store_events)
    subjects = ["quota/api:search/60.0", "quota/api:search/1.0"]
    assert list(Delivery.objects.order_by("id").values_list("subject", flat=True)) == subjects

    journal.at += outbox.CALM.total_seconds()
    journal.write([], [a_quota()])
    projection.project(journal.entries, also=outbox.store_events)

    assert Delivery.objects.count() == 3
    assert json.loads(Delivery.objects.order_by("id")[0].body)["data"] == {
        "resource": "api:search", "units": 5.0, "window_seconds": 60.0, "zone": None,
        "used": 5.0, "left": 0.0,
    }  # fmt: skip
