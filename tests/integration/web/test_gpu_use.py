"""Use of GPUs on pages, in the API and on the live topic: figures of cards, words where there is no card."""

from __future__ import annotations

import json
from collections.abc import Callable
from time import time
from typing import Any

import pytest
from django.contrib.auth import get_user_model
from django.test import Client
from rest_framework.test import APIClient

from domain.allocation import Allocation
from domain.decisions import Grant
from domain.events import NodeJoined
from domain.ids import ActionId, node_resource
from domain.inventory import NodeInventory, ResourceInventory
from domain.principals import Scope
from domain.redis_keys import Keys
from tangram_web.lib import bus
from tangram_web.live.frames import FrameFold
from tangram_web.live.publisher import FramePublisher
from tangram_web.live.topic_store import save_snapshots, stored_snapshot
from tangram_web.live.topics import TopicFrame
from tangram_web.problems.watch import ProblemWatch
from tests.unit.live.journal import Journal

GIB = 2**30


@pytest.fixture
def browser(defaults: None, redis_bus: Any) -> Client:
    client = Client()
    client.force_login(
        get_user_model().objects.create_user("ops", is_staff=True, is_superuser=True)
    )
    return client


@pytest.fixture
def cluster(redis_bus: Any) -> float:
    """A node of four cards, of which an action holds two, and a node with declared GPUs."""
    journal = Journal()
    for name, declared in (("real", False), ("demo", True)):
        gpus = ResourceInventory(4000, ((0, 1, 2, 3),), oversubscribed=declared, memory_bytes=GIB)
        have = {"gpu": gpus}
        journal.write([NodeJoined(node=NodeInventory(name, name, 1, "train", have))], [])
    journal.submit("act_1")
    chunk = Allocation(node_resource("gpu", "real"), 2000, (2, 3))
    journal.write([], [Grant(ActionId("act_1"), "real", (chunk,))])
    fold, now = FrameFold(), time()
    for entry in journal.entries:
        fold.fold(entry)
    frames = [
        TopicFrame(each.topic, each.seq, each.revision, each.at, now, each.body, each.backlog)
        for each in fold.frames(journal.at).values()
    ]
    save_snapshots(redis_bus, bus.keys().prefix, frames)
    return now


def says(redis_bus: Any, at: float, **facts: Any) -> None:
    """The worker of the node with cards shows life."""
    life = {"role": "node", "at": at, **facts}
    redis_bus.hset(Keys().workers, "node@real", json.dumps(life))


def measured(redis_bus: Any, at: float) -> None:
    uses = {"0": (0.0, GIB), "1": (None, GIB), "2": (0.2, 20 * GIB), "3": (0.5, 40 * GIB)}
    totals = dict.fromkeys(uses, 80 * GIB)
    says(redis_bus, at, gpus=uses, gpu_memory=totals)


def test_pages_show_cards_and_held_chunks_and_say_what_is_simulated(
    browser: Client, redis_bus: Any, cluster: float
) -> None:
    measured(redis_bus, cluster)

    text = browser.get("/gpu/").content.decode()

    assert "<td>real</td><td>2</td><td>20 %</td><td>20 GiB of 80 GiB</td><td>2-3</td>" in text
    assert "<td>real</td><td>0</td><td>0 %</td>" in text
    assert "<td>real</td><td>1</td><td>unknown</td>" in text
    assert "<td>demo</td><td>0-3</td><td>no card: simulated</td><td>–</td><td>–</td>" in text
    assert "35 %, 60 GiB of 160 GiB" in text, "the use of the chunk that the action holds"
    nodes = browser.get("/workers/").content.decode()
    for use in ("utilisation unknown, 62 GiB of 320 GiB", "no card: simulated"):
        assert f'<a href="/gpu/">4</a><div class="muted">{use}' in nodes


def test_the_use_of_cards_in_the_past_is_not_stored_and_not_shown(
    browser: Client, redis_bus: Any, cluster: float
) -> None:
    measured(redis_bus, cluster)

    text = browser.get(f"/gpu/?at={int(cluster)}").content.decode()

    assert "Use of GPUs" not in text
    assert "20 GiB of 80 GiB" not in text


def test_a_silent_node_has_no_figures(browser: Client, redis_bus: Any, cluster: float) -> None:
    measured(redis_bus, cluster - 60)

    text = browser.get("/gpu/").content.decode()

    assert "<td>real</td><td>2</td><td>no measurement</td><td>–</td>" in text
    assert "0 %" not in text


def test_the_api_lists_gpus_with_figures_of_cards_alone(
    caller: Callable[..., APIClient], redis_bus: Any, cluster: float
) -> None:
    measured(redis_bus, cluster)
    reader = caller(Scope.READ)

    rows = {row["id"]: row for row in reader.get("/api/v1/gpus").json()["results"]}

    assert len(rows) == 8
    held = rows["real/3"]
    assert (held["state"], held["chunk"], held["pool"]) == ("measured", "2-3", "train")
    assert (held["busy_ratio"], held["used_bytes"], held["total_bytes"]) == (0.5, 40 * GIB, 80 * GIB)  # fmt: skip
    assert held["measured_at"].endswith("Z")
    demo = rows["demo/3"]
    assert (demo["state"], demo["chunk"]) == ("simulated", "")
    assert {demo[name] for name in ("busy_ratio", "used_bytes", "measured_at")} == {None}
    asked = reader.get("/api/v1/gpus?node=demo&pool=train").json()
    assert [row["node"] for row in asked["results"]] == ["demo"] * 4
    assert reader.get("/api/v1/gpus?pool=other").json()["results"] == []
    assert caller(Scope.SUBMIT).get("/api/v1/gpus").status_code == 403


def test_a_heartbeat_of_an_earlier_version_has_no_total(
    caller: Callable[..., APIClient], redis_bus: Any, cluster: float
) -> None:
    says(redis_bus, cluster, gpus={"0": (0.35, GIB)})

    row, unread = caller(Scope.READ).get("/api/v1/gpus?node=real").json()["results"][:2]

    assert (row["busy_ratio"], row["used_bytes"], row["total_bytes"]) == (0.35, GIB, None)
    assert unread["state"] == "unmeasured"


class Layer:
    """A channel layer that keeps what it is to send."""

    def __init__(self) -> None:
        self.topics: list[str] = []

    async def group_send(self, group: str, message: dict[str, Any]) -> None:
        """Keep the topic."""
        self.topics.append(message["topic"])


@pytest.mark.django_db(transaction=True)
def test_the_live_topic_follows_each_measurement(
    defaults: None, redis_bus: Any, cluster: float
) -> None:
    layer = Layer()
    measured(redis_bus, cluster)
    with FramePublisher(layer, redis_bus, bus.keys().prefix) as publisher:
        watch = ProblemWatch(redis_bus, bus.keys(), publisher)
        watch.turn(cluster)
        first = stored_snapshot(redis_bus, "gpus")
        layer.topics.clear()
        watch.turn(cluster + 0.1)
        unchanged = list(layer.topics)
        says(redis_bus, cluster + 1, gpus={"2": (0.9, GIB), "3": (0.7, GIB)})
        watch.turn(cluster + 1)
        watch.close()

    (chunk,) = first["chunks"]
    assert (chunk["gpus"], chunk["busy_ratio"], chunk["used_bytes"]) == ("2-3", 0.35, 60 * GIB)
    assert [row["gpus"] for row in first["cards"] if row["says"]] == ["0-3"]
    assert "gpus" not in unchanged
    assert "gpus" in layer.topics
    assert stored_snapshot(redis_bus, "gpus")["chunks"][0]["busy_ratio"] == pytest.approx(0.8)
