"""Answers to the queries of web processes.

Queries pass through the inbox in order with everything else, so a client that submits and then
queries sees its submission.
"""

from __future__ import annotations

import logging
from collections import Counter
from heapq import nlargest
from typing import Any

import msgspec
import redis
from msgspec import UNSET

from contract.receipts import TrajectoryDetails, TrajectoryReceipt
from contract.responses import rfc3339
from contract.status import (
    DrainProgress,
    LearnedDuration,
    NodeResource,
    NodeStatus,
    PassQuantiles,
    PoolStatus,
    QuotaStatus,
    RedisStatus,
    ResourceStatus,
    SteeredTask,
    SystemStatus,
)
from domain.codec import Reply, encode
from domain.confinement import why_refused
from domain.decisions import Forget, Refuse
from domain.events import (
    ActionQueried,
    DecisionsQueried,
    NodeLoadsQueried,
    PoolDemandsQueried,
    Question,
    QueuesQueried,
    StatusQueried,
    TrajectoriesQueried,
    TrajectoryQueried,
)
from domain.fleet_events import FleetsQueried
from domain.ids import ResourceId, trajectory_key
from domain.redis_servers import ServerVersion, judge
from domain.resources import units
from domain.rollout_events import RolloutsQueried
from domain.selector_events import SelectorsQueried
from domain.version import VERSION
from scheduler.core.state.live import LiveTrajectory
from scheduler.core.state.model import State
from scheduler.runtime.action_views import live_view
from scheduler.runtime.loop.fleet_queries import fleets_status
from scheduler.runtime.loop.leadership import Leadership
from scheduler.runtime.loop.loop_stats import LoopStats
from scheduler.runtime.loop.node_loads import drain_progress, node_loads
from scheduler.runtime.loop.pool_demands import pool_demands
from scheduler.runtime.loop.rehearsal import Ending, rehearse_call
from scheduler.runtime.loop.rollout_queries import rollouts_status
from scheduler.runtime.loop.selector_queries import selectors_status
from scheduler.runtime.loop.term import Term
from scheduler.runtime.rendering import decisions_response, queues_response

#: Families of actions whose learned durations are shown.
MAX_FAMILIES = 100
#: Replies that one round trip sends, at most.
REPLIES_AT_ONCE = 64

log = logging.getLogger(__name__)


