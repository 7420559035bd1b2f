"""Pages of fleets: workers, lengths, moves and routes as the scheduler answers them, and what members do not see."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from html import unescape
from typing import Any

import msgspec
import pytest
from django.contrib.auth import get_user_model
from django.test import Client
from msgspec.structs import replace

from contract.fleet_reports import KeeperReport, OwnWorkerReport, ProbedWorker
from contract.fleet_status import (
    CacheMoveStatus,
    FleetPlanStatus,
    FleetsStatus,
    FleetStatus,
    FleetTrajectoryStatus,
    FleetWorkerStatus,
    PlannedPlacement,
    RouteStatus,
)
from domain.fleet_events import FleetWorkersChanged
from domain.fleets import FleetEngine, FleetWorker, PlacementName, PriorityUse, WorkerFact
from tangram_web.accounts.models import Membership, Role
from tangram_web.audit.models import AuditEntry
from tangram_web.fleets.drawings import accuracy_of
from tangram_web.fleets.probes import silent_seconds, worker_rows
from tangram_web.lib import bus, scheduler_client
from tangram_web.operations import audited_events
from tangram_web.pools.manifests import parse
from tangram_web.pools.models import FleetRow, Project

KEY = "default/t-1"
WORKERS = [
    FleetWorkerStatus(FleetWorker(number=1, name="w1", url="http://10.0.0.7:8000", slots=4,
                                  priorities=PriorityUse.LOWER_FIRST), 4, 2, 5, 900),
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
                      tool_seconds_left=3.0, predictor="history", pin=1),
    plan=FleetPlanStatus("arranged", "The policy arranges.", 2, 1, 1, 50.0, 40.0, [PlannedPlacement(KEY, 1, 2, 90, 150.0)]),
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


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Return the events that verbs send."""
    events: list[Any] = []
    monkeypatch.setattr(audited_events, "send_commands", lambda *sent: events.extend(sent))
    return events


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
    assert '<rect class="held" y="4" width="25.0%"' in text
    assert "runs, pinned" in text
    assert "running for 1 s" in text or "running for 1.0 s" in text
    assert "The worker has the cache of this trajectory." in text
    assert "150 tokens, 3.0 s in tools, by history" in text
    assert "to w1, from its next generation on" in text
    assert "3 without a worker: no worker takes generations" in text


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

    text = browser().get("/fleets/").content.decode()

    assert "tangram apply fleet.yaml" in text
    assert parse(unescape(text.partition('<pre class="command">')[2].partition("</pre>")[0]))


def test_a_dry_run_shows_what_would_move_and_its_gain(asked: list[Any]) -> None:
    text = browser().get("/fleets/m/", {"plan": "1"}).content.decode()

    assert asked[-1][1]["plan"]
    assert "1 of 2 trajectories would be on another worker." in text
    assert "What is left would end in about 40 s instead of 50 s: 10 s (20.0 %) sooner" in text
    assert "Something is predicted of 1 of them" in text
    assert "nothing was changed" in text
    assert "auto_refresh" not in text


def test_what_the_keeper_found_is_beside_each_worker() -> None:
    now = datetime(2026, 11, 20, 12, 0, 5, tzinfo=UTC)
    probed = ProbedWorker("w1", "2026-11-20T12:00:03Z", "no answer", -2)
    rows = worker_rows(WORKERS, KeeperReport(workers=[probed]), now)

    assert [(row.checked_seconds, row.failing) for row in rows] == [(2.0, 2), (None, 0)]
    assert silent_seconds(rows) is None
    later = worker_rows(WORKERS, KeeperReport(workers=[probed]), now + timedelta(seconds=60))
    assert silent_seconds(later) == 62.0
    assert (rows[0].priorities, rows[0].moves) == ("lower first", "not known yet")


def test_predicted_times_are_drawn_over_true_ones() -> None:
    drawn = accuracy_of([(20.0, 10.0), (10.0, 10.0), (1.0, 100.0)])

    assert drawn is not None
    assert (drawn.median, round(drawn.factor, 1)) == (1.0, 2.0)
    assert drawn.dots[1:] == [(165.0, 100.0), (330.0, 200.0)]
    assert drawn.ticks == [(0.0, 200.0, 1.0), (165.0, 100.0, 10.0), (330.0, 0.0, 100.0)]
    assert accuracy_of([]) is None
    equal = accuracy_of([(0.0, 0.0)])
    assert equal is not None
    assert len(equal.ticks) == 2


def test_a_worker_is_drained_and_the_form_says_what_becomes_of_its_load(
    asked: list[Any], sent: list[Any]
) -> None:
    client = browser()
    page = client.get("/act/worker/drain/", {"target": "m/w1"}).content.decode()
    done = client.post("/act/worker/drain/", {"target": "m/w1"}, follow=True).content.decode()

    assert "no other worker of the fleet takes generations" in page.lower()
    assert "tangram fleet drain m w1" in page
    assert sent == [FleetWorkersChanged(fleet="m", facts=(WorkerFact("w1", drained=True),))]
    assert "Undo: Undrain" in done
    assert AuditEntry.objects.latest("id").target == "worker/m/w1"


def test_a_drained_worker_is_not_drained_again(asked: list[Any], sent: list[Any]) -> None:
    again = browser().post("/act/worker/drain/", {"target": "m/w2"}).content.decode()

    assert "Nothing was changed" in again
    assert sent == []


def test_operators_of_a_project_pin_its_trajectories_and_drain_no_worker(
    asked: list[Any], sent: list[Any]
) -> None:
    Project.objects.create(name="other", default_pool_id="default")
    client = browser(Role.OPERATOR)
    fleet = client.get("/fleets/m/").content.decode()
    refused = client.post("/act/worker/drain/", {"target": "m/w1"})
    client.post("/act/trajectory/pin/", {"target": KEY, "worker": "m/w2"})

    assert ("Unpin…" in fleet, "Drain…" in fleet) == (True, False)
    assert refused.status_code == 403
    assert [(each.fleet, each.trajectory, each.worker) for each in sent] == [("m", KEY, "w2")]


def test_a_pin_is_ended_and_a_pin_of_an_unknown_trajectory_is_missing(
    asked: list[Any], sent: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    client = browser()
    client.post("/act/trajectory/unpin/", {"target": KEY})
    refused = client.post("/act/trajectory/pin/", {"target": KEY, "worker": "m/none"})
    monkeypatch.setattr(
        scheduler_client, "fleets", lambda *_, **__: FleetsStatus([replace(STATUS, route=None)])
    )
    unknown = client.get("/act/trajectory/pin/", {"target": "default/unknown"})

    assert [(each.trajectory, each.worker) for each in sent] == [(KEY, "")]
    assert (refused.status_code, unknown.status_code) == (422, 404)
