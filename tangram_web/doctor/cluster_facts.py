"""Facts of a cluster that the doctor judges, as they were at one instant. Collected by `tangram_web.doctor.cluster_reading`.

None stands for what is not known: a part of an earlier version does not report it.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from contract.machine_facts import ClockDifference, MachineFacts
from contract.node_group_reports import NodeGroupReport
from domain.protection import Protection
from tangram_web.lib.redis_replication import RedisReplication


@dataclass(frozen=True, kw_only=True)
class ExaminedPart:
    """A process of Tangram that shows life: a loop, a web process, a projector, a jobs or rollout worker."""

    #: With host and process id.
    name: str
    role: str
    version: str = ""
    clock: ClockDifference | None = None
    #: Why a standby keeps no state, if it does not.
    cold: str = ""


@dataclass(frozen=True, kw_only=True)
class ExaminedNode:
    """One node."""

    name: str
    hostname: str = ""
    pool: str = "default"
    version: str = ""
    isolation: str = "none"
    protection: Protection | None = None
    #: Its pool gives actions only to nodes with a sandbox.
    needs_sandbox: bool = True
    drained: bool = False
    #: No heartbeat reaches Redis.
    is_silent: bool = False
    #: When it was lost (wall clock), where that is known.
    lost_at: float | None = None
    machine: MachineFacts | None = None
    #: Why its door was not reached; empty: it was; None: it was not tried.
    door_problem: str | None = None
    has_door: bool = True

    @property
    def place(self) -> str:
        """Name of the node, with that of its machine where it differs."""
        other = self.hostname and self.hostname != self.name
        return f"{self.name} (host {self.hostname})" if other else self.name


@dataclass(frozen=True, kw_only=True)
class ClusterFacts:
    """Everything that findings rest on."""

    #: Wall clock.
    now: float
    #: Host of the web process that looks, and its clock.
    web_host: str
    web_clock: ClockDifference | None = None
    #: Where nodes reach Redis, as ``host:port``.
    redis: str = "Redis"
    #: The loop that leads.
    leader: ExaminedPart | None = None
    parts: list[ExaminedPart] = field(default_factory=list)
    nodes: list[ExaminedNode] = field(default_factory=list)
    #: By name, as their keeper reported them last; None: it has not yet.
    groups: dict[str, NodeGroupReport | None] = field(default_factory=dict)
    #: Of Redis; None: it does not say.
    replication: RedisReplication | None = None
    #: Replicas that must confirm what is accepted (TANGRAM_REDIS_WAIT_REPLICAS of the web process).
    wait_replicas: int = 0
    #: A process keeps the node groups.
    has_keeper: bool = True