class QueryHandler:
    """Publishes answers on the channel of the process that sent the query."""

    def __init__(
        self, client: redis.Redis, term: Term, leadership: Leadership, stats: LoopStats
    ) -> None:
        self._client = client
        self._term = term
        self._leadership = leadership
        self._stats = stats
        #: Replies that are not sent: their channels and bodies, in turn.
        self._unsent: list[tuple[str, bytes]] = []

    def answer(self, query: Question) -> None:
        """Answer one query; an error of its handler is answered and logged, and ends nothing else.

        The reply is sent with others, by the next `flush` at the latest.
        """
        try:
            reply = self._reply(query)
        except (redis.RedisError, MemoryError):
            raise
        except Exception as error:
            log.exception("a query could not be answered: %s", type(query).__name__)
            why = f"the scheduler could not answer ({type(error).__name__})"
            reply = Reply(query.request_id, ok=False, code="failed", detail=why)
        self._unsent.append((query.reply_to, encode(reply)))
        if len(self._unsent) >= REPLIES_AT_ONCE:
            self.flush()

    def flush(self) -> None:
        """Send the replies in one round trip: a thousand requests that wait at once ask as often."""
        replies, self._unsent = self._unsent, []
        if not replies:
            return
        with self._client.pipeline(transaction=False) as pipeline:
            for channel, reply in replies:
                pipeline.publish(channel, reply)
            pipeline.execute()

    def hangs(self, query: Question) -> bool:
        """Whether answering does not end; found in a child process."""
        return rehearse_call(lambda: self._reply(query)).ending is Ending.HUNG

    def refuse(self, refusal: Refuse) -> None:
        """Tell a requester why its request was refused."""
        reply = Reply(refusal.request_id, ok=False, code=refusal.code, detail=refusal.detail)
        self._send(refusal.reply_to, reply)

    def confirm(self, done: Forget) -> None:
        """Tell the requester, if there is one, that a node is forgotten."""
        if done.reply_to:
            self._send(done.reply_to, Reply(done.request_id))

    def _reply(self, query: Question) -> Reply:
        term = self._term
        if isinstance(query, ActionQueried):
            return self._action(query)
        if isinstance(query, TrajectoryQueried):
            return self._trajectory(query)
        body: Any
        if isinstance(query, DecisionsQueried):
            decisions = term.machine.decisions(query.limit)
            body = decisions_response(decisions, term.clock.wall_offset())
        elif isinstance(query, NodeLoadsQueried | PoolDemandsQueried):
            body = _of_node_groups(term.machine.state, query)
        elif isinstance(query, TrajectoriesQueried):
            body = _listed(term, query)
        elif isinstance(query, RolloutsQueried):
            offset = term.clock.wall_offset()
            body = rollouts_status(term.machine.state, query, offset, term.journal_id)
        elif isinstance(query, FleetsQueried):
            body = fleets_status(term.machine.state, query)
        elif isinstance(query, SelectorsQueried):
            body = selectors_status(term.machine.state, query, term.clock.wall_offset())
        elif isinstance(query, QueuesQueried):
            queues = term.machine.queues(query.limit, query.projects, term.clock.now())
            body = queues_response(queues, term.range_of)
        else:
            assert isinstance(query, StatusQueried)
            body = system_status(term, self._leadership, self._stats)
        return Reply(query.request_id, body=_raw(body))

    def _action(self, query: ActionQueried) -> Reply:
        """Return a live action; one that is not live is ``not_live``, with the journal's end."""
        status = self._term.machine.explain(query.action_id)
        if status is None or query.project not in ("", status.live.action.project):
            end = self._term.journal_id
            return Reply(query.request_id, ok=False, code="not_live", detail=end)
        view = live_view(status, self._term.clock.wall_offset(), self._term.range_of)
        return Reply(query.request_id, body=_raw(view))

    def _trajectory(self, query: TrajectoryQueried) -> Reply:
        state = self._term.machine.state
        key = trajectory_key(query.project, query.trajectory)
        trajectory = state.trajectories.get(key)
        if trajectory is not None:
            found = TrajectoryDetails(**_details(trajectory, self._term.clock.wall_offset()))
            node = state.supply.nodes.get(trajectory.node or "")
            if node is not None and node.lost_at is not None:
                found.silent = True
        elif (tombstone := state.tombstones.get(key)) is not None:
            found = TrajectoryDetails(
                "finished", detail=tombstone.why, lost=True if tombstone.lost else UNSET
            )
        else:
            return Reply(query.request_id, ok=False, code="not_found")
        return Reply(query.request_id, body=_raw(found))

    def _send(self, channel: str, reply: Reply) -> None:
        self._client.publish(channel, encode(reply))


def _listed(term: Term, query: TrajectoriesQueried) -> list[TrajectoryReceipt]:
    """Return the trajectories of a facade that are open, by arrival."""
    offset = term.clock.wall_offset()
    return [
        TrajectoryReceipt(id=each.name, project=each.project, **_details(each, offset))
        for each in term.machine.state.trajectories.values()
        if each.door == query.door and each.closing is None and query.project in ("", each.project)
    ]


def _details(trajectory: LiveTrajectory, offset: float) -> dict[str, Any]:
    """Return the members of `TrajectoryDetails`; ``offset``: from journal time to the wall clock."""
    found: dict[str, Any] = {
        "state": "open" if trajectory.closing is None else "finishing",
        "task": trajectory.task,
        "pool": trajectory.pool,
        "node": trajectory.node,
        "live_actions": len(trajectory.live),
        "environment": trajectory.environment,
        "opened_at": rfc3339(trajectory.opened_at + offset),
        "expires_at": rfc3339(trajectory.expires_at + offset),
    }
    if trajectory.paused_at is not None:
        found["paused_at"] = rfc3339(trajectory.paused_at + offset)
    if trajectory.closing is not None:
        found["detail"] = trajectory.closing
    if trajectory.lost:
        found["lost"] = True
    if trajectory.door:
        found |= {"door": trajectory.door, "metadata": trajectory.metadata}
    return found


def _raw(value: Any) -> msgspec.Raw:
    return msgspec.Raw(encode(value))


