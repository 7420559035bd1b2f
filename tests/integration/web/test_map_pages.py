"""The pages of cores, GPUs and APIs say what there is, who holds it and who waits for it."""

from __future__ import annotations

import json
from time import time
from typing import Any

import pytest
from django.contrib.auth import get_user_model
from django.test import Client

from contract.responses import QueueDetails, QueuesResponse, WaitDetails
from domain.redis_keys import Keys
from tangram_web.dashboard import resource_selectors
from tangram_web.dashboard.views import apis
from tangram_web.lib import scheduler_client
from tangram_web.live.frames import FrameFold
from tangram_web.live.topic_store import snapshot_key
from tests.unit.live.journal import Journal

MARKUP = "<img src=x onerror=alert(1)>"
STATUS: dict[str, dict[str, Any]] = {
    "api:search": {
        "capacity": 8,
        "free": 6.5,
        "ceiling": 4,
        "hindrance": "paused for 3 s: it answered 429",
        "quotas": [
            {"units": 100, "window_seconds": 60.0, "zone": None, "used": 40, "left": 60,
             "eases_in_seconds": 12.0}
        ],
    },
    "cpu:n1": {"capacity": 4, "free": 4},
}  # fmt: skip
A_SHARE = {
    "pool": None, "resource": "api:search", "project": "lab", "nominal": 3, "borrow": None,
    "lend": 1, "used": 5, "borrowed": 2, "left": 0, "waiting": 4,
}  # fmt: skip


@pytest.fixture
def browser(defaults: None, redis_bus: Any) -> Client:
    client = Client()
    client.force_login(get_user_model().objects.create_user("ops", is_staff=True))
    return client


def publish(redis_bus: Any, journal: Journal) -> None:
    fold = FrameFold()
    for entry in journal.entries:
        fold.fold(entry)
    for topic, frame in fold.frames(journal.at).items():
        redis_bus.set(snapshot_key("tangram", topic), frame.encode_snapshot())


def test_a_core_map_opens_with_its_holders_before_any_script_ran(
    browser: Client, redis_bus: Any
) -> None:
    journal = Journal()
    journal.join("n1")
    journal.submit("act_1", task=MARKUP)
    journal.grant("act_1", (0, 1))
    publish(redis_bus, journal)

    text = browser.get("/cpu/").content.decode()

    assert 'href="/actions/act_1/"' in text
    assert "<td>0-1</td>" in text
    assert MARKUP not in text


def test_the_gpu_map_says_how_much_host_memory_services_take(
    browser: Client, redis_bus: Any
) -> None:
    journal = Journal()
    journal.join("n1")
    publish(redis_bus, journal)
    assert "Host memory of services" not in browser.get("/gpu/").content.decode()
    life = {"role": "node", "at": time() + 300, "service_memory": (3 * 2**30, 12 * 2**30)}
    redis_bus.hset(Keys().workers, "node@n1", json.dumps(life))

    text = browser.get("/gpu/").content.decode()

    assert "Host memory of services" in text
    assert "<td>n1</td><td>3 GiB</td><td>12 GiB</td><td>25.0 %</td>" in text
    assert "Host memory of services" not in browser.get(f"/gpu/?at={int(time())}").content.decode()


def test_a_system_without_gpus_says_how_to_have_some(browser: Client, redis_bus: Any) -> None:
    journal = Journal()
    journal.join("n1")
    publish(redis_bus, journal)

    text = browser.get("/gpu/").content.decode()

    assert "No node offers GPUs" in text
    assert "TANGRAM_NODE_GPUS=8 ./tangram up" in text


def test_an_api_says_what_is_open_used_up_and_who_waits() -> None:
    why = WaitDetails("short_of", "waits for api:search", "api:search")
    line = QueueDetails("default", None, {}, 0, 7, "act_a", "p", "t", None, 3.0, why)
    cores = {**A_SHARE, "pool": "default", "resource": "cpu"}

    (row,) = resource_selectors.api_rows(
        STATUS, {"api:search": ""}, QueuesResponse([line], 1, 7), [A_SHARE, cores]
    )

    assert (row["name"], row["held"], row["capacity"], row["ceiling"]) == ("api:search", 1.5, 8, 4)
    assert (row["waiting"], row["shares"]) == (7, [A_SHARE])


@pytest.mark.parametrize(
    ("changed", "waiting", "said"),
    [
        ({}, 0, ("paused", "paused for 3 s: it answered 429")),
        ({"quotas": [{"left": 0}]}, 0, ("exhausted", "quota used up")),
        ({"hindrance": None, "free": 0}, 7, ("full", "all units held")),
        ({"hindrance": None, "free": 0}, 0, ("ready", "available")),
        ({"hindrance": None, "quotas": [{"left": 1}]}, 7, ("ready", "available")),
    ],
)
def test_an_api_is_judged_by_whether_its_actions_can_start(
    changed: dict[str, Any], waiting: int, said: tuple[str, str]
) -> None:
    stands = {"api:search": {**STATUS["api:search"], **changed}}
    (row,) = resource_selectors.api_rows(stands, {"api:search": ""}, None, [])

    assert resource_selectors.standing_of({**row, "waiting": waiting}) == said


def test_the_page_of_apis_shows_quota_burn_and_pauses(
    browser: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        scheduler_client, "status", lambda: {"resources": STATUS, "shares": [A_SHARE]}
    )
    monkeypatch.setattr(scheduler_client, "queues", lambda: QueuesResponse([], 0, 0))
    monkeypatch.setattr(apis, "resource_addresses", lambda sight: {"api:search": ""})

    text = browser.get("/apis/").content.decode()

    assert "paused for 3 s: it answered 429" in text
    assert "1.5 of 8, limited to 4 by its responses" in text
    assert "100 in 1m 00s" in text
    assert '<td>lab</td><td class="right">5</td><td class="right">3</td>' in text
