"""History: charts come from rollups, with marks at revisions of the configuration."""

from __future__ import annotations

import csv
import io
from time import time
from typing import Any

import pytest
from django.contrib.auth import get_user_model
from django.test import Client

from tangram_web.accounts.models import Membership, Role
from tangram_web.lib import bus
from tangram_web.live.frames import FrameFold
from tangram_web.live.rollups.projects import PendingRollups, ProjectRollups
from tangram_web.live.rollups.rollup import RETAINED, Rollup
from tangram_web.live.rollups.store import RollupStore
from tangram_web.pools.models import Project
from tests.unit.live.journal import WALL_OFFSET, Journal


@pytest.fixture
def browser(defaults: None, redis_bus: Any) -> Client:
    client = Client()
    client.force_login(get_user_model().objects.create_user("ops", is_staff=True))
    return client


@pytest.fixture
def store(redis_bus: Any) -> RollupStore:
    return RollupStore(redis_bus, bus.keys())


def remember(store: RollupStore, ago: float) -> None:
    """Store a few minutes that lie ``ago`` seconds back."""
    journal, fold = Journal(at=time() - ago - WALL_OFFSET), FrameFold()
    for number in range(4):
        journal.submit(f"a{number}")
        journal.finish(f"a{number}", timing=(0.0, 0.0, 2.0))
        journal.at += 1.0
    for entry in journal.entries:
        fold.fold(entry)
    fold.frames(journal.at + 45)
    store.save(fold.rollups.take_complete())


def test_a_range_is_answered_with_points_and_what_it_was_as_a_whole(
    browser: Client, store: RollupStore
) -> None:
    remember(store, 300)

    answer = browser.get("/history.json?range=900").json()

    assert answer["whole"]["finished"] == 4
    assert 1.8 < answer["whole"]["phases"]["act"]["p50"] < 2.2
    assert len(answer["seconds"]) == len(answer["columns"]["finished"])
    # A rate is over the seconds that are known of a point.
    assert max(rate or 0 for rate in answer["columns"]["finished"]) == 1.0


def test_a_frozen_range_has_no_later_data(browser: Client, store: RollupStore) -> None:
    remember(store, 300)

    answer = browser.get(f"/history.json?range=900&to={time() - 600}").json()

    assert answer["whole"]["finished"] == 0


def test_revisions_are_marked_at_the_time_they_were_applied(browser: Client) -> None:
    marks = browser.get("/history.json?range=900").json()["marks"]

    assert marks
    assert abs(marks[-1]["at"] - time()) < 600


@pytest.mark.parametrize("query", ["range=x", "range=0", "range=1e12", "to=nan", "to=-1", "to=9e9"])
def test_nonsense_is_refused_with_a_reason(browser: Client, query: str) -> None:
    answer = browser.get(f"/history.json?{query}")

    assert answer.status_code == 400
    assert answer.json()["detail"]


def test_a_ring_keeps_as_many_moments_as_it_has_room_for(store: RollupStore) -> None:
    def second(at: int) -> Rollup:
        return Rollup(at, 1, 0, 0, [0.0] * 4, {}, [0.0] * 4)

    length = RETAINED[1]
    store.save({1: [second(at) for at in range(length + 50)]})
    store.save({1: [second(length + 50)]})

    kept = store.read(1, 0, 1e12)
    assert (kept[0].at, len(kept)) == (51, length)
    assert store.newest() == {1: length + 50}


def remember_project(project: str, ago: float) -> None:
    """Store a few minutes of a project that lie ``ago`` seconds back."""
    journal, fold = Journal(at=time() - ago - WALL_OFFSET), FrameFold()
    fold.project_activity.rollups = ProjectRollups()
    for number in range(4):
        journal.submit(f"a{number}", project=project)
        journal.finish(f"a{number}", project=project, timing=(0.0, 0.0, 2.0))
        journal.at += 1.0
    for entry in journal.entries:
        fold.fold(entry)
    fold.frames(journal.at + 45)
    RollupStore(bus.redis_client(), bus.keys()).save_projects(
        fold.project_activity.rollups.take_pending()
    )


@pytest.fixture
def member(defaults: None, redis_bus: Any) -> Client:
    """A viewer of the project lab, which is not the only one."""
    Project.objects.create(name="lab", default_pool_id="default")
    user = get_user_model().objects.create_user("ada")
    Membership.objects.create(user=user, project_id="lab", role=Role.VIEWER)
    client = Client()
    client.force_login(user)
    return client


@pytest.mark.parametrize("seconds", [900, 86_400, 1_209_600])
def test_a_member_has_the_past_of_his_project_and_of_no_other(
    member: Client, store: RollupStore, seconds: int
) -> None:
    remember(store, 300)
    remember_project("lab", 300)
    remember_project("secret", 300)

    answer = member.get(f"/history.json?range={seconds}").json()

    assert answer["whole"]["finished"] == 4
    assert (answer["marks"], answer["note"]) == ([], "")
    assert "cores" not in answer["columns"]
    assert member.get("/history.json?range=900&project=secret").status_code == 404
    assert member.get("/export/history.csv?range=900&project=secret").status_code == 400


def test_staff_may_look_at_the_past_of_one_project(browser: Client, store: RollupStore) -> None:
    Project.objects.create(name="lab", default_pool_id="default")
    remember_project("lab", 300)

    assert browser.get("/history.json?range=900").json()["whole"]["finished"] == 0
    lab = browser.get("/history.json?range=900&project=lab").json()
    assert (lab["whole"]["finished"], bool(lab["marks"])) == (4, True)
    rows = browser.get("/export/history.csv?range=900&project=lab").getvalue().decode()
    assert any(float(row["finished"] or 0) for row in csv.DictReader(io.StringIO(rows)))


def test_a_project_without_a_past_is_given_the_reason(member: Client) -> None:
    answer = member.get("/history.json?range=900").json()

    assert answer["whole"]["seconds"] == 0
    assert "No history of project lab is stored" in answer["note"]


def test_a_replaced_project_leaves_nothing_in_redis(redis_bus: Any) -> None:
    remember_project("lab", 300)
    store = RollupStore(redis_bus, bus.keys())
    assert 15 in store.projects()["lab"].newest

    store.save_projects(PendingRollups(frozenset({"lab"}), {}, {}))

    assert store.projects() == {}
    assert redis_bus.keys("*history:*") == []


def test_ranges_of_a_project_stay_with_it(member: Client) -> None:
    text = member.get("/?range=3600&project=lab").content.decode()

    assert 'href="?range=86400&amp;project=lab"' in text
    assert 'id="freeze" href="?range=3600&amp;project=lab"' in text
