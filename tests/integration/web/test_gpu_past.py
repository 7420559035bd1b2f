"""The GPU map at an instant of the past hours, or that no record of it exists."""

from __future__ import annotations

import re
from time import time
from typing import Any

import pytest
from django.contrib.auth import get_user_model
from django.test import Client
from msgspec import structs

from tangram_web.lib import bus
from tangram_web.live import gpu_history
from tangram_web.live.gpu_history import REPEAT_SECONDS, STEP_SECONDS, GpuHistoryStore, GpuSnapshot

MARKUP = "<img src=x onerror=alert(1)>"
NODE = {"name": "n1", "pool": "default", "state": "ready", "gpus": {"groups": ["0-3"]}}
NOW = int(time()) // STEP_SECONDS * STEP_SECONDS


@pytest.fixture
def browser(defaults: None, redis_bus: Any) -> Client:
    client = Client()
    client.force_login(get_user_model().objects.create_user("ops", is_staff=True))
    return client


@pytest.fixture
def store(redis_bus: Any) -> GpuHistoryStore:
    return GpuHistoryStore(redis_bus, bus.keys())


def scene(ago: int, service: str) -> GpuSnapshot:
    there = {"node": "n1", "service": service, "units": "0", "since": 0, "used": 0, "uses": 1}
    return GpuSnapshot(NOW - ago, [{**NODE, "holders": []}], [there], [])


def test_an_instant_is_answered_by_the_scene_before_it(
    browser: Client, store: GpuHistoryStore
) -> None:
    store.save([scene(600, "old"), scene(300, MARKUP)])

    said = browser.get(f"/gpu/past.json?at={NOW - 400}").json()

    assert (said["at"], said["nodes"][0]["name"]) == (NOW - 600, "n1")
    assert said["residents"][0]["service"] == "old"
    assert browser.get(f"/gpu/past.json?at={NOW}").json()["residents"][0]["service"] == MARKUP


def test_the_log_of_an_instant_has_all_restores_before_it(
    browser: Client, store: GpuHistoryStore
) -> None:
    """Each snapshot stores the restores since the one before; an instant shows those of all of them."""
    for number, ago in enumerate((900, 600, 300)):
        row = {"at": NOW - ago - 4, "what": "restored", "node": "n1", "service": f"s{number}"}
        store.save([structs.replace(scene(ago, "now"), log=[row])])

    said = browser.get(f"/gpu/past.json?at={NOW - 590}").json()

    assert [row["service"] for row in said["log"]] == ["s1", "s0"]


def test_an_unrecorded_time_is_not_made_up(browser: Client, store: GpuHistoryStore) -> None:
    store.save([scene(3000, "old"), scene(0, "new")])

    answer = browser.get(f"/gpu/past.json?at={NOW - 3000 + REPEAT_SECONDS + STEP_SECONDS + 1}")

    assert answer.status_code == 404
    assert "no state of the GPUs is stored" in answer.json()["detail"]


@pytest.mark.parametrize("at", ["", "then", "nan", "-1", "1e99"])
def test_an_invalid_instant_is_refused(browser: Client, at: str) -> None:
    assert browser.get(f"/gpu/past.json?at={at}").status_code == 400
    assert browser.get(f"/gpu/?at={at}").status_code == 400


def test_scenes_are_forgotten_after_hours(
    store: GpuHistoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu_history, "RETAINED_SECONDS", 60)

    store.save([scene(90, "old"), scene(60, "kept")])
    store.save([scene(0, "new")])

    assert store.span() == (NOW - 60, NOW)


def test_the_map_has_a_time_line_and_a_link_freezes_it(
    browser: Client, store: GpuHistoryStore
) -> None:
    assert b'id="scrub"' not in browser.get("/gpu/").content
    store.save([scene(600, "old"), scene(0, "new")])

    live = browser.get("/gpu/").content.decode()
    frozen = browser.get(f"/gpu/?at={NOW - 300}").content.decode()

    line = re.search(r'min="(\d+)" max="(\d+)"', live)
    assert line is not None
    assert int(line[1]) == NOW - 600
    assert NOW <= int(line[2]) <= time()  # to the present, however old the newest state is
    assert "<tg-live" in live
    assert f'data-frozen="{NOW - 300}"' in frozen
    assert "<tg-live" not in frozen
    assert "Back to live" in frozen


def test_strangers_see_no_past(db: None) -> None:
    assert Client().get("/gpu/past.json?at=1").status_code == 302
