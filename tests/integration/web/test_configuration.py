"""Changes of the configuration: revisions, audit, and what the scheduler hears."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from django.utils import timezone

from domain.codec import decode_command, decode_config, encode, unpack_fields
from domain.errors import Conflict, InvalidRequest, InvariantViolation, NotFound, Unavailable
from domain.events import ConfigApplied
from domain.inventory import Config, PoolConfig, ProjectConfig, default_config
from domain.limits import Quota
from domain.principals import Scope
from domain.project_limits import ProjectBounds, ProjectLimits
from tangram_web.audit.models import AuditEntry
from tangram_web.audit.services import SYSTEM, Actor
from tangram_web.lib import bus
from tangram_web.pools import services, tokens
from tangram_web.pools.models import ConfigRevision, Pool
from tangram_web.pools.selectors import current_config
from tangram_web.records.models import NodeRecord

ADA = Actor(name="ada", token_name="laptop", request_id="req-1")


def published(client: Any) -> tuple[Config, list[Config]]:
    """Return the configuration in force, and those that the scheduler was notified of."""
    names = bus.keys()
    reported = [
        decode_command(message)
        for _, fields in client.xrange(names.inbox)
        for message in unpack_fields(fields)
    ]
    assert all(isinstance(command, ConfigApplied) for command in reported)
    return decode_config(client.get(names.config)), [command.config for command in reported]


def test_fresh_installation_has_the_defaults_once(db):
    services.ensure_defaults()
    services.ensure_defaults()

    expected = default_config()
    config = current_config()
    assert config.revision == 1
    rules = {"sandbox": "required", "host_network": False}
    pools = {name: msgspec.structs.replace(p, **rules) for name, p in expected.pools.items()}
    assert (config.projects, config.pools) == (expected.projects, pools)
    assert config.resources == expected.resources


@pytest.mark.django_db(transaction=True)
def test_change_reaches_the_scheduler_after_its_commit(redis_bus):
    services.ensure_defaults()
    services.pool_create(actor=ADA, name="big", policy="minimum")
    services.project_create(actor=ADA, name="vision", default_pool="big")
    services.resource_set(actor=ADA, name="api:search", limit_units=3)
    services.node_drain(actor=ADA, node="n7", reason="disk")

    in_force, reported = published(redis_bus)

    assert in_force == current_config() == reported[-1]
    assert [config.revision for config in reported] == [2, 3, 4, 5]
    assert in_force.pools["big"] == PoolConfig(
        "big",
        sandbox="required",
        host_network=False,
        steady_counts=True,
        shadow_pools=True,
        move_environments=True,
        rebalance_environments=True,
        move_to_smaller=True,
        scan_after_shrinking=True,
    )
    assert in_force.projects["vision"] == ProjectConfig("vision", "big")
    assert in_force.resources["api:search"] == 3000
    assert in_force.drained_nodes == {"n7"}


def test_a_pool_says_how_long_its_nodes_may_be_silent(defaults):
    services.pool_update(actor=ADA, name="default", node_grace_seconds=10.0, node_dead_seconds=20.0)
    config = current_config()
    assert (config.grace_of("default"), config.death_of("default")) == (10.0, 20.0)
    with pytest.raises(InvalidRequest, match="actions end first") as refused:
        services.pool_update(actor=ADA, name="default", node_dead_seconds=9.0)
    assert refused.value.pointer == "/node_dead_seconds"
    with pytest.raises(InvalidRequest):
        services.pool_update(actor=ADA, name="default", node_grace_seconds=float("nan"))
    assert current_config() == config


@pytest.mark.django_db(transaction=True)
def test_a_change_that_is_rolled_back_is_not_published(redis_bus):
    services.ensure_defaults()

    with pytest.raises(Conflict):
        services.pool_create(actor=ADA, name="default")

    assert redis_bus.keys() == []
    assert AuditEntry.objects.count() == 0
    assert ConfigRevision.objects.count() == 1


def test_older_revision_does_not_replace_a_newer_one(redis_bus):
    assert bus.publish_config(Config(revision=7))

    assert not bus.publish_config(Config(revision=6))
    assert bus.publish_config(Config(revision=7))

    in_force, reported = published(redis_bus)
    assert in_force.revision == 7
    assert [config.revision for config in reported] == [7, 7]


def test_change_without_redis_is_saved_and_says_that_it_is_not_in_force(settings, tmp_path):
    settings.TANGRAM_REDIS_URL = f"unix://{tmp_path}/missing.sock"

    with pytest.raises(Unavailable, match="revision 4 is saved, and may not be in force"):
        bus.publish_config(Config(revision=4))


def test_each_change_has_its_audit_and_revision(defaults):
    services.pool_update(actor=ADA, name="default", paused=True)

    entry = AuditEntry.objects.get()
    assert (entry.actor, entry.token_name, entry.request_id) == ("ada", "laptop", "req-1")
    assert (entry.verb, entry.target) == ("update", "pool/default")
    assert (entry.before["paused"], entry.after["paused"]) == (False, True)
    revision = ConfigRevision.objects.get(number=2)
    assert revision.author == "ada"
    assert revision.snapshot["pools"]["default"]["paused"] is True


def test_change_that_changes_nothing_leaves_no_trace(defaults):
    services.pool_update(actor=ADA, name="default", paused=False)
    services.node_resume(actor=ADA, node="n1")
    services.node_drain(actor=ADA, node="n1")
    services.node_drain(actor=ADA, node="n1")

    assert AuditEntry.objects.count() == 1
    assert current_config().revision == 2


@pytest.mark.parametrize(
    ("change", "error", "pointer"),
    [
        (lambda: services.pool_create(actor=SYSTEM, name="no spaces"), InvalidRequest, "/name"),
        (lambda: services.pool_create(actor=SYSTEM, name="x" * 129), InvalidRequest, "/name"),
        (lambda: services.pool_create(actor=SYSTEM, name="default"), Conflict, "/name"),
        (lambda: services.pool_update(actor=SYSTEM, name="unknown"), NotFound, ""),
        (
            lambda: services.project_create(actor=SYSTEM, name="p", default_pool="unknown"),
            InvalidRequest,
            "/default_pool",
        ),
        (
            lambda: services.resource_set(actor=SYSTEM, name="cpu:n1", limit_units=1),
            InvalidRequest,
            "/name",
        ),
        (
            lambda: services.resource_set(actor=SYSTEM, name="search", limit_units=1),
            InvalidRequest,
            "/name",
        ),
        (
            lambda: services.resource_set(actor=SYSTEM, name="api:x", limit_units=-1),
            InvalidRequest,
            "/limit_units",
        ),
        (
            lambda: tokens.token_create(actor=SYSTEM, name="t", scopes=[]),
            InvalidRequest,
            "/scopes",
        ),
        (
            lambda: tokens.token_create(actor=SYSTEM, name="t\n", scopes=[Scope.READ]),
            InvalidRequest,
            "/name",
        ),
    ],
    ids=[
        "name with a space", "long name", "taken name", "unknown pool", "project of no pool",
        "resource of a node", "resource without kind", "negative limit", "token without scope",
        "token name of two lines",
    ],
)  # fmt: skip
def test_change_that_cannot_be_is_refused_with_its_field(defaults, change, error, pointer):
    with pytest.raises(error) as refusal:
        change()

    assert refusal.value.pointer == pointer
    assert current_config().revision == 1


@pytest.mark.parametrize("model", [AuditEntry, ConfigRevision])
def test_history_of_changes_is_written_once(defaults, model):
    services.pool_update(actor=ADA, name="default", paused=True)
    row = model.objects.first()

    with pytest.raises(InvariantViolation):
        row.save()
    with pytest.raises(InvariantViolation):
        row.delete()


@pytest.mark.django_db(transaction=True)
def test_a_policy_is_switched_over_rest_and_an_unknown_one_is_refused_with_the_known(
    redis_bus, caller
):
    client = caller(Scope.ADMIN)

    assert client.patch("/api/v1/pools/default", {"policy": "fixed(4)"}).status_code == 200
    refused = [
        client.patch("/api/v1/pools/default", {"policy": "fastest"}),
        client.post("/api/v1/pools", {"name": "big", "policy": "fixed(0)"}),
    ]

    in_force, _ = published(redis_bus)
    assert in_force.pools["default"].policy == "fixed(4)"
    for answer in refused:
        assert answer.status_code == 422
        assert "known are balanced, fixed(k), makespan" in answer.content.decode()
        assert answer.json()["errors"][0]["pointer"] == "/policy"


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("verb", ["drain", "resume"])
def test_a_mistyped_node_is_not_found_and_drains_no_later_node(redis_bus, caller, verb):
    client = caller(Scope.ADMIN)
    NodeRecord.objects.create(name="n1", pool="default", joined_at=timezone.now())
    refused = client.post(f"/api/v1/nodes/nosuch/{verb}")
    assert (refused.status_code, refused.json()["code"]) == (404, "not_found")
    assert "there are: n1" in refused.json()["detail"]
    assert not current_config().drained_nodes


@pytest.mark.django_db(transaction=True)
def test_configuration_over_rest(redis_bus, caller):
    client = caller(Scope.ADMIN)
    NodeRecord.objects.create(name="n1", pool="default", joined_at=timezone.now())

    made = client.post("/api/v1/pools", {"name": "big"}, headers={"X-Request-ID": "r-1"})
    assert (made.status_code, made.json()["policy"]) == (201, "malleable")
    paused = client.patch("/api/v1/pools/big", {"paused": True})
    assert paused.json()["paused"] is True
    assert client.post("/api/v1/projects", {"name": "v", "default_pool": "big"}).status_code == 201
    assert client.put("/api/v1/resources/api:x", {"limit_units": 2}).json()["limit_units"] == 2
    finishing = client.post("/api/v1/nodes/n1/drain", {"reason": "disk", "finishing": True}).json()
    assert (finishing["drained"], finishing["finishing"]) == (True, True)
    stopped = client.post("/api/v1/nodes/n1/drain", {"reason": "fire"}).json()
    assert (stopped["finishing"], stopped["reason"]) == (False, "fire")
    again = client.post("/api/v1/nodes/n1/drain", {"finishing": True}).json()
    assert again["finishing"] is False, "what an operator stops stays stopped"
    assert client.post("/api/v1/nodes/n1/resume").json()["drained"] is False

    in_force, _ = published(redis_bus)
    assert in_force == current_config()
    assert in_force.pools["big"].paused
    first = AuditEntry.objects.filter(target="pool/big").earliest("at")
    assert (first.actor, first.token_name, first.request_id) == ("trainer", "trainer", "r-1")
    assert Pool.objects.count() == 2


def test_rest_sets_the_limits_of_a_project(
    caller: Any, redis_bus: Any, defaults: None, settings: Any
) -> None:
    settings.TANGRAM_PROJECT_LIMITS = ProjectLimits(queued_actions=7, queued_bytes=8)
    client = caller(Scope.READ, Scope.CONFIG)
    made = client.post("/api/v1/projects", {"name": "v", "limits": {"queued_actions": 5}})
    changed = client.patch("/api/v1/projects/v", {"limits": {"queued_bytes": 100}})
    refused = client.patch("/api/v1/projects/v", {"limits": {"queued_actions": 0}})
    unknown = client.patch("/api/v1/projects/w", {"limits": {}})

    assert made.json()["limits"] == {"queued_actions": 5}
    assert made.json()["limits_in_force"]["queued_actions"] == 5
    assert changed.json()["limits"] == {"queued_bytes": 100}
    assert changed.json()["limits_in_force"] == {
        "queued_actions": 7, "queued_bytes": 100, "submissions_per_second": 5000.0,
        "burst_actions": 200_000,
    }  # fmt: skip
    assert (refused.status_code, unknown.status_code) == (422, 404)
    assert refused.json()["errors"][0]["pointer"] == "/limits/queued_actions"
    assert current_config().projects["v"].limits == ProjectBounds(queued_bytes=100)
    entry = AuditEntry.objects.filter(verb="update", target="project/v").get()
    assert (entry.before["limits"], entry.after["limits"]) == (
        {"queued_actions": 5},
        {"queued_bytes": 100},
    )


def test_rest_declares_shares_of_a_pool(caller: Any, redis_bus: Any, defaults: None) -> None:
    client = caller(Scope.READ, Scope.CONFIG)
    shares = {"cpu": {"vision": {"nominal_units": 6, "borrow_units": 0}}}

    changed = client.patch("/api/v1/pools/default", {"shares": shares})

    assert (changed.status_code, changed.json()["shares"]) == (200, shares)
    paused = client.patch("/api/v1/pools/default", {"paused": True})
    assert paused.json()["shares"] == shares
    assert current_config().pools["default"].shares["cpu"]["vision"].nominal == 6000
    refused = client.patch("/api/v1/pools/default", {"shares": {"cpu": {"vision": {"part": 6}}}})
    assert refused.status_code == 422
    assert refused.json()["errors"][0]["pointer"] == "/shares"


@pytest.mark.django_db(transaction=True)
def test_rest_says_when_a_change_is_saved_but_not_in_force(caller, settings, tmp_path):
    settings.TANGRAM_REDIS_URL = f"unix://{tmp_path}/missing.sock"
    client = caller(Scope.ADMIN)

    answer = client.post("/api/v1/pools", {"name": "big"})

    assert answer.status_code == 503
    assert "may not be in force yet" in answer.json()["detail"]
    assert answer["Retry-After"]


def test_published_configuration_is_what_others_decode(redis_bus):
    config = default_config()
    bus.publish_config(config)

    assert redis_bus.get("tangram:config") == encode(config)


SEARCH = {
    "limit_units": 20,
    "quotas": [
        {"units": 50, "window_seconds": 1.0, "margin_seconds": 0.1},
        {"units": 10_000, "zone": "Europe/Berlin"},
    ],
    "learn_from_units": 2,
    "breaker": {"failures": 3},
    "retries": {"attempts": 7},
    "api": {"base_url": "https://api.example.com/v1", "secret": "key", "secret_header": "X-Key"},
}


def test_an_api_is_declared_with_its_limits_and_changed_in_part(defaults, redis_bus, caller):
    client = caller(Scope.READ, Scope.CONFIG)
    with_defaults = client.put("/api/v1/resources/api:search", SEARCH, format="json").json()
    client.put("/api/v1/resources/api:search", {"limit_units": 30}, format="json")

    config = current_config()
    limits = config.limits["api:search"]
    assert with_defaults["api"]["methods"] == ["GET", "POST"]
    assert with_defaults["breaker"]["cooldown_seconds"] == 5.0
    assert (config.resources["api:search"], limits.least) == (30_000, 2000)
    assert limits.quotas == (
        Quota(50_000, 1.0, margin_seconds=0.1),
        Quota(10_000_000, zone="Europe/Berlin"),
    )
    assert (limits.breaker.failures, limits.retries.attempts) == (3, 7)
    assert config.apis["api:search"].secret == "key"
    assert client.get("/api/v1/resources/api:search").json()["limit_units"] == 30


@pytest.mark.parametrize(
    ("changes", "pointer"),
    [
        ({"quotas": [{"units": 0}]}, "/quotas/0/units"),
        ({"quotas": [{"units": 1, "zone": "Mars/Olympus"}]}, "/quotas/0/zone"),
        ({"quotas": [{"units": 1, "zone": "UTC", "window_seconds": 1.0}]}, "/quotas/0"),
        ({"quotas": [{"units": 1}, {"units": 2}]}, "/quotas"),
        ({"learn_from_units": 21}, "/learn_from_units"),
        ({"breaker": {"failures": 0}}, "/breaker/failures"),
        ({"breaker": {"failure": 1}}, "/breaker/failure"),
        ({"retries": {"attempts": 0}}, "/retries/attempts"),
        ({"api": {"base_url": "file:///etc/passwd"}}, "/api/base_url"),
        ({"api": {"base_url": "https://x", "headers": {"A": "b\r\nc"}}}, "/api/headers"),
        ({"api": {}}, "/api/base_url"),
        ({"api": {"base_url": "https://x", "cache": {"size_bytes": -1}}}, "/api/cache/size_bytes"),
        ({"shares": {"a": {"nominal_units": -1}}}, "/shares"),
    ],
    ids=str,
)
def test_an_impossible_configuration_is_refused_and_changes_nothing(
    defaults, redis_bus, caller, changes, pointer
):
    client = caller(Scope.READ, Scope.CONFIG)
    body = {**SEARCH, **changes}
    refused = client.put("/api/v1/resources/api:search", body, format="json")
    assert refused.status_code == 422
    assert refused.json()["errors"][0]["pointer"] == pointer
    assert "api:search" not in current_config().resources
