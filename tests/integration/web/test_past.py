"""The past is answered from the rings, with the revisions of the configuration marked on it."""

from __future__ import annotations

from time import time
from typing import Any

import pytest
from django.contrib.auth import get_user_model
from django.test import Client

from tangram_web.lib import bus
from tangram_web.live.frames import FrameFold
from tangram_web.live.rings import RINGS, Moment
from tangram_web.live.ringstore import RingStore
from tests.unit.live.journal import WALL_OFFSET, Journal


@pytest.fixture
def browser(defaults: None, redis_bus: Any) -> Client:
    client = Client()
    client.force_login(get_user_model().objects.create_user("ops", is_staff=True))
    return client


@pytest.fixture
def store(redis_bus: Any) -> RingStore:
    return RingStore(redis_bus, bus.keys())


def remember(store: RingStore, ago: float) -> None:
    """Store a few minutes that lie ``ago`` seconds back."""
    journal, fold = Journal(at=time() - ago - WALL_OFFSET), FrameFold()
    for number in range(4):
        journal.submit(f"a{number}")
        journal.finish(f"a{number}", timing=(0.0, 0.0, 2.0))
        journal.at += 1.0
    for entry in journal.entries:
        fold.fold(entry)
    fold.frames(journal.at + 45)
    store.save(fold.rings.take())


def test_a_range_is_answered_with_points_and_what_it_was_as_a_whole(
    browser: Client, store: RingStore
) -> None:
    remember(store, 300)

    answer = browser.get("/history.json?range=900").json()

    assert answer["whole"]["finished"] == 4
    assert 1.8 < answer["whole"]["phases"]["act"]["p50"] < 2.2
    assert len(answer["seconds"]) == len(answer["columns"]["finished"])
    # A rate is over the seconds that are known of a point.
    assert max(rate or 0 for rate in answer["columns"]["finished"]) == 1.0


def test_a_frozen_range_does_not_see_what_came_later(browser: Client, store: RingStore) -> None:
    remember(store, 300)

    answer = browser.get(f"/history.json?range=900&to={time() - 600}").json()

    assert answer["whole"]["finished"] == 0


def test_revisions_are_marked_where_they_came_in_force(browser: Client) -> None:
    marks = browser.get("/history.json?range=900").json()["marks"]

    assert marks
    assert abs(marks[-1]["at"] - time()) < 600


@pytest.mark.parametrize("query", ["range=x", "range=0", "range=1e12", "to=nan", "to=-1", "to=9e9"])
def test_nonsense_is_refused_with_a_reason(browser: Client, query: str) -> None:
    answer = browser.get(f"/history.json?{query}")

    assert answer.status_code == 400
    assert answer.json()["detail"]


def test_a_ring_keeps_as_many_moments_as_it_has_room_for(store: RingStore) -> None:
    def second(at: int) -> Moment:
        return Moment(at, 1, 0, 0, [0.0] * 4, {}, [0.0] * 4)

    length = RINGS[1]
    store.save({1: [second(at) for at in range(length + 50)]})
    store.save({1: [second(length + 50)]})

    kept = store.read(1, 0, 1e12)
    assert (kept[0].at, len(kept)) == (51, length)
    assert store.newest() == {1: length + 50}
