"""The part of ``GET /status`` that `top`, `doctor` and reports show.

Anything may be missing: an older server, or one that is just starting, says less.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

#: States of a node that takes actions, or will after its drain ends.
ALIVE = frozenset({"ready", "drained", ""})


@dataclass(frozen=True, slots=True)
class NodeSummary:
    """One node."""

    name: str
    pool: str
    state: str
    cores_held: float
    cores_total: float
    #: How commands are kept apart: ``bwrap`` or ``process``.
    isolation: str = ""
    #: It declares more cores than it has.
    oversubscribed: bool = False
    #: Cores beside these, for Tangram's own processes and light actions.
    cores_kept: int = 0
    #: Of a node that lets its trajectories finish: those that are left, and what was moved and what it waits for.
    is_draining: bool = False
    trajectories: int = 0
    drain: str = ""

    @property
    def alive(self) -> bool:
        return self.state in ALIVE

    @classmethod
    def of(cls, body: Mapping[str, Any]) -> Self:
        cpu = (body.get("resources") or {}).get("cpu") or {}
        total = float(cpu.get("capacity") or 0)
        drain = body.get("drain") or {}
        return cls(
            name=str(body.get("name", "?")),
            pool=str(body.get("pool", "")),
            state=str(body.get("state", "")),
            cores_held=total - float(cpu.get("free", total)),
            cores_total=total,
            isolation=str(body.get("isolation", "")),
            oversubscribed=bool(cpu.get("oversubscribed")),
            cores_kept=int(cpu.get("kept") or 0),
            is_draining=body.get("drain") is not None,
            trajectories=int(drain.get("trajectories") or 0),
            drain=str(drain.get("text") or ""),
        )


@dataclass(frozen=True, slots=True)
class PoolSummary:
    """One pool; ``running`` counts what holds units."""

    name: str
    running: int
    queued: int
    policy: str = ""
    paused: bool = False

    @classmethod
    def of(cls, name: str, body: Mapping[str, Any]) -> Self:
        return cls(
            name=name,
            running=int(body.get("running") or 0) + int(body.get("granted") or 0),
            queued=int(body.get("queued") or 0),
            policy=str(body.get("policy", "")),
            paused=bool(body.get("paused")),
        )


@dataclass(frozen=True, slots=True)
class StatusSummary:
    """The whole system at one moment, as its leader sees it."""

    version: str
    leader: str
    trajectories: int
    pools: tuple[PoolSummary, ...]
    nodes: tuple[NodeSummary, ...]
    #: Roles of the workers that show life.
    roles: tuple[str, ...]
    #: The Redis server: standing, detail and cure; empty from an older server.
    redis: tuple[str, str, str] = ("", "", "")

    @classmethod
    def of(cls, body: Mapping[str, Any]) -> Self:
        pools = body.get("pools") or {}
        return cls(
            version=str(body.get("version") or ""),
            leader=str(body.get("leader") or ""),
            trajectories=int(body.get("trajectories") or 0),
            pools=tuple(PoolSummary.of(name, pool) for name, pool in pools.items()),
            nodes=tuple(NodeSummary.of(node) for node in body.get("nodes") or ()),
            roles=tuple(str(worker.get("role", "?")) for worker in body.get("workers") or ()),
            redis=_redis(body.get("redis") or {}),
        )

    @property
    def running(self) -> int:
        return sum(pool.running for pool in self.pools)

    @property
    def queued(self) -> int:
        return sum(pool.queued for pool in self.pools)

    @property
    def cores_held(self) -> float:
        return sum(node.cores_held for node in self.nodes if node.alive)

    @property
    def cores_total(self) -> float:
        return sum(node.cores_total for node in self.nodes if node.alive)


def _redis(body: Mapping[str, Any]) -> tuple[str, str, str]:
    return str(body.get("standing", "")), str(body.get("detail", "")), str(body.get("cure", ""))
