"""Lifecycle of an action until its end (`state.completion`): queued, granted, requeued, aborted.

All allocations and releases are made here.
"""

from __future__ import annotations

import msgspec

from domain.action import EXEC, GRANTED, LEASE, QUEUED, RUNNING, LeaseSpec, Outcome
from domain.allocation import Allocation
from domain.decisions import Abort, Decision, Grant, Requeue
from domain.fleets import HOLD_SECONDS
from domain.ids import ResourceId, node_resource, task_key
from placement.facts import GenerationRoute
from scheduler.core.cycle.pool_policies import keeps_needs, needs_in
from scheduler.core.residency.policy import ResidentSeat
from scheduler.core.sharing.shares import charge
from scheduler.core.state.cpu_usage_history import why_light
from scheduler.core.state.demand import Need, Needs, QueueKey, depends_on_place, queue_key
from scheduler.core.state.generations import LiveFleet, needs_at, unrouted_needs, worker_of
from scheduler.core.state.live import LiveAction, LiveTrajectory
from scheduler.core.state.model import State
from scheduler.core.state.timers import TimerKind

#: An action that never started, or is replay-safe, is granted this many times at most.
MAX_ATTEMPTS = 3


def is_sequential(live: LiveAction) -> bool:
    """Return whether ``live`` runs one after another with the other exec actions of its trajectory."""
    return live.action.kind is EXEC and live.action.trajectory is not None


def enqueue(state: State, live: LiveAction, trajectory: LiveTrajectory | None) -> None:
    """Put an action into its wait queue, unless an earlier one or a fork of its trajectory is not finished."""
    action = live.action
    if action.generation is not None:
        _enqueue_generation(state, live)
        return
    if action.kind is not EXEC:
        trajectory = None
    if trajectory is not None and (trajectory.busy or trajectory.line[0] != action.id):
        return
    if trajectory is not None and trajectory.holds_back(action.id):
        return
    if trajectory is not None and trajectory.node is not None and depends_on_place(action):
        live.needs = current_needs(state, live)
    _push(state, live, trajectory)


def _push(state: State, live: LiveAction, trajectory: LiveTrajectory | None) -> None:
    key = queue_key_of(state, live, trajectory)
    live.queued_at = state.now
    state.queues.push(live, key)
    state.dirty = True
    if state.queues.deferrals:
        state.queues.reconsider(key)


def _enqueue_generation(state: State, live: LiveAction) -> None:
    """Put a generation into the queue of its worker; its fleet is asked if it has none."""
    fleet = state.generations.of(live.action)
    if fleet is None or live.id in state.generations.unrouted:
        return
    if worker_of(live) is not None:
        _push(state, live, None)
        return
    route = state.generations.request(fleet, live, state.now)
    if route is not None:
        queue_at(state, live, fleet, route)


def queue_at(state: State, live: LiveAction, fleet: LiveFleet, route: GenerationRoute) -> None:
    """Put a generation into the queue of the worker of ``route``, by its rank."""
    state.generations.unrouted.pop(live.id, None)
    leave_queue(state, live)
    live.needs = needs_at(fleet, route.worker)
    live.order = live.order[0], -route.rank, live.order[-1]
    _push(state, live, None)


def current_needs(state: State, live: LiveAction) -> Needs:
    """Return the needs of ``live`` in the place where it would run now."""
    if live.action.generation is not None:
        return live.needs
    trajectory = state.trajectory_of(live) if is_sequential(live) else None
    return needs_in(state, live.action, live.pool, trajectory.node if trajectory else None)


def refresh_needs(state: State) -> None:
    """Move waiting actions whose needs have changed to other queues.

    A name may have become cluster-wide or stopped being so, a policy may admit at another count, and
    a count may have become available. What follows from the configuration alone is left out while that stays: a
    hundred nodes may join while ten thousand actions wait.
    """
    is_simple = not (state.sharing.cohorts or state.supply.resident)
    settled = keeps_needs(state) if is_simple and state.needs_under is state.config else None
    state.needs_under = state.config if is_simple else None
    for live in state.actions.values():
        if live.granted_at is not None or (settled is not None and settled(live.action, live.pool)):
            continue
        needs = current_needs(state, live)
        if needs != live.needs:
            live.needs = needs
            if live.queue is not None:
                leave_queue(state, live)
                enqueue(state, live, state.trajectory_of(live))


def queue_key_of(state: State, live: LiveAction, trajectory: LiveTrajectory | None) -> QueueKey:
    """Return the queue of ``live``; ``trajectory`` is given if `is_sequential`."""
    held = ""
    if state.steering.tasks and state.steering.of(live.action.project, live.action.task).paused:
        held = task_key(live.action.project, live.action.task)
    if trajectory is None:
        return queue_key(live.pool, None, live.needs, 0, held)
    memory = trajectory.memory_bytes if trajectory.node is None else 0
    return queue_key(live.pool, trajectory.node, live.needs, memory, held)


