"""One scheduling cycle: scan, block, claim at minimum units (design of the algorithm: §4.2).

Recipe
1. Heads: the first action of every wait queue, merged in order (priority, then arrival; what residency
   prefers comes first among equals, see `residency.policy`; who would borrow from
   other projects' shares comes after all who would not, see `shares`).
2. For each head, find a place: its node, or the least memory-loaded node that fits now.
3. It fits → grant, and the next of its queue becomes head. Where the pool's policy arranges, it is
   a candidate instead, and after the scan the policy says who goes and with what (`elastic`).
4. It does not → the resources it is short of are *blocked* for everybody later in the scan, and it
   *claims* its minimum on its other resources: later ones may use those only beyond the claims.
   Its queue leaves the scan, since its equals cannot fit either.

Consequences. An action is overtaken only on resources that it does not wait for; nobody starves;
grants are atomic over all resources, so nothing deadlocks. An action that may run on any node
saves up on one node at a time and keeps to that one while it is head; a place that frees elsewhere
is taken first.

Three exceptions, or the system could stand still. Environments keep memory for their whole life
and end only by running: who waits for memory blocks memory alone, and claims nothing. Who waits for
a quota to ease claims nothing either, and a timer lets it be looked at again. And who is larger
than everything that is there now (a limit was lowered, the large node is away) blocks and claims
nothing, for no action that ends would help it.

Cost: O(lines + admitted · log lines) per cycle, however long the lines are.
"""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heapify, heappop, heapreplace

import msgspec

from domain.decisions import Decision
from domain.ids import ResourceId, node_resource
from domain.resources import MILLI
from scheduler.core.cycle.arranger import Candidate, Elastic
from scheduler.core.cycle.places import usable_nodes, why_no_node
from scheduler.core.cycle.pool_policies import policy_of
from scheduler.core.cycle.resizer import malleable
from scheduler.core.cycle.scan import Scan
from scheduler.core.policies.malleable import Malleable
from scheduler.core.residency.policy import Rank
from scheduler.core.state.demand import Need, QueueKey
from scheduler.core.state.lifecycle import grant
from scheduler.core.state.live import LiveAction, LiveNode
from scheduler.core.state.model import State
from scheduler.core.state.queues import WaitQueue, WaitReason
from scheduler.core.state.timers import TimerKind


def run_cycle(state: State, decisions: list[Decision]) -> None:
    """Admit whatever can be admitted now."""
    if not state.dirty:
        return
    state.dirty = False
    for ledger in state.fleet.paced.values():
        ledger.advance(state.now)
    if not state.queues.active and not state.resizing.changed:
        return  # nobody waits, and nobody may grow
    if state.fleet.resident:
        state.residency.begin_cycle()
    elastic = Elastic(state)
    while _scan(state, elastic, decisions) or state.residency.scan_again():
        pass  # whoever was evicted on one node is tried on the others, and seats were opened
    if state.fleet.resident:
        state.residency.end_cycle(decisions)
    state.dirty = False


def _scan(state: State, elastic: Elastic, decisions: list[Decision]) -> bool:
    """Look at every line once; say whether another look may find more."""
    scan = Scan(paced=state.fleet.paced)
    elastic.begin()
    heads = _heads(state)
    shared = bool(state.sharing.cohorts)
    while heads:
        borrows, place, queue = heads[0]
        key = queue.key
        live = queue.head()
        if (
            shared
            and live is not None
            and not (borrows or key.held)
            and elastic.shares.borrows(key)
        ):
            heapreplace(heads, (True, place, queue))
            continue
        if live is not None and _try_admit(state, scan, elastic, queue, live, decisions):
            following = queue.head()
            if following is not None:
                heapreplace(heads, (borrows, state.residency.rank(key, following), queue))
                continue
            state.queues.retire(key)
        heappop(heads)
    return elastic.settle(scan, decisions)


def _heads(state: State) -> list[tuple[bool, Rank, WaitQueue]]:
    """Return the lines by rank of their heads; no two ranks are equal, as no two arrivals are."""
    heads: list[tuple[bool, Rank, WaitQueue]] = []
    for key, queue in list(state.queues.active.items()):
        live = queue.head()
        if live is None:
            state.queues.retire(key)
        else:
            heads.append((False, state.residency.rank(key, live), queue))
    heapify(heads)
    return heads


