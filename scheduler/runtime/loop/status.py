"""Status of the system, read from the machine of the leader."""

from __future__ import annotations

from collections import Counter
from heapq import nlargest

from contract.responses import rfc3339
from contract.status import (
    LearnedDuration,
    NodeResource,
    NodeStatus,
    PassQuantiles,
    PoolStatus,
    QuotaStatus,
    ResourceStatus,
    SteeredTask,
    SystemStatus,
)
from domain.ids import ResourceId
from domain.resources import units
from domain.version import VERSION
from scheduler.core.state.model import State
from scheduler.runtime.loop.leadership import Leadership
from scheduler.runtime.loop.loop_stats import LoopStats
from scheduler.runtime.loop.term import Term

#: Families of actions whose learned durations are shown.
MAX_FAMILIES = 100


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
            for resource in state.ledgers
            if not resource.startswith("memory:")
        },
        shares=term.machine.shares(),
        nodes=[_node(state, name) for name in state.nodes],
        trajectories=len(state.trajectories),
        steered_tasks={
            key: SteeredTask(task.paused, task.priority) for key, task in state.steering.items()
        },
        durations=_durations(state),
    )


def _pools(state: State) -> dict[str, PoolStatus]:
    """Return each pool with its actions by state.

    Nearly all actions wait in a queue, whose size is known without looking at each of them.
    """
    pools: dict[str, Counter[str]] = {name: Counter() for name in state.config.pools}
    for queue in state.queues.values():
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
    ledger = state.ledgers[resource]
    found = ResourceStatus(units(ledger.capacity), units(ledger.free))
    paced = state.paced.get(resource)
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
    most = nlargest(MAX_FAMILIES, state.durations.items(), key=lambda item: item[1].observations)
    return {
        family: LearnedDuration(known.mean_seconds, known.observations) for family, known in most
    }


def _node(state: State, name: str) -> NodeStatus:
    node = state.nodes[name]
    resources = {}
    for kind, have in node.inventory.resources.items():
        ledger = state.node_ledger(kind, name)
        free = ledger.free if ledger is not None else have.capacity
        capacity = have.capacity
        resources[kind] = NodeResource(
            capacity if kind == "memory" else units(capacity),
            free if kind == "memory" else units(free),
            have.oversubscribed,
        )
    return NodeStatus(
        name=name,
        pool=node.inventory.pool,
        state="drained" if name in state.config.drained_nodes else str(node.state),
        isolation=node.inventory.isolation,
        resources=resources,
    )