def leave_queue(state: State, live: LiveAction) -> None:
    """Remove an action that ends or moves from its wait queue, if it is in one.

    The next cycle looks at the actions behind it.
    """
    key = live.queue
    if key is not None:
        state.queues.active[key].remove(live)
        state.dirty = True
        if state.queues.deferrals:
            state.queues.reconsider(key)


def enqueue_next(state: State, trajectory: LiveTrajectory) -> None:
    """Queue the next exec action of ``trajectory``."""
    line = trajectory.line
    while line and line[0] not in trajectory.live:
        line.pop(0)
    if line:
        following = state.actions[line[0]]
        if following.queue is None:
            enqueue(state, following, trajectory)


def grant(
    state: State,
    live: LiveAction,
    node: str | None,
    decisions: list[Decision],
    key_amount: int | None = None,
    seat: ResidentSeat | None = None,
) -> None:
    """Grant ``live`` its units on ``node``; the caller has checked that they fit.

    It gets the amounts it was admitted with, but ``key_amount`` of its key resource where that is
    given, or a ``seat`` instead of units of its own.
    """
    if live.queue is not None:
        queue = state.queues.active[live.queue]
        queue.remove(live)
        resources = queue.units_on(node)
    else:
        resources = _units_on(live, node)
    action = live.action
    live.attempt += 1
    live.move(GRANTED)
    live.granted_at = state.now
    if node is not None:
        state.supply.place(live, node)
    if key_amount is not None:
        key = live.key_resource
        resources = [(name, key_amount if name == key else n) for name, n in resources]
    trajectory = state.trajectory_of(live) if action.kind is EXEC else None
    if seat is None:
        _allocate(state, live, resources, trajectory.home if trajectory is not None else ())
    else:
        _allocate_seat(state, live, seat)
    for resource, _ in resources if state.supply.paced else ():
        if resource in state.supply.paced:
            state.supply.paced[resource].spend(live.holder)
    if trajectory is not None and node is not None:
        trajectory.busy = action.id
        trajectory.line.pop(0)
        bind(state, trajectory, node)
        if state.supply.local and not trajectory.home:
            set_home(state, live, trajectory)
    if action.kind is LEASE or action.generation is not None:
        _start_holding(state, live)
    decisions.append(
        Grant(
            action.id,
            node,
            live.allocations,
            live.lease_expires_at,
            live.attempt,
            action.project,
            action.task,
            action.trajectory,
            rank_of(live),
        )
    )


def _allocate_seat(state: State, live: LiveAction, seat: ResidentSeat) -> None:
    live.allocations = (state.residency.join(live, seat),)
    if state.sharing.cohorts:  # each action that shares units is charged with all of them
        charge(state, live, live.allocations)


def _allocate(state: State, live: LiveAction, needs: list[Need], home: tuple[int, ...]) -> None:
    """Allocate ``needs`` to ``live``; the memory of its trajectory is local to the cores ``home``."""
    unsaid = live.needs.on_node and "cpu" not in live.action.cost
    allocations, holder = [], live.holder
    for resource, amount in needs:
        if home and resource in state.supply.local:
            allocation = state.supply.local[resource].allocate(holder, amount, home)
        elif resource in state.supply.resident:
            allocation = state.residency.on_grant(live, resource, amount)
        elif resource in state.supply.seated:
            allocation = _take_seat(state, live, resource, amount)
        else:
            allocation = state.supply.ledgers[resource].allocate(holder, amount)
        if unsaid and resource.startswith("cpu:"):
            allocation = msgspec.structs.replace(allocation, why=why_light(state, live.action))
        allocations.append(allocation)
    live.allocations = tuple(allocations)
    if state.sharing.cohorts:
        charge(state, live, allocations)


def _take_seat(state: State, live: LiveAction, resource: ResourceId, amount: int) -> Allocation:
    """Allocate seats, if possible on the units of the former lease of the same trajectory."""
    trajectory = state.trajectory_of(live)
    ledger = state.supply.seated[resource]
    if trajectory is None:
        return ledger.allocate(live.holder, amount)
    allocation = ledger.allocate(live.holder, amount, trajectory.seats.get(resource, ()))
    trajectory.seats[resource] = allocation.units
    return allocation


def set_home(state: State, live: LiveAction, trajectory: LiveTrajectory) -> None:
    """Record the first exclusive cores of ``trajectory``: its memory is local to them.

    Light actions hold no core exclusively and set no home.
    """
    for allocation in live.allocations:
        if allocation.resource in state.supply.local and not allocation.shared:
            trajectory.home = allocation.units


def _units_on(live: LiveAction, node: str | None) -> list[Need]:
    """Return the units that ``live`` is granted on ``node``, if on any, and cluster-wide."""
    units = [(ResourceId(name), amount) for name, amount in live.needs.in_cluster]
    if node is not None:
        units += [(node_resource(kind, node), n) for kind, n in live.needs.on_node]
    return units


