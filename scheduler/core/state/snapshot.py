"""Snapshot: the state as bytes. Recovery starts from a snapshot and replays the journal after it.

Derived data is left out. Queues and indexes are rebuilt, ledgers adopt the
allocations that were handed out, so a restored machine decides exactly as the original would.
"""

from __future__ import annotations

import msgspec

from domain.action import ActionState
from domain.allocation import Allocation
from domain.backends import BackendPool, llm_resource
from domain.fleets import fleet_of
from domain.ids import ResourceId
from domain.inventory import Config, ResourceInventory
from scheduler.core.machine import Machine
from scheduler.core.residency.policy import RestoreTimes, SteadyCount
from scheduler.core.sharing.shares import load_shares
from scheduler.core.state.coalescing import CallCoalescing
from scheduler.core.state.critical_paths import DelayAccount, TaskPace
from scheduler.core.state.demand import QueueKey
from scheduler.core.state.generations import StoredFleet, is_unrouted, set_slots
from scheduler.core.state.learned import FamilyCpuUsage, FamilyDuration
from scheduler.core.state.lifecycle import is_sequential, queue_key_of
from scheduler.core.state.live import LiveAction, LiveNode, LiveTrajectory, intern_names
from scheduler.core.state.model import FIRST_SECONDS, State, TaskSettings, Tombstone
from scheduler.core.state.queues import Deferral, WaitQueue, WaitReason
from scheduler.core.state.rollouts import LiveRollout, LiveRolloutWorker
from scheduler.core.state.supply import MakeLedger
from scheduler.core.state.timers import TimerKind


class Snapshot(msgspec.Struct):
    """Everything that the core cannot derive. Field names are stored, and so stay as they are."""

    config: Config
    now: float
    arrivals: int
    asked_wake: float | None
    actions: list[LiveAction]
    trajectories: list[LiveTrajectory]
    nodes: list[LiveNode]
    task_pools: dict[str, str]
    tombstones: dict[str, Tombstone]
    timers: list[tuple[float, TimerKind, str]]
    #: Resource → holder → allocation.
    held: dict[str, dict[str, Allocation]]
    #: Queues: on which node the head reserves units, and why it waits.
    lines: list[tuple[QueueKey, str | None, WaitReason | None]]
    #: Resources that no node or configuration offers any more, but actions hold.
    shrunk: list[str]
    deferrals: dict[ResourceId, Deferral] = {}
    #: In the order in which families were first seen.
    durations: list[tuple[str, FamilyDuration]] = []
    #: In that order as well.
    appetites: list[tuple[str, FamilyCpuUsage]] = []
    #: In that order as well.
    paces_of_tasks: list[tuple[str, TaskPace]] = []
    delays: dict[str, DelayAccount] = {}
    resizing: dict[ResourceId, float] = {}
    #: What ledgers that count over time remember.
    paced: dict[ResourceId, bytes] = {}
    pacing: dict[ResourceId, float] = {}
    #: What ledgers remember of residents in memory.
    hosting: dict[ResourceId, bytes] = {}
    paces: dict[str, RestoreTimes] = {}
    ahead: set[str] = set()
    steady: dict[str, SteadyCount] = {}
    steering: dict[str, TaskSettings] = {}
    merging: CallCoalescing = msgspec.field(default_factory=CallCoalescing)
    pinched: set[ResourceId] = set()
    rollouts: list[LiveRollout] = []
    rollout_workers: list[LiveRolloutWorker] = []
    backends: dict[str, BackendPool] = {}
    #: What ledgers of seats remember.
    seated: dict[ResourceId, bytes] = {}
    fleets: list[StoredFleet] = []
    selectors: bytes = b""
    #: When what stays on draining nodes is looked at again.
    moves_due: float | None = None
    #: When queues of single nodes are looked at again, and the recent seconds of a move for an action that waits.
    rebalance_due: float | None = None
    rebalance_seconds: float = FIRST_SECONDS


#: Sets have no order of their own: without one, equal states would not give equal bytes.
_encoder = msgspec.msgpack.Encoder(order="deterministic")
_decoder = msgspec.msgpack.Decoder(Snapshot)


def dump(machine: Machine) -> bytes:
    """Return the state of ``machine`` as bytes."""
    state = machine.state
    return _encoder.encode(
        Snapshot(
            config=state.config,
            now=state.now,
            arrivals=state.arrivals,
            asked_wake=state.timers.asked_wake,
            actions=list(state.actions.values()),
            trajectories=list(state.trajectories.values()),
            nodes=list(state.supply.nodes.values()),
            task_pools=state.steering.pools,
            deferrals=state.queues.deferrals,
            resizing=state.resizing.due,
            paced={r: ledger.remember() for r, ledger in state.supply.paced.items()},
            pacing=state.timers.pacing,
            paces=state.residency.memory.times,
            ahead=state.residency.memory.prefetched,
            steady=state.residency.memory.steady,
            pinched=state.sharing.limited,
            hosting={r: ledger.remember() for r, ledger in state.supply.resident.items()},
            seated={r: ledger.remember() for r, ledger in state.supply.seated.items()},
            rollouts=list(state.rollouts.live.values()),
            rollout_workers=list(state.rollouts.workers.values()),
            backends=state.backends,
            fleets=state.generations.remember(),
            selectors=state.residency.memory.selectors.remember(),
            moves_due=state.moves.due,
            rebalance_due=state.rebalancing.due,
            rebalance_seconds=state.rebalancing.seconds,
            merging=state.coalescing,
            steering=state.steering.tasks,
            durations=list(state.learned.durations.items()),
            appetites=list(state.learned.cpu_usage.items()),
            paces_of_tasks=list(state.critical_paths.paces.items()),
            delays=state.critical_paths.accounts,
            tombstones=state.tombstones,
            timers=state.timers.pending(),
            held={r: dict(ledger.holders()) for r, ledger in state.supply.ledgers.items()},
            lines=[(q.key, q.sticky_node, q.reason) for q in state.queues.active.values()],
            shrunk=sorted(r for r, ledger in state.supply.ledgers.items() if ledger.capacity == 0),
        )
    )