def system_status(term: Term, leadership: Leadership, stats: LoopStats) -> SystemStatus:
    """Return the status of everything; workers are added by the web process."""
    state, now = term.machine.state, term.clock.now()
    return SystemStatus(
        at=rfc3339(now + term.clock.wall_offset()),
        version=VERSION,
        leader=leadership.name,
        epoch=leadership.epoch,
        seq=term.seq,
        revision=state.config.revision,
        pass_seconds=PassQuantiles(stats.quantile_seconds(0.5), stats.quantile_seconds(0.99)),
        cycle_seconds=PassQuantiles(
            stats.deciding_quantile_seconds(0.5), stats.deciding_quantile_seconds(0.99)
        ),
        pools=_pools(state),
        resources={
            resource: _resource(state, resource, now)
            for resource in state.supply.ledgers
            if not resource.startswith("memory:")
        },
        shares=term.machine.shares(),
        nodes=_nodes(state),
        trajectories=len(state.trajectories),
        steered_tasks={
            key: SteeredTask(task.paused, task.priority)
            for key, task in state.steering.tasks.items()
        },
        durations=_durations(state),
        redis=_redis(stats.redis),
    )


def _of_node_groups(state: State, query: NodeLoadsQueried | PoolDemandsQueried) -> Any:
    if isinstance(query, NodeLoadsQueried):
        return node_loads(state)
    return pool_demands(state, query.pools)


def _redis(server: ServerVersion | None) -> RedisStatus | None:
    if server is None:
        return None
    found = judge(server)
    return RedisStatus(str(server), found.standing.value, found.detail, found.cure)


def _pools(state: State) -> dict[str, PoolStatus]:
    """Return each pool with its actions by state.

    Nearly all actions wait in a queue, whose size is known without looking at each of them.
    """
    pools: dict[str, Counter[str]] = {name: Counter() for name in state.config.pools}
    for queue in state.queues.active.values():
        pools.setdefault(queue.key.pool, Counter())["queued"] += queue.size
    for live in [live for live in state.actions.values() if live.queue is None]:
        pools.setdefault(live.pool, Counter())[live.state.value] += 1
    found: dict[str, PoolStatus] = {}
    for name, counts in pools.items():
        pool = state.config.pools.get(name)
        found[name] = PoolStatus(
            queued=counts["queued"],
            granted=counts["granted"],
            running=counts["running"],
            policy="" if pool is None else pool.policy,
            paused=pool is not None and pool.paused,
        )
    return found


def _resource(state: State, resource: ResourceId, now: float) -> ResourceStatus:
    ledger = state.supply.ledgers[resource]
    found = ResourceStatus(units(ledger.capacity), units(ledger.free))
    paced = state.supply.paced.get(resource)
    if paced is not None:
        found.ceiling = units(paced.ceiling)
        found.hindrance = paced.hindrance(now) or None
        found.quotas = [
            QuotaStatus(
                units=units(use.quota.amount),
                window_seconds=use.quota.window_seconds or None,
                zone=None if use.quota.window_seconds else use.quota.zone,
                used=units(use.used),
                left=units(use.left),
                eases_in_seconds=None if use.eases_at is None else use.eases_at - now,
            )
            for use in paced.uses(now)
        ]
    return found


def _durations(state: State) -> dict[str, LearnedDuration]:
    """Return the learned durations of the families with most observations."""
    most = nlargest(
        MAX_FAMILIES, state.learned.durations.items(), key=lambda item: item[1].observations
    )
    return {
        family: LearnedDuration(known.mean_seconds, known.observations) for family, known in most
    }


def _nodes(state: State) -> list[NodeStatus]:
    drains = drain_progress(state)
    return [_node(state, name, drains.get(name)) for name in state.supply.nodes]


def _node(state: State, name: str, drain: DrainProgress | None) -> NodeStatus:
    node = state.supply.nodes[name]
    resources = {}
    for kind, have in node.inventory.resources.items():
        ledger = state.supply.node_ledger(kind, name)
        free = ledger.free if ledger is not None else have.capacity
        capacity = have.capacity
        resources[kind] = NodeResource(
            capacity if kind == "memory" else units(capacity),
            free if kind == "memory" else units(free),
            have.oversubscribed,
            len(have.shared_units) if kind == "cpu" else UNSET,
        )
    protection = node.inventory.protection
    unconfined = None if state.supply.confines(node) else why_refused(node.inventory.pool)
    return NodeStatus(
        name=name,
        pool=node.inventory.pool,
        state="drained" if name in state.config.drained_nodes else str(node.state),
        isolation=node.inventory.isolation,
        resources=resources,
        protection="" if protection is None else protection.text,
        hindrance=node.refuses or unconfined,
        drain=drain,
    )