def bind(state: State, trajectory: LiveTrajectory, node: str) -> None:
    """Bind ``trajectory`` to ``node`` and allocate its memory there, once."""
    if trajectory.node is not None:
        return
    state.environments.put(trajectory, node)
    if trajectory.memory_bytes:
        ledger = state.supply.ledgers[node_resource("memory", node)]
        ledger.allocate(trajectory.holder, trajectory.memory_bytes)


def unbind(state: State, trajectory: LiveTrajectory) -> None:
    """Release the memory of an environment that is gone."""
    if trajectory.node is not None and trajectory.memory_bytes:
        state.supply.ledgers[node_resource("memory", trajectory.node)].release(trajectory.holder)
        state.queues.deferrals.clear()
        state.dirty = True
    state.environments.put(trajectory, None)
    trajectory.home = ()


def _start_holding(state: State, live: LiveAction) -> None:
    """Let a lease run; a generation runs when its gateway says so."""
    if live.action.generation is not None:
        hold(state, live)
        state.generations.begin(live, state.now)
        return
    live.move(RUNNING)
    live.started_at = state.now
    extend_lease(state, live, None)


def extend_lease(state: State, live: LiveAction, ttl_seconds: float | None) -> float:
    """Let a lease expire ``ttl_seconds`` from now (default: as declared); return that time."""
    ttl = ttl_seconds or (live.action.lease or LeaseSpec()).ttl_seconds
    live.lease_expires_at = state.now + ttl
    state.timers.set(live.lease_expires_at, TimerKind.LEASE, live.id)
    return live.lease_expires_at


def hold(state: State, live: LiveAction) -> None:
    """Let a granted generation end unless its gateway renews it in time."""
    live.lease_expires_at = state.now + HOLD_SECONDS
    state.timers.set(live.lease_expires_at, TimerKind.LEASE, live.id)


def rank_of(live: LiveAction) -> float:
    """Return the rank of a generation; 0 of other actions."""
    return 0.0 if live.action.generation is None else -live.order[1]


def release(state: State, live: LiveAction) -> None:
    """Release everything that ``live`` holds."""
    if live.state is QUEUED:
        return
    holder = live.holder
    for allocation in live.allocations:
        resource = allocation.resource
        state.supply.ledgers[resource].release(holder)
        state.released(resource)
    detach(state, live)


def orphan(state: State, live: LiveAction) -> None:
    """Leave the units of ``live`` with its silent node, which may still run it."""
    if live.node is not None:
        state.supply.nodes[live.node].orphans[live.holder] = live.allocations
        detach(state, live)


def release_orphan(state: State, node: str, holder: str) -> bool:
    """Release the units of an orphan; False when there is none of that name."""
    held = state.supply.nodes[node].orphans.pop(holder, None)
    if held is None:
        return False
    for allocation in held:
        state.supply.ledgers[allocation.resource].release(holder)
        state.released(allocation.resource)
    state.dirty = True
    return True


def detach(state: State, live: LiveAction) -> None:
    """Remove ``live`` from its node and its project's share."""
    state.supply.displace(live)
    if state.sharing.cohorts and live.allocations:
        charge(state, live, live.allocations, -1)
        state.resizing.changed |= state.sharing.limited
        state.sharing.limited.clear()
    live.allocations = ()


def requeue(
    state: State, live: LiveAction, reason: str, decisions: list[Decision], *, ended: bool = True
) -> None:
    """Put a granted or running action back at its old place in its queue.

    ``ended`` False: its node is silent and may still run it, so the units stay there.
    """
    (release if ended else orphan)(state, live)
    live.move(QUEUED)
    live.node = live.granted_at = live.started_at = live.lease_expires_at = None
    live.resized_at, live.accounted_at, live.resizes = None, None, 0
    live.worked_seconds = live.key_milli_seconds = 0.0
    live.widths = ()
    if live.action.generation is not None:
        state.generations.end(live, state.now)
        live.needs = unrouted_needs(live.action)
    state.residency.on_requeued(live)
    live.needs = current_needs(state, live)
    trajectory = state.trajectory_of(live) if is_sequential(live) else None
    if trajectory is not None:
        trajectory.busy = None
        trajectory.line.insert(0, live.id)
    decisions.append(Requeue(live.id, reason))
    enqueue(state, live, trajectory)


def abort(live: LiveAction, outcome: Outcome, reason: str, decisions: list[Decision]) -> None:
    """Order the node of ``live``, or the gateway that holds it, to end it, once; a report finishes the action."""
    if live.aborting is None and (live.node is not None or live.action.generation is not None):
        live.aborting = (outcome, reason)
        decisions.append(Abort(live.id, live.node or "", reason, outcome, live.attempt))
