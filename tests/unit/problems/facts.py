"""Facts of a system in which nothing is wrong, and of ones in which one thing is."""

from __future__ import annotations

from typing import Any

from tangram_web.problems.facts import (
    BlockerFact,
    EndpointFact,
    QueueFact,
    SystemFacts,
    WebProcessFact,
)

NOW = 1_800_000_000.0
POOL: dict[str, Any] = {
    "name": "coding", "policy": "paper", "paused": False, "queued": 3, "granted": 0, "running": 5,
    "oldest_seconds": 2.0, "cores_held": 8.0, "cores_total": 16.0, "cores_lost": 0.0,
    "gpus": {"held": 0, "total": 0, "lost": 0}, "nodes": 2, "nodes_lost": 0,
}  # fmt: skip
NODE: dict[str, Any] = {"name": "n1", "pool": "coding", "state": "ready", "hindrance": ""}
LOSS: dict[str, Any] = {"since": NOW - 30, "open": 12, "says": "It held 12 actions."}
QUOTA: dict[str, Any] = {
    "units": 50, "window_seconds": 3600.0, "zone": None, "used": 50, "left": 0,
    "eases_in_seconds": 60.0,
}  # fmt: skip
FAILING: dict[str, Any] = {
    "project": "lab", "task": "verify", "finished": 100, "failed": 80,
    "endings": {"exit code 137": 80}, "rollouts": 0, "unrewarded": 0, "rewarded_at": None,
}  # fmt: skip
SLOW: dict[str, Any] = {
    "project": "lab", "task": "verify", "family": "test", "actions": 40, "median_seconds": 12.0,
    "earlier_actions": 900, "earlier_median_seconds": 3.0, "earlier_seconds": 7200.0,
}  # fmt: skip


def calm(**changes: Any) -> SystemFacts:
    """Nothing is wrong, but for ``changes``."""
    given: dict[str, Any] = {
        "now": NOW,
        "overview": overview(),
        "nodes": [NODE],
        "resources": {},
        "queues": [],
        "roles": {"loop": NOW, "node": NOW, "projector": NOW},
        "node_workers": {"n1": NOW},
        "web": {"web-1": web()},
        "heartbeat_age": 0.1,
        "redis_memory": (10, 100),
        "redis_replicas": (1, 1),
        "endpoints": [],
    }
    return SystemFacts(**given | changes)


def overview(**changes: Any) -> dict[str, Any]:
    """The body of the overview topic."""
    return {
        "counts": {"queued": 3, "granted": 0, "running": 5},
        "oldest_seconds": 2.0,
        "durations": {"phases": {"act": {"p95": 8.4}}},
        "pools": [POOL],
        "resources": [],
        "wanted": [
            {
                "pool": "coding",
                "resource": "cpu",
                "waiting": 3,
                "units": 12.0,
                "oldest_seconds": 2.0,
            }
        ],
        "failing": [],
        "slow": [],
        "restores": {},
        "quarantined": [],
    } | changes


def wanted(resource: str, waiting: int) -> dict[str, Any]:
    """An overview in which actions wait for a resource."""
    need = {"pool": "coding", "resource": resource, "waiting": waiting, "units": float(waiting)}
    return overview(wanted=[{**need, "oldest_seconds": 9.0}])


def lost(**changes: Any) -> dict[str, Any]:
    """A node that is lost while work hangs on it."""
    alarm = "Node n1 is lost since 07:00:00 UTC. It held 12 actions."
    return {**NODE, "state": "lost", "loss": LOSS, "alarm": alarm} | changes


def queue(**changes: Any) -> QueueFact:
    """A queue whose head has waited for another action for long."""
    given: dict[str, Any] = {"pool": "coding", "waiting": 41, "waited_seconds": 900.0}
    return QueueFact(**given | {"blocked_by": "act_blocker1"} | changes)


def web(pid: int = 1, **changes: Any) -> WebProcessFact:
    """A web process that shows life."""
    given: dict[str, Any] = {"host": "h1", "pid": pid, "began": NOW - 900, "at": NOW}
    return WebProcessFact(**given | changes)


#: Kind → facts in which one problem of it holds.
WRONG: dict[str, SystemFacts] = {
    "node_lost": calm(nodes=[lost()]),
    "node_late": calm(node_workers={"n1": NOW - 8}),
    "part_dead": calm(roles={"loop": NOW - 60, "node": NOW}),
    "part_late": calm(lags={"projector": 90.0}),
    "web_dead": calm(web={"web-1": web(), "web-2": web(2, at=NOW - 60)}),
    "web_late": calm(web={"web-1": web(delay_seconds=2.5)}),
    "pool_paused": calm(overview=overview(pools=[POOL | {"paused": True}])),
    "quota_exhausted": calm(
        overview=wanted("api:serper", 121), resources={"api:serper": {"quotas": [QUOTA]}}
    ),
    "circuit_open": calm(
        overview=wanted("api:serper", 4),
        resources={"api:serper": {"hindrance": "the circuit is open", "quotas": []}},
    ),
    "service_thrashing": calm(overview=overview(restores={"judge": 9})),
    "service_quarantined": calm(overview=overview(quarantined=["judge"])),
    "task_failing": calm(overview=overview(failing=[FAILING])),
    "family_slow": calm(overview=overview(slow=[SLOW])),
    "disk_short": calm(nodes=[NODE | {"hindrance": "its disk has 1 GiB left"}]),
    "redis_memory": calm(redis_memory=(90, 100)),
    "redis_replicas": calm(redis_replicas=(1, 2)),
    "blocker": calm(
        queues=[queue()], blockers={"act_blocker1": BlockerFact(project="lab", task="verify")}
    ),
    "dead_letters": calm(dead_letters=2),
    "webhook_failing": calm(
        endpoints=[EndpointFact(id="whk_1", project="lab", host="ex.org", failing_since=NOW - 99)]
    ),
}