def _try_admit(
    state: State,
    scan: Scan,
    elastic: Elastic,
    queue: WaitQueue,
    live: LiveAction,
    decisions: list[Decision],
) -> bool:
    """Grant ``live``, the head of ``queue``, or give the queue a reason to wait."""
    key = queue.key
    if key.needs.resident and _sat_down(state, scan, elastic, queue, live, decisions):
        return True
    if (reason := _stands_back(state, elastic, queue, live)) is not None:
        queue.reason = reason
        return False
    if queue.lone is not None and _still_short(state, scan, queue, queue.lone, live):
        return False
    nodes = usable_nodes(state, key, live) if key.needs.wants_node else []
    if key.needs.wants_node and not nodes:
        queue.reason = why_no_node(state, key)
        return False
    if not queue.in_cluster or scan.admits(state.fleet.ledgers, queue.in_cluster):
        if policy_of(state, key.pool).arrange is None:
            if _grant(state, scan, queue, live, nodes, decisions):
                return True
        elif (kept := _offer(state, scan, elastic, queue, live, nodes, decisions)) is not None:
            return not kept
    queue.reason = _wait(state, scan, elastic, queue, live, nodes)
    return False


def _sat_down(
    state: State,
    scan: Scan,
    elastic: Elastic,
    queue: WaitQueue,
    live: LiveAction,
    decisions: list[Decision],
) -> bool:
    """Grant ``live`` a seat on units that others hold, if no action ahead of it waits for them."""
    key = queue.key
    seat = state.residency.seat(key, live)
    if seat is None or seat.resource in scan.blocked or _halted(state, key):
        return False
    if not elastic.shares.affords(key, seat.resource, len(seat.home.units) * MILLI):
        return False
    grant(state, live, seat.node, decisions, seat=seat)
    return True


def _halted(state: State, key: QueueKey) -> WaitReason | None:
    """Say what keeps a whole line from going on, if somebody has halted it."""
    if key.held:
        return WaitReason("task_paused", key.held)
    pool = state.config.pools.get(key.pool)
    if pool is not None and pool.paused:
        return WaitReason("pool_paused", key.pool)
    return state.residency.halted(key) if key.needs.resident else None


def _stands_back(
    state: State, elastic: Elastic, queue: WaitQueue, live: LiveAction
) -> WaitReason | None:
    """Say why ``live`` waits without being in anybody's way, if it does."""
    key = queue.key
    if (halted := _halted(state, key)) is not None:
        return halted
    if key.needs.project and (short := elastic.short_of_share(queue)) is not None:
        cohort, amount = short
        first = elastic.shares.first(cohort, key.needs.project)
        if first is None:
            elastic.shares.wait(cohort, live, amount)
        return WaitReason("share", cohort.name, first)
    return state.residency.held_back(queue) if key.needs.resident else None


def _still_short(state: State, scan: Scan, queue: WaitQueue, need: Need, live: LiveAction) -> bool:
    """Say whether a line that takes nothing but ``need`` waits as it did before.

    What `_wait` would find out once more, for a fifth of its cost: with many APIs nearly every line
    of a cycle is such a one. A changed configuration forgets the reason (`handlers.nodes`).
    """
    resource, _ = need
    if queue.reason is None or queue.reason.code not in {"short_of", "behind"}:
        return False
    if resource in scan.blocked:
        queue.reason = WaitReason("behind", resource, scan.blocked[resource])
        return True
    if not scan.short(state.fleet.ledgers, *need):
        return False
    scan.blocked[resource] = live.id
    queue.reason = WaitReason("short_of", resource)
    _look_again(state, *need)
    return True


def _grant(
    state: State,
    scan: Scan,
    queue: WaitQueue,
    live: LiveAction,
    nodes: list[LiveNode],
    decisions: list[Decision],
) -> bool:
    """Grant ``live`` at once, where it fits; nothing is arranged in its pool."""
    if not queue.key.needs.wants_node:
        grant(state, live, None, decisions)
        return True
    for node in nodes:
        name = node.name
        if scan.admits(state.fleet.ledgers, queue.on_node(name)):
            grant(state, live, name, decisions)
            queue.sticky_node = None
            return True
    return False


def _offer(
    state: State,
    scan: Scan,
    elastic: Elastic,
    queue: WaitQueue,
    live: LiveAction,
    nodes: list[LiveNode],
    decisions: list[Decision],
) -> bool | None:
    """Let the pool's policy decide about ``live``; None when it fits nowhere.

    True: it was evicted before and is still held back, so it claims what it would take.
    """
    deferred: Place | None = None
    for place in _places(state, scan, elastic, queue, nodes):
        if _admit(state, elastic, live, place, decisions):
            queue.sticky_node = None
            return False
        deferred = deferred or place
    if deferred is None:
        return None
    scan.claim(deferred.needs)
    elastic.take(live, deferred.needs)
    queue.sticky_node = deferred.node
    queue.reason = WaitReason("deferred", _key_at(live, deferred.node))
    return True


