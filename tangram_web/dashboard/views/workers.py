"""Workers: live processes, the leader, lags of journal readers, nodes, versions that differ, and runs of jobs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import redis
from django.http import HttpRequest

from contract.node_group_reports import NodeGroupReport
from domain.errors import Unavailable
from domain.version import VERSION
from tangram_web.dashboard.scheduler_selectors import asked
from tangram_web.lib import bus, scheduler_client
from tangram_web.lib.job_runs import JobRun, JobRuns
from tangram_web.live.gpu_use import gpu_uses, node_rows
from tangram_web.live.topic_store import stored_snapshot
from tangram_web.live.topics import NODES
from tangram_web.metrics.reading import READERS, read_system
from tangram_web.pools.group_reports import node_group_reports
from tangram_web.problems import kinds

#: Kinds of problems whose subjects are processes: those that are gone have no row among the live ones.
PROCESS_KINDS: Final = frozenset(
    kind.key for kind in (kinds.PART_DEAD, kinds.PART_LATE, kinds.WEB_DEAD, kinds.WEB_LATE)
)


def workers(request: HttpRequest) -> dict[str, Any]:
    """Show processes and nodes from Redis, and durations from the scheduler; lost nodes stay listed."""
    status, problem = asked(scheduler_client.status)
    runs: list[JobRun] = []
    groups: dict[str, NodeGroupReport] = {}
    nodes: list[dict[str, Any]] = []
    try:
        standing = read_system(bus.redis_client(), bus.keys(), READERS)
        groups = node_group_reports()
        runs = JobRuns(bus.redis_client(), bus.keys()).all()
        nodes = stored_snapshot(bus.redis_client(), NODES).get("nodes", [])
        use = node_rows(gpu_uses(nodes, (), standing.gpus()))
        nodes = [node | {"use": use.get(node["name"])} for node in nodes]
    except (redis.RedisError, Unavailable) as error:
        standing, problem = None, f"redis does not answer: {error}"
    drains = _drains(status or {})
    nodes = [node | {"drain": drains.get(node["name"], "")} for node in nodes]
    warm = [] if standing is None else [(*key, facts) for key, facts in standing.warm()]
    return {
        "status": status, "standing": standing, "runs": runs, "problem": problem, "warm": warm,
        "nodes": nodes, "groups": groups, "version": VERSION, "process_kinds": PROCESS_KINDS,
    }  # fmt: skip


def _drains(status: Mapping[str, Any]) -> dict[str, str]:
    """Return what each drain that lets trajectories finish has done, in a sentence; a loop of an earlier version says nothing."""
    found = {each["name"]: each.get("drain") for each in status.get("nodes", [])}
    return {name: drain["text"] for name, drain in found.items() if drain}
