"""Kinds of problems: the one definition that pages, API, CLI, metrics, alerts and `docs/problems.md` follow.

A kind says when a problem of it is raised and cleared, for how long its condition must hold before, which
thresholds it has, and what to do. `tangram_web.problems.conditions` decides whether a condition holds,
`tangram_web.problems.judge` what becomes of it over time.

Critical: work is lost or cannot proceed. Warning: work fails or slows. The severity of a kind is the
greatest that its problems have.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

#: The page of the documentation, as other texts link it.
DOCUMENT: Final = "docs/problems.md"


class Severity(StrEnum):
    """How bad a problem is, worst first."""

    CRITICAL = "critical"
    WARNING = "warning"


@dataclass(frozen=True, kw_only=True)
class ProblemKind:
    """One kind of problem."""

    key: str
    #: Names the kind in lists and settings of notifications.
    name: str
    severity: Severity
    #: What it means, when it is raised and cleared, and what to do: sentences.
    means: str
    raised: str
    cleared: str
    to_do: str
    #: The condition holds this long before the problem is raised, and is gone this long before it is cleared.
    raise_seconds: float
    clear_seconds: float = 5.0
    #: Names of members of `ProblemThresholds`.
    thresholds: tuple[str, ...] = ()

    @property
    def anchor(self) -> str:
        """Return the anchor of its section in the documentation."""
        return self.name.lower().replace(" ", "-")

    @property
    def alert(self) -> str:
        """Return the name of its alert in Prometheus."""
        return "TangramProblem" + "".join(part.title() for part in self.key.split("_"))


_CRITICAL: Final = Severity.CRITICAL
_WARNING: Final = Severity.WARNING

NODE_LOST: Final = ProblemKind(
    key="node_lost", name="Node lost", severity=_CRITICAL, raise_seconds=0,
    means="A node sends no heartbeat. What it held ends as unknown after the grace period, or waits again where it is replay-safe.",
    raised="The scheduler declares the node lost. It is critical while actions or environments hang on it, or while its pool has no other node; "
    "else it is a warning. A drained node without work is no problem.",
    cleared="The node returns, or it is forgotten.",
    to_do="Look at the machine and the log of its node worker. Retire a node that does not come back, then forget it.",
)  # fmt: skip
NODE_LATE: Final = ProblemKind(
    key="node_late", name="Node slow", severity=_WARNING, raise_seconds=3, clear_seconds=10,
    thresholds=("node_late_seconds",),
    means="A node worker answers late, or its node takes no new work by its own report.",
    raised="The last sign of life is older than the threshold and the node is not lost, or the node reports a hindrance.",
    cleared="Signs of life arrive in time and nothing hinders the node.",
    to_do="Look at the load of the machine and its connection to Redis. Drain the node while the cause is sought.",
)  # fmt: skip
PART_DEAD: Final = ProblemKind(
    key="part_dead", name="Part dead", severity=_CRITICAL, raise_seconds=5,
    thresholds=("part_dead_seconds",),
    means="A part of Tangram that ran shows no life: the scheduler loop, the node workers, the projector, the jobs worker or the rollout workers.",
    raised="No process of the role has shown life for the threshold; of jobs and rollout workers, for a minute. Without a scheduler loop or a node worker work cannot proceed: critical. "
    "Others are warnings. If the projector is dead, pages say that they have no data.",
    cleared="A process of the role shows life. A jobs or rollout role that is gone for an hour counts as removed.",
    to_do="Start the part again; `systemctl status 'tangram-*'` or the log of `tangram up` says why it ended.",
)  # fmt: skip
PART_LATE: Final = ProblemKind(
    key="part_late", name="Part late", severity=_WARNING, raise_seconds=10,
    thresholds=("lag_seconds", "lag_clear_seconds", "heartbeat_seconds", "inbox_entries"),
    means="A part works and does not keep up: pages, lists or decisions are late.",
    raised="A reader of the journal lags behind, the heartbeat of the leader is old, or entries of the inbox wait.",
    cleared="The reader has caught up, the heartbeat is fresh, the inbox is read.",
    to_do="Look at the CPU of the part, the disk of Redis and the database.",
)  # fmt: skip
WEB_DEAD: Final = ProblemKind(
    key="web_dead", name="Web process dead", severity=_CRITICAL, raise_seconds=5,
    thresholds=("part_dead_seconds",),
    means="A web process died and was not replaced: the others have its load, or pages and API are down.",
    raised="A web process that did not end in order has shown no life for the threshold, and no other one began on its host since. "
    "It is critical while no web process shows life; else it is a warning.",
    cleared="Another web process begins on the host. One that is gone for an hour counts as removed.",
    to_do="Start it again; `systemctl status 'tangram-web*'` or the log of `tangram up` says why it ended.",
)  # fmt: skip
WEB_LATE: Final = ProblemKind(
    key="web_late", name="Web process late", severity=_WARNING, raise_seconds=10, clear_seconds=10,
    thresholds=("web_late_seconds", "web_delay_seconds", "web_delay_clear_seconds"),
    means="A web process works and does not keep up: requests to it wait before they are read.",
    raised="Its last sign of life is older than the threshold, or its event loop runs late by more than the threshold again and again.",
    cleared="Signs of life arrive in time, and the delay is below the lower threshold.",
    to_do="Look at the CPU and the memory of the machine. Start more web processes, or move clients to another one.",
)  # fmt: skip
POOL_PAUSED: Final = ProblemKind(
    key="pool_paused", name="Pool paused", severity=_CRITICAL, raise_seconds=60,
    means="A pool is paused and actions wait for it. A pause that was forgotten looks like a broken system.",
    raised="The pool is paused while actions of it wait.",
    cleared="The pool is resumed, or nothing waits for it.",
    to_do="Resume the pool, or acknowledge the problem with the reason of the pause.",
)  # fmt: skip
QUOTA_EXHAUSTED: Final = ProblemKind(
    key="quota_exhausted", name="Quota exhausted", severity=_CRITICAL, raise_seconds=5,
    means="A quota over time has nothing left, and actions wait for units to come back.",
    raised="A quota of a resource has less than one unit left while actions that need the resource wait.",
    cleared="Units are left, or nothing waits for the resource.",
    to_do="Raise the quota with the provider and here, pause the task that uses it up, or wait until units come back.",
)  # fmt: skip
CIRCUIT_OPEN: Final = ProblemKind(
    key="circuit_open", name="Circuit open", severity=_CRITICAL, raise_seconds=5,
    means="Calls to an API are refused for now: the API failed too often, or asked for a pause.",
    raised="The scheduler grants nothing of the resource because of its answers. It is critical while actions wait for it.",
    cleared="The circuit closes: a trial call succeeded.",
    to_do="Ask the provider of the API for its state. Lower the limit if it answers 429.",
)  # fmt: skip
SERVICE_THRASHING: Final = ProblemKind(
    key="service_thrashing", name="Service thrashing", severity=_WARNING, raise_seconds=10, clear_seconds=30,
    thresholds=("restores_per_minute", "restores_clear_per_minute"),
    means="A GPU service is evicted and restored again and again: GPUs load models instead of serving calls.",
    raised="The service was restored at least this often in the last minute.",
    cleared="It was restored at most this often in the last minute.",
    to_do="Let each service take more calls at once, add GPUs, or quarantine a service until the rush is over.",
)  # fmt: skip
SERVICE_QUARANTINED: Final = ProblemKind(
    key="service_quarantined", name="Service quarantined", severity=_WARNING, raise_seconds=0,
    means="A GPU service is in quarantine: its calls wait.",
    raised="The configuration has the service in quarantine.",
    cleared="The quarantine is lifted.",
    to_do="Lift the quarantine once its cause is gone.",
)  # fmt: skip
TASK_FAILING: Final = ProblemKind(
    key="task_failing", name="Task failing", severity=_WARNING, raise_seconds=0, clear_seconds=30,
    thresholds=("failing_share", "failing_clear_share", "failing_actions", "unrewarded_rollouts"),
    means="Most actions of a task fail, by an exit code that is not 0 or by their outcome, or its rollouts have no reward any more.",
    raised="Within ten minutes at least the least number of actions ended, and at least the share of them failed; or all rollouts ended "
    "without a reward although earlier ones had one.",
    cleared="The share is below the lower threshold, too few actions end, or a rollout has a reward.",
    to_do="Open the failures: the output says why. Pause the task while its cause is sought, so that it uses nothing up.",
)  # fmt: skip
FAMILY_SLOW: Final = ProblemKind(
    key="family_slow", name="Command family slow", severity=_WARNING, raise_seconds=30, clear_seconds=30,
    thresholds=(
        "slow_factor", "slow_clear_factor", "slow_seconds", "slow_actions", "slow_window_seconds",
        "slow_earlier_actions", "slow_earlier_seconds",
    ),
    means="Commands of one family of a task run much longer than they did before. A family is declared; commands of a task without one are together.",
    raised="The median execution within the window is at least the factor times the earlier median, and longer by at least so many seconds; within the "
    "window and before it at least the least numbers of commands ended, and the earlier ones began long enough ago. Waiting does not count.",
    cleared="The median is below the lower factor, or too few commands end. A family that stays slow for as long as it was fast becomes usual; "
    "earlier durations lose half of their weight every six hours.",
    to_do="Open the slow actions, and compare their nodes, units and output with earlier ones. Drain a node that is slow, or pause the task.",
)  # fmt: skip
DISK_SHORT: Final = ProblemKind(
    key="disk_short", name="Disk short", severity=_CRITICAL, raise_seconds=5,
    means="A disk of a node is nearly full: the node refuses new work, and ends the environment that grew most when it is full.",
    raised="The node worker refuses new work for lack of disk space.",
    cleared="There is room again.",
    to_do="Delete files, remove old images, or give the node a larger disk. TANGRAM_DISK_… sets the floors.",
)  # fmt: skip
REDIS_MEMORY: Final = ProblemKind(
    key="redis_memory", name="Redis memory short", severity=_CRITICAL, raise_seconds=10, clear_seconds=30,
    thresholds=("redis_memory_share", "redis_memory_clear_share"),
    means="Redis is about to run out of memory: then submissions are refused.",
    raised="Redis uses at least this part of its `maxmemory`, or of the machine's memory where it has none.",
    cleared="It uses less than the lower part.",
    to_do="Look for a reader of the journal that lags: the journal is kept until all have read it. Raise `maxmemory`, or store bodies as files.",
)  # fmt: skip
REDIS_REPLICAS: Final = ProblemKind(
    key="redis_replicas", name="Redis replicas missing", severity=_CRITICAL, raise_seconds=2,
    means="Fewer replicas follow Redis than must confirm what is accepted: submissions are refused with 503, nothing is granted, running actions "
    "continue, and reports of nodes wait.",
    raised="With `TANGRAM_REDIS_WAIT_REPLICAS`, fewer replicas than it says have answered within five seconds.",
    cleared="So many follow again: everything goes on by itself.",
    to_do="Start the replicas, and look whether they reach the master (`INFO replication` on both). A failed one may be replaced by another.",
)  # fmt: skip
BLOCKER: Final = ProblemKind(
    key="blocker", name="Longest blocker", severity=_WARNING, raise_seconds=0, clear_seconds=10,
    thresholds=("blocked_seconds", "blocked_actions"),
    means="One action holds what many others wait for, or waits before them for more than is free.",
    raised="The heads of queues have waited for this action longer than the threshold, and at least this many actions wait behind it. Of numbered units "
    "(cores, GPUs) it is the action that has held at least half of what is held on the node for as long.",
    cleared="It ends, or fewer actions wait behind it.",
    to_do="Open the action: if it hangs, cancel it; if it is right, give the pool more units.",
)  # fmt: skip
DEAD_LETTERS: Final = ProblemKind(
    key="dead_letters", name="Dead letters", severity=_WARNING, raise_seconds=0,
    means="Messages could not be read or applied and were set aside.",
    raised="At least one dead letter is stored.",
    cleared="All are retried or dropped.",
    to_do="`manage.py deadletters` lists them with the reason; [operations.md](operations.md) says how to handle them.",
)  # fmt: skip
WEBHOOK_FAILING: Final = ProblemKind(
    key="webhook_failing", name="Webhook failing", severity=_WARNING, raise_seconds=60,
    means="An endpoint does not accept its messages; it is disabled after five days.",
    raised="Deliveries to an enabled endpoint fail.",
    cleared="A delivery succeeds, or the endpoint is disabled or deleted.",
    to_do="Open the endpoint: its last answers say why. Correct the address or the receiver, then send again.",
)  # fmt: skip

KINDS: Final = (
    NODE_LOST, NODE_LATE, PART_DEAD, PART_LATE, WEB_DEAD, WEB_LATE, POOL_PAUSED, QUOTA_EXHAUSTED,
    CIRCUIT_OPEN, SERVICE_THRASHING, SERVICE_QUARANTINED, TASK_FAILING, FAMILY_SLOW, DISK_SHORT, REDIS_MEMORY, REDIS_REPLICAS, BLOCKER,
    DEAD_LETTERS, WEBHOOK_FAILING,
)  # fmt: skip
KIND_OF: Final = {kind.key: kind for kind in KINDS}