class Place(msgspec.Struct, frozen=True, gc=False):
    """Where an action could run now, and everything it would take."""

    node: str | None
    needs: list[Need]


def _places(
    state: State, scan: Scan, elastic: Elastic, queue: WaitQueue, nodes: list[LiveNode]
) -> Iterator[Place]:
    """Yield where the head of ``queue`` fits, then where it would if malleable actions shrank."""
    if not queue.key.needs.wants_node:
        yield Place(None, queue.in_cluster)
        return
    full = []
    for node in nodes:
        on_node = queue.on_node(node.name)
        if scan.admits(state.fleet.ledgers, on_node):
            yield Place(node.name, on_node + queue.in_cluster)
        else:
            full.append(node)
    live = queue.head()
    if live is not None and isinstance(policy_of(state, queue.key.pool), Malleable):
        for node in full:
            on_node = queue.on_node(node.name)
            if _held_back(state, live, _key_at(live, node.name)):
                continue
            if elastic.squeeze(scan, on_node):
                yield Place(node.name, on_node + queue.in_cluster)


def _admit(
    state: State, elastic: Elastic, live: LiveAction, place: Place, decisions: list[Decision]
) -> bool:
    """Grant ``live`` or let a policy decide about it; False when that was done and not undone."""
    key = _key_at(live, place.node) if live.needs.key else None
    if key is None and not isinstance(policy_of(state, live.pool), Malleable):
        grant(state, live, place.node, decisions)
        return True
    if key is not None and _held_back(state, live, key):
        return False
    assert live.queue is not None  # it is head of a line
    elastic.reserve(key, Candidate(live, place.node, place.needs, live.queue))
    return True


def _held_back(state: State, live: LiveAction, key: ResourceId) -> bool:
    """Say whether ``live`` waits with those that were evicted from the group ``key``."""
    deferral = state.queues.deferrals.get(key)
    return deferral is not None and live.order >= deferral.first and not malleable(state, live)


def _key_at(live: LiveAction, node: str | None) -> ResourceId:
    """Return the key resource of ``live`` if it ran on ``node``."""
    needs = live.needs
    if node is None or (needs.in_cluster and needs.key_in_cluster):
        return ResourceId(needs.key)
    return node_resource(needs.key, node)


def _wait(
    state: State,
    scan: Scan,
    elastic: Elastic,
    queue: WaitQueue,
    live: LiveAction,
    nodes: list[LiveNode],
) -> WaitReason:
    """Let the head of ``queue`` wait, and save up where that can help it."""
    for need in queue.in_cluster:
        if not state.fleet.large_enough([need]):
            return WaitReason("too_large", need[0])
    if not queue.key.needs.wants_node:
        return _refuse(state, scan, elastic, live, queue.in_cluster)
    large = [node.name for node in nodes if state.fleet.large_enough(queue.on_node(node.name))]
    if not large:
        queue.sticky_node = None
        return WaitReason("too_large", queue.key.node or queue.key.pool)
    if queue.sticky_node not in large:
        queue.sticky_node = large[0]
    needs = queue.on_node(queue.sticky_node or large[0])
    return _refuse(state, scan, elastic, live, needs + queue.in_cluster)


def _refuse(
    state: State, scan: Scan, elastic: Elastic, live: LiveAction, needs: list[Need]
) -> WaitReason:
    """Let ``live`` wait for ``needs``; when time alone brings them, look again then."""
    reason = scan.refuse(state.fleet.ledgers, live.id, needs)
    resource = ResourceId(reason.subject or "")
    if reason.code == "short_of" and resource in state.fleet.paced:
        _look_again(state, resource, next(amount for name, amount in needs if name == resource))
    elif reason.code == "short_of" and not resource.startswith("memory:"):
        elastic.take(live, needs)
    return reason


def _look_again(state: State, resource: ResourceId, amount: int) -> None:
    """Set a timer for when time alone lets ``amount`` fit, if it does."""
    ledger = state.fleet.paced.get(resource)
    ready_at = None if ledger is None else ledger.ready_at(amount)
    due = state.timers.pacing.get(resource)
    if ready_at is not None and (due is None or ready_at < due):
        state.timers.pacing[resource] = ready_at
        state.timers.set(ready_at, TimerKind.PACE, resource)
