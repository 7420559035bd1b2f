"""Invariants that hold after every `Machine.handle`, recomputed from first principles.

Run at the end of every test of the core and by its Hypothesis state machine; off in production,
where one check costs as much as thousands of decisions.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator

from domain.action import ActionState, Kind
from domain.allocation import Allocation
from domain.errors import InvariantViolation
from domain.ids import ResourceId, node_resource
from scheduler.core.advice.status import wait_facts
from scheduler.core.cycle.pool_policies import keeps_needs
from scheduler.core.sharing.cohorts import Cohort
from scheduler.core.sharing.shares import cohort_at
from scheduler.core.state.generation_invariants import generations_agree
from scheduler.core.state.lifecycle import current_needs, is_sequential, queue_key_of
from scheduler.core.state.live import LiveAction, LiveTrajectory
from scheduler.core.state.model import State
from scheduler.core.state.moves import held_beside
from scheduler.core.state.rebalancing import WAITING_QUEUES
from scheduler.core.state.rollout_invariants import rollouts_agree
from scheduler.core.state.timers import TimerKind


def check(state: State) -> None:
    """Raise InvariantViolation that lists every violation."""
    broken = [
        *_ledgers_agree(state),
        *_states_agree(state),
        *_resizable_agree(state),
        *_nodes_are_in_order(state),
        *_queues_agree(state),
        *_trajectories_agree(state),
        *_environments_agree(state),
        *_needs_are_kept(state),
        *_deadlines_are_set(state),
        *_moves_agree(state),
        *_quotas_wake(state),
        *_answers_come(state),
        *_shares_agree(state),
        *rollouts_agree(state),
        *generations_agree(state),
    ]
    if not broken:  # finding reasons walks over all of that
        broken = list(_every_wait_has_a_reason(state))
    if broken:
        raise InvariantViolation("; ".join(broken))


def _held(state: State) -> dict[ResourceId, dict[str, int]]:
    """Return the amounts by resource and holder, from actions, orphans and environments alone."""
    held: dict[ResourceId, dict[str, int]] = defaultdict(dict)

    def enter(holder: str, allocations: tuple[Allocation, ...]) -> None:
        for allocation in allocations:
            held[allocation.resource][holder] = allocation.amount

    for live in state.actions.values():
        enter(live.holder, live.allocations)
    for node in state.supply.nodes.values():
        for holder, allocations in node.orphans.items():
            enter(holder, allocations)
    for trajectory in state.trajectories.values():
        if trajectory.node is not None and trajectory.memory_bytes:
            resource = node_resource("memory", trajectory.node)
            held[resource][trajectory.holder] = trajectory.memory_bytes
        for node_name in held_beside(trajectory):
            resource = node_resource("memory", node_name)
            held[resource][trajectory.holder] = trajectory.memory_bytes
    return held


def _nodes_are_in_order(state: State) -> Iterator[str]:
    """The kept order of nodes is that of their loads."""
    for pool in {node.inventory.pool for node in state.supply.nodes.values()}:
        names = [node.name for node in state.supply.nodes_of(pool)]
        kept = [node.name for node in state.supply.least_loaded(pool)]
        if kept != sorted(names, key=state.supply.load):
            yield f"nodes of {pool} are kept in the order {kept}"


def _ledgers_agree(state: State) -> Iterator[str]:
    """I4: ledgers hold what actions, orphans and environments hold, and no unit twice."""
    expected = _held(state)
    for resource in expected.keys() - state.supply.ledgers.keys():
        yield f"{resource} is held but has no ledger"
    for resource, ledger in state.supply.ledgers.items():
        actual = {holder: have.amount for holder, have in ledger.holders().items()}
        if actual != expected.get(resource, {}):
            yield f"{resource}: the ledger says {actual}, the actions {expected.get(resource, {})}"
        holders = [have for have in ledger.holders().values() if not have.yields]
        exclusive = [unit for have in holders if not have.shared for unit in have.units]
        shared = {unit for have in holders if have.shared for unit in have.units}
        if len(exclusive) != len(set(exclusive)) or shared.intersection(exclusive):
            yield f"{resource}: a unit is held twice"
        if ledger.free != ledger.capacity - _taken(holders) + _beside(state, resource, holders):
            yield f"{resource}: {ledger.free} free of {ledger.capacity} with {actual} held"


def _taken(holders: Iterable[Allocation]) -> int:
    """Return the sum of ``holders``; units that several share count once."""
    chunks: dict[tuple[int, ...], int] = {}
    alone = 0
    for have in holders:
        if have.shared and have.hosting is not None:
            chunks[have.units] = have.amount
        else:
            alone += have.amount
    return alone + sum(chunks.values())


def _beside(state: State, resource: ResourceId, holders: Iterable[Allocation]) -> int:
    """Return the light amount that shared cores hold beside the capacity."""
    kind, _, name = resource.partition(":")
    node = state.supply.nodes.get(name)
    have = None if node is None else node.inventory.resources.get(kind)
    exclusive = {unit for each in holders if not each.shared for unit in each.units}
    if have is None or exclusive.issuperset(have.shared_units):
        return 0  # none, or granted before the node kept them
    return min(have.shared_capacity, sum(each.amount for each in holders if each.shared))


def _states_agree(state: State) -> Iterator[str]:
    for action_id, live in state.actions.items():
        if live.id != action_id:
            yield f"{action_id} is stored under another id"
        queued = live.state is ActionState.QUEUED
        if queued and (live.allocations or live.node is not None):
            yield f"{action_id} is queued and holds something"
        if live.state is ActionState.FINISHED:
            yield f"{action_id} is finished and still live"
        placed = live.node is not None
        if placed != (action_id in state.supply.on_node.get(live.node or "", ())):
            yield f"{action_id}: it is missing on its node"
    for node, ids in state.supply.on_node.items():
        for action_id in ids:
            if action_id not in state.actions or state.actions[action_id].node != node:
                yield f"node {node} lists {action_id}, which it does not run"


def _resizable_agree(state: State) -> Iterator[str]:
    for action_id, live in state.actions.items():
        key = live.key_resource if live.resizable else None
        if key and live.node and action_id not in state.supply.resizable.get(key, ()):
            yield f"{action_id}: it is missing among the resizable actions of {key}"
    for resource, resizable in state.supply.resizable.items():
        for action_id, live in resizable.items():
            if state.actions.get(action_id) is not live or live.key_resource != resource:
                yield f"{resource} lists {action_id} as resizable, which does not hold it"


def _queues_agree(state: State) -> Iterator[str]:
    queued: dict[str, int] = defaultdict(int)
    for key, queue in state.queues.active.items():
        members = queue.in_order()
        if len(members) != queue.size:
            yield f"queue {key} counts {queue.size} and has {len(members)}"
        for live in members:
            queued[live.id] += 1
            if key != queue_key_of(
                state, live, state.trajectory_of(live) if is_sequential(live) else None
            ):
                yield f"{live.id} is in the wrong queue"
    for action_id, live in state.actions.items():
        follows = action_id in state.coalescing.behind
        expected = live.state is ActionState.QUEUED and _may_queue(state, live) and not follows
        expected = expected and action_id not in state.generations.unrouted
        if queued.get(action_id, 0) != int(expected):
            yield f"{action_id} is in {queued.get(action_id, 0)} queues"


def _may_queue(state: State, live: LiveAction) -> bool:
    trajectory = state.trajectory_of(live)
    if trajectory is None or not is_sequential(live):
        return True
    ahead = [i for i in trajectory.line if i in trajectory.live]
    return trajectory.busy is None and ahead[0] == live.id and not trajectory.holds_back(live.id)


def _trajectories_agree(state: State) -> Iterator[str]:
    mine: dict[str, set[str]] = defaultdict(set)
    for action_id, live in state.actions.items():
        owner = live.action.trajectory_key
        if owner is not None:
            mine[owner].add(action_id)
    for key in mine.keys() - state.trajectories.keys():
        yield f"trajectory {key} has actions and is not open"
    for key, trajectory in state.trajectories.items():
        if trajectory.live != mine.get(key, set()):
            yield f"trajectory {key} lists the wrong actions"
        running = {
            live.id
            for live in map(state.actions.get, trajectory.live)
            if live is not None and live.state is not ActionState.QUEUED and is_sequential(live)
        }
        if running != ({trajectory.busy} if trajectory.busy else set()):
            yield f"trajectory {key} runs {sorted(running)}, recorded is {trajectory.busy}"
        if trajectory.closing and not (
            trajectory.live or trajectory.removing or trajectory.forking
        ):
            yield f"trajectory {key} is closed and not being removed"
        yield from _forks_agree(trajectory)


def _environments_agree(state: State) -> Iterator[str]:
    """The trajectories on each node are those that name it, in the order in which all were opened."""
    there: dict[str, list[LiveTrajectory]] = defaultdict(list)
    for trajectory in state.trajectories.values():
        if trajectory.node is not None:
            there[trajectory.node].append(trajectory)
    if (known := state.environments.nodes) != there.keys():
        yield f"nodes {sorted(known)} are known to have environments, and {sorted(there)} have"
    for node, expected in there.items():
        found = state.environments.on(node)
        if [id(each) for each in found] != [id(each) for each in expected]:
            yield f"node {node} is known to have the environments of {[each.key for each in found]}"


def _needs_are_kept(state: State) -> Iterator[str]:
    """What `refresh_needs` leaves out has the needs that it would find."""
    if state.needs_under is not state.config:
        return
    keeps = keeps_needs(state)
    for live in state.actions.values():
        if live.granted_at is not None or not keeps(live.action, live.pool):
            continue
        if live.needs != (found := current_needs(state, live)):
            yield f"{live.id} needs {found} and is known to need {live.needs}"


def _forks_agree(trajectory: LiveTrajectory) -> Iterator[str]:
    """Forks are made one at a time, without a running command, and each that is due is made."""
    key = trajectory.key
    if trajectory.forking and (trajectory.busy or trajectory.node is None):
        yield f"trajectory {key} is forked while it runs {trajectory.busy} on {trajectory.node}"
    if trajectory.forks and not trajectory.forking and trajectory.move is None:
        ahead = [each for each in trajectory.forks[0].after if each in trajectory.live]
        if not ahead:
            yield f"a fork of trajectory {key} is due and not made"


def _every_wait_has_a_reason(state: State) -> Iterator[str]:
    """I14: every queued action has a reason; I8: and was examined since the last change."""
    if state.dirty:
        yield "something changed and no cycle has run"
    for live in state.actions.values():
        if live.state is ActionState.QUEUED and wait_facts(state, live).code == "arriving":
            yield f"{live.id} waits without a reason"


def _quotas_wake(state: State) -> Iterator[str]:
    """I8: a timer examines actions that wait for a quota when it eases."""
    paces = {(at, s) for at, kind, s in state.timers.pending() if kind is TimerKind.PACE}
    for resource, due in state.timers.pacing.items():
        if due > state.now and (due, resource) not in paces:
            yield f"actions that wait for {resource} to ease are never examined again"


def _shares_agree(state: State) -> Iterator[str]:
    """Projects are charged with what their actions hold."""
    for key, cohort in state.sharing.cohorts.items():
        held: Counter[str] = Counter()
        for live in state.actions.values():
            for allocation in live.allocations:
                charged = cohort_at(state, live.pool, allocation.resource)
                if charged == key and not allocation.yields:
                    held[live.action.project] += allocation.amount
        if dict(held) != cohort.used or Cohort(cohort.shares, dict(held)) != cohort:
            yield f"{key} counts {cohort.used}, and {dict(held)} is held"


def _answers_come(state: State) -> Iterator[str]:
    """Followers follow live leaders, and every leader is live."""
    merging = state.coalescing
    for leader, (key, followers) in merging.following.items():
        if leader not in state.actions or merging.leaders.get(key) != leader:
            yield f"{leader} leads identical calls and is not live"
        for follower in followers:
            there = follower in state.actions and merging.behind.get(follower) == leader
            if not there or state.actions[follower].state is not ActionState.QUEUED:
                yield f"{follower} follows {leader} and does not wait for it"
    if len(merging.leaders) != len(merging.following):
        yield "leaders of identical calls are counted differently"
    if sum(len(followers) for _, followers in merging.following.values()) != len(merging.behind):
        yield "followers of identical calls are counted differently"


def _is_held(live: LiveAction) -> bool:
    """Return whether a trainer or a gateway renews ``live``."""
    if live.action.generation is not None:
        return live.state is not ActionState.QUEUED
    return live.action.kind is Kind.LEASE and live.state is ActionState.RUNNING


def _deadlines_are_set(state: State) -> Iterator[str]:
    """I5: everything with a deadline has a timer, and the shell was asked to wake for the first."""
    pending = state.timers.pending()
    leases = {(at, subject) for at, kind, subject in pending if kind is TimerKind.LEASE}
    graces = {(at, subject) for at, kind, subject in pending if kind is TimerKind.NODE_GRACE}
    deaths = {(at, subject) for at, kind, subject in pending if kind is TimerKind.NODE_DEAD}
    for action_id, live in state.actions.items():
        if _is_held(live) != (live.lease_expires_at is not None):
            yield f"{action_id} expires at {live.lease_expires_at} and is {live.state}"
        if live.lease_expires_at is not None and (live.lease_expires_at, action_id) not in leases:
            yield f"lease {action_id} never expires"
    for name, node in state.supply.nodes.items():
        due = (node.lost_at or 0.0) + state.config.grace_of(node.inventory.pool)
        if node.lost_at is not None and due > state.now and (due, name) not in graces:
            yield f"node {name} is silent without a deadline"
        end = (node.lost_at or 0.0) + state.config.death_of(node.inventory.pool)
        if node.lost_at is not None and end > state.now and (end, name) not in deaths:
            yield f"node {name} never dies"
    wakes = {(at, subject) for at, kind, subject in pending if kind is TimerKind.DEFERRAL}
    for resource, deferral in state.queues.deferrals.items():
        if deferral.until > state.now and (deferral.until, resource) not in wakes:
            yield f"actions evicted from {resource} are never examined again"
    if pending and (state.timers.asked_wake is None or state.timers.asked_wake > min(pending)[0]):
        yield f"the core is not woken at {min(pending)[0]}"


def _moves_agree(state: State) -> Iterator[str]:
    """A move has one idle trajectory, two nodes, and an end."""
    pending = state.timers.pending()
    ends = {(at, subject) for at, kind, subject in pending if kind is TimerKind.MOVE}
    for key, trajectory in state.trajectories.items():
        move = trajectory.move
        if (move is not None) != (key in state.moves.active):
            yield f"trajectory {key} is not among the moves on their way, or ought not to be"
        yield from _copies_agree(trajectory)
        if move is None:
            continue
        yield from _is_movable(trajectory)
        if not move.given_up and move.until > state.now and (move.until, key) not in ends:
            yield f"the move of trajectory {key} never ends"
    if state.moves.copied != {key for key, each in state.trajectories.items() if each.copies}:
        yield "the trajectories that are known to have copies are not those that have some"
    if state.moves.active - state.trajectories.keys():
        yield "a trajectory that is gone is being moved"
    looks = {(at, subject) for at, kind, subject in pending if kind is TimerKind.MOVES}
    for due, subject in ((state.moves.due, ""), (state.rebalancing.due, WAITING_QUEUES)):
        if due is not None and due > state.now and (due, subject) not in looks:
            yield f"what stays on draining nodes, or waits for its node, is never looked at again: {subject}"


def _copies_agree(trajectory: LiveTrajectory) -> Iterator[str]:
    """A node has the environment of a trajectory, or is to remove it."""
    if trajectory.node is not None and trajectory.node in trajectory.copies:
        yield f"trajectory {trajectory.key} lives where its copy is removed"
    if len(set(trajectory.copies)) != len(trajectory.copies):
        yield f"trajectory {trajectory.key} has two copies on one node"


def _is_movable(trajectory: LiveTrajectory) -> Iterator[str]:
    """Nothing uses an environment that is moved, and it goes to another node."""
    key, move = trajectory.key, trajectory.move
    if trajectory.busy or trajectory.forking or trajectory.closing is not None:
        yield f"trajectory {key} is moved while it is used"
    target = "" if move is None else move.target
    if trajectory.node is None or target in (trajectory.node, *trajectory.copies):
        yield f"trajectory {key} is moved from {trajectory.node} to {target}"
