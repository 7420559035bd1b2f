"""Pages of fleets: workers, lengths, moves and routes as the scheduler answers them, and what members do not see."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from django.contrib.auth import get_user_model
from django.test import Client

from contract.fleet_reports import KeeperReport, OwnWorkerReport
from contract.fleet_status import (
    CacheMoveStatus,
    FleetsStatus,
    FleetStatus,
    FleetTrajectoryStatus,
    FleetWorkerStatus,
    RouteStatus,
)
from domain.fleets import FleetEngine, FleetWorker, PlacementName
from tangram_web.accounts.models import Membership, Role
from tangram_web.lib import bus, scheduler_client
from tangram_web.pools.models import FleetRow, Project

KEY = "default/t-1"
WORKERS = [
    FleetWorkerStatus(FleetWorker(number=1, name="w1", url="http://10.0.0.7:8000", slots=4), 4, 2, 5, 900),
    FleetWorkerStatus(
        FleetWorker(number=2, name="w2", url="http://10.0.0.8:8000", drained=True,
                    unhealthy="http://10.0.0.8:8000 refuses connections"),
    ),
]  # fmt: skip
STATUS = FleetStatus(
    "m", FleetEngine.VLLM, PlacementName.HEDGED, workers=WORKERS, unrouted={"no_worker": 3}, live=1,
    trajectories=[FleetTrajectoryStatus(KEY, "runs", 2, 50, 90, 1, 200.0, True)], seen=1,
    moves=[CacheMoveStatus("default/t-2", 1, 2, "running", 700, 12.0, 1.0)],
    route=RouteStatus(KEY, "cached", "The worker has the cache of this trajectory.", 1, 2, tokens_left=150.0,
                      tool_seconds_left=3.0, predictor="history"),
)  # fmt: skip


class StoredReports:
    """Redis with the report of one keeper."""

    def __init__(self, stored: bytes) -> None:
        self._stored = stored

    def hget(self, key: str, fleet: str) -> bytes:
        return self._stored


@pytest.fixture
def asked(defaults: None, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Answer for the scheduler; return what it was asked."""
    questions: list[Any] = []

    def fleets(fleet: str = "", **about: Any) -> FleetsStatus:
        questions.append((fleet, about))
        return FleetsStatus([STATUS])

    monkeypatch.setattr(scheduler_client, "fleets", fleets)
    FleetRow.objects.create(name="m", spec={"engine": "vllm"})
    return questions


def browser(role: Role | None = None) -> Client:
    user = get_user_model().objects.create_user("reader", is_staff=role is None)
    if role is not None:
        Membership.objects.create(user=user, project_id="default", role=role)
    client = Client()
    client.force_login(user)
    return client


def test_a_fleet_shows_workers_lengths_moves_and_why_here(asked: list[Any]) -> None:
    text = browser().get("/fleets/m/", {"trajectory": KEY}).content.decode()

    assert "http://10.0.0.7:8000" in text
    assert "w1: 4 of 4 slots used, 2 wait" in text
    assert "unhealthy: http://10.0.0.8:8000 refuses connections" in text
    assert '<span class="chip" data-is="drained">drained</span>' in text
    assert '<rect class="open" y="0" width="100.0%"' in text
    assert '<rect class="execution" y="4" width="25.0%"' in text
    assert "runs, pinned" in text
    assert "running for 1 s" in text or "running for 1.0 s" in text
    assert "The worker has the cache of this trajectory." in text
    assert "150 tokens, 3.0 s in tools, by history" in text
    assert "3 without a worker (no_worker)" in text


def test_members_of_one_project_see_no_address_of_a_worker(asked: list[Any]) -> None:
    Project.objects.create(name="other", default_pool_id="default")
    text = browser(Role.VIEWER).get("/fleets/m/").content.decode()

    assert "10.0.0." not in text
    assert "unhealthy: it fails" in text
    assert asked[-1][1]["projects"] == ("default",)


@pytest.mark.parametrize("role", [None, Role.VIEWER])
def test_workers_on_gpus_say_where_they_are_and_to_readers_of_all_projects_why(
    asked: list[Any], monkeypatch: pytest.MonkeyPatch, role: Role | None
) -> None:
    own = [OwnWorkerReport("own-2x-1", 2, "starts", "ConnectError at 10.0.0.9", "n7", (4, 5))]
    Project.objects.create(name="other", default_pool_id="default")
    stored = msgspec.json.encode(KeeperReport(own=own))
    monkeypatch.setattr(bus, "redis_client", lambda: StoredReports(stored))
    text = browser(role).get("/fleets/m/").content.decode()

    assert "own-2x-1" in text
    assert "n7" in text
    assert "4, 5" in text
    assert ("starts: ConnectError at 10.0.0.9" in text) == (role is None)


def test_all_fleets_are_listed_and_an_unknown_one_is_missing(asked: list[Any]) -> None:
    client = browser()

    assert 'data-fleet="m"' in client.get("/fleets/").content.decode()
    assert client.get("/fleets/unknown/").status_code == 404


def test_without_a_fleet_the_page_says_how_to_declare_one(
    defaults: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scheduler_client, "fleets", FleetsStatus)

    assert "tangram apply -f fleet.yaml" in browser().get("/fleets/").content.decode()