def load(data: bytes, make_ledger: MakeLedger) -> Machine:
    """Return a machine that continues from a snapshot."""
    snapshot = _decoder.decode(data)
    machine = Machine(make_ledger, snapshot.config)
    state = machine.state
    state.now, state.arrivals = snapshot.now, snapshot.arrivals
    state.coalescing = snapshot.merging
    state.steering.tasks = snapshot.steering
    state.steering.pools, state.tombstones = snapshot.task_pools, snapshot.tombstones
    state.supply.nodes = {node.name: node for node in snapshot.nodes}
    for name in state.supply.nodes:
        state.supply.order.touch(name)
    for each in snapshot.trajectories:
        state.add_trajectory(each)
    state.moves.due = snapshot.moves_due
    state.rebalancing.due = snapshot.rebalance_due
    state.rebalancing.seconds = snapshot.rebalance_seconds
    state.moves.active = {t.key for t in snapshot.trajectories if t.move is not None}
    state.moves.copied = {t.key for t in snapshot.trajectories if t.copies}
    _restore_backends(state, snapshot)
    _restore_fleets(state, snapshot)
    _restore_ledgers(state, snapshot)
    state.rollouts.restore(snapshot.rollouts, snapshot.rollout_workers)
    for key, node, reason in snapshot.lines:
        queue = state.queues.active[key] = WaitQueue(key)
        queue.sticky_node, queue.reason = node, reason
    for resource, memory in snapshot.seated.items():
        state.supply.seated[resource].recall(memory)
    _restore_actions(state, snapshot)
    load_shares(state)
    state.sharing.limited = snapshot.pinched
    for entry in snapshot.timers:
        state.timers.set(*entry)
    state.queues.deferrals, state.learned.durations = snapshot.deferrals, dict(snapshot.durations)
    state.learned.cpu_usage = dict(snapshot.appetites)
    state.critical_paths.paces = dict(snapshot.paces_of_tasks)
    state.critical_paths.accounts = snapshot.delays
    state.resizing.due, state.timers.pacing = snapshot.resizing, snapshot.pacing
    state.timers.asked_wake, state.dirty = snapshot.asked_wake, False
    return machine


def _restore_backends(state: State, snapshot: Snapshot) -> None:
    state.backends = snapshot.backends
    for pool in snapshot.backends:
        seats = llm_resource(pool)
        state.supply.set_inventory(seats, state.inventory_of(seats))


def _restore_fleets(state: State, snapshot: Snapshot) -> None:
    state.generations.recall(snapshot.fleets)
    for resource in [each for each in state.supply.ledgers if fleet_of(each) is not None]:
        state.supply.close_ledger(resource)  # their numbers are those of a fresh state
    for fleet in state.generations.fleets.values():
        set_slots(fleet, state.supply)


def _restore_ledgers(state: State, snapshot: Snapshot) -> None:
    for node in snapshot.nodes:
        for kind, have in node.inventory.resources.items():
            resource = ResourceId(f"{kind}:{node.name}")
            state.supply.open_ledger(resource, have)
    for name in snapshot.shrunk:
        resource = ResourceId(name)
        if resource not in state.supply.ledgers:
            state.supply.open_ledger(resource, ResourceInventory(0))
    for name, holders in snapshot.held.items():
        for holder, allocation in holders.items():
            state.supply.ledgers[ResourceId(name)].adopt(holder, allocation)
    for resource, memory in snapshot.paced.items():
        state.supply.paced[resource].recall(memory)
    for resource, memory in snapshot.hosting.items():
        state.supply.resident[resource].recall(memory)
    kept = state.residency.memory
    kept.times, kept.prefetched = snapshot.paces, snapshot.ahead
    kept.steady = snapshot.steady
    kept.selectors.recall(snapshot.selectors)


def _restore_actions(state: State, snapshot: Snapshot) -> None:
    for live in snapshot.actions:
        live.queue = None
        intern_names(live.action)
        state.actions[live.id] = live
        if live.node is not None:
            state.supply.place(live, live.node)
    for live in snapshot.actions:
        follows = live.id in state.coalescing.behind
        if is_unrouted(live):
            fleet = state.generations.of(live.action)
            state.generations.unrouted[live.id] = fleet.name if fleet else ""
        elif live.state is ActionState.QUEUED and not follows and _stands(state, live):
            trajectory = state.trajectory_of(live) if is_sequential(live) else None
            if trajectory is None or not (trajectory.busy or trajectory.holds_back(live.id)):
                state.queues.push(live, queue_key_of(state, live, trajectory))


def _stands(state: State, live: LiveAction) -> bool:
    trajectory = state.trajectory_of(live)
    return trajectory is None or not is_sequential(live) or trajectory.line[0] == live.id
