"""Page of batches: bytes by worker and rank beside one controller, expired ones, and what members of a project see."""

from __future__ import annotations

from time import time
from typing import Any

import msgspec
import pytest
from django.contrib.auth import get_user_model
from django.test import Client

from contract.batch_status import StoredBatch
from contract.batch_views import BatchPull, BatchSummary
from tangram_web.accounts.models import Membership, Role
from tangram_web.lib import bus
from tangram_web.pools.models import Project
from tangram_web.rollouts.batch_page import pairs_of

MIB = 2**20


def store(redis: Any, batch: str, project: str = "default", *, expires: float = 600.0) -> None:
    """Store a batch of two ranks, as a web process and two workers do."""
    keys, now = bus.keys(), time()
    summary = BatchSummary(
        id=batch, project=project, created_at="2026-01-01T00:00:00Z", expires_at="2026-01-01T01:00:00Z",
        expired=False, ranks=2, rollouts=3, rows=4, tokens=12345, bytes=4 * MIB, weights_versions=(3, 4),
        bytes_by_rank=[3 * MIB, MIB], left_out=1,
    )  # fmt: skip
    stored = StoredBatch(
        id=batch, created=now - 60, expires=now + expires, stored_bytes=9, summary=summary
    )
    redis.hset(keys.batches(project), batch, msgspec.json.encode(stored))
    redis.sadd(keys.batch_projects, project)


def browser(role: Role | None = None) -> Client:
    user = get_user_model().objects.create_user("reader", is_staff=role is None)
    if role is not None:
        Membership.objects.create(user=user, project_id="default", role=role)
    client = Client()
    client.force_login(user)
    return client


def test_a_batch_shows_bytes_by_pair_beside_one_controller(defaults: None, redis_bus: Any) -> None:
    store(redis_bus, "bat_1")
    redis_bus.hset(
        bus.keys().batch_pulls("bat_1"),
        mapping={"0/w1": 2 * MIB, "0/w2": MIB, "1/": MIB},
    )
    text = browser().get("/batches/").content.decode()

    assert '<th scope="col">gateway</th><th scope="col">w1</th><th scope="col">w2</th>' in text
    assert "<td>–</td><td>2 MiB</td><td>1 MiB</td><td>3 MiB</td>" in text
    assert "the busiest endpoint is rank 0 with 3 MiB" in text
    assert (
        "would carry 8 MiB: 4 MiB gathered and 4 MiB scattered, 2.7 × the busiest endpoint" in text
    )
    assert "1 rollouts left out" in text
    assert "version 3 to 4" in text


def test_an_expired_batch_says_what_to_do_and_an_unknown_one_that_it_is_gone(
    defaults: None, redis_bus: Any
) -> None:
    store(redis_bus, "bat_1", expires=-5.0)
    client = browser()
    text = client.get("/batches/", {"batch": "bat_1"}).content.decode()
    assert "create it again from the same rollouts" in text
    assert '<span class="chip" data-is="expired">expired</span>' in text
    assert "No rank has pulled a row of it yet." in text
    assert "No batch of this id is kept" in client.get("/batches/", {"batch": "x"}).content.decode()


def test_members_see_batches_of_their_project_alone(defaults: None, redis_bus: Any) -> None:
    Project.objects.create(name="other", default_pool_id="default")
    store(redis_bus, "bat_mine")
    store(redis_bus, "bat_theirs", "other")
    text = browser(Role.VIEWER).get("/batches/", {"batch": "bat_theirs"}).content.decode()
    assert "bat_mine" in text
    assert "theirs" not in text


def test_without_a_batch_the_page_names_the_command(defaults: None, redis_bus: Any) -> None:
    text = browser().get("/batches/").content.decode()
    assert "tangram batch create --group GROUP --ranks 4" in text


@pytest.mark.parametrize("workers", [12, 13])
def test_workers_beyond_the_table_are_added_up(workers: int) -> None:
    pulls = [BatchPull(f"w{number:02}", 0, 100 - number) for number in range(workers)]
    found = pairs_of(pulls)
    assert found.workers == [f"w{number:02}" for number in range(12)] + ["others"] * (workers - 12)
    assert found.lines[0].pulled == sum(each.bytes for each in pulls)
    assert found.lines[0].cells[-1] == 100 - (workers - 1)
