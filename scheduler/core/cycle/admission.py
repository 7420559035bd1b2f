"""The scheduling cycle: which waiting actions start now, where, and with how many units.

Recipe (design of the algorithm: §4.2)
1. Scan. The heads of all wait queues are examined in order: priority, then arrival; among equal
   priorities residency may prefer some (`residency.policy`), and actions that would borrow from other
   projects' shares come after those that would not (`shares`). The head is admitted, and the next of
   its queue becomes head, or its queue leaves the scan, since its equals cannot fit either.
2. Places. A head fits on its node, or on the best node that has its minimum now (`places`); where the
   pool's policy resizes running actions, also where they can make room.
3. Arrange. Without a policy that arranges, the head is granted at once. Otherwise it becomes a
   candidate, and after the scan the policy decides about each group of candidates (`arranger`).
4. Resize. Running malleable actions shrink for admitted ones and grow into what is left (`resizer`).
5. A head that does not fit *blocks* the resources it is short of for everything later in the scan and
   *claims* its minimum on its other resources: later actions may use those only beyond the claims.

Consequences. An action is overtaken only on resources that it does not wait for, so none starves;
grants are atomic over all resources, so nothing deadlocks. An action that may run on any node
reserves units on one node at a time and keeps to that one while it is head; a place that is released
elsewhere is taken first.

Three exceptions keep the system from standing still. Environments hold memory for their whole life
and end only by running: an action short of memory blocks memory alone, and claims nothing. An action
short of a quota claims nothing either, and a timer lets the cycle examine it again. And an action
larger than all present capacity (a limit was lowered, the large node is away) blocks and claims
nothing, since no other action's end helps it.

Cost: O(queues + admitted · log queues) per cycle, however long the queues are.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from heapq import heapify, heappop, heapreplace

import msgspec

from domain.decisions import Decision
from domain.ids import ResourceId, node_resource
from domain.resources import MILLI
from scheduler.core.cycle.arranger import Candidate, GroupArranger
from scheduler.core.cycle.places import usable_nodes, why_no_node
from scheduler.core.cycle.pool_policies import policy_of
from scheduler.core.cycle.resizer import malleable
from scheduler.core.cycle.scan import Scan
from scheduler.core.residency.policy import Rank
from scheduler.core.state.at_work import AtWork
from scheduler.core.state.demand import Need, QueueKey
from scheduler.core.state.lifecycle import grant
from scheduler.core.state.live import LiveAction, LiveNode
from scheduler.core.state.model import State
from scheduler.core.state.queues import WaitQueue, WaitReason
from scheduler.core.state.rebalancing import claims_of_moves
from scheduler.core.state.supply import Supply


def run_cycle(state: State, decisions: list[Decision], at_work: AtWork) -> None:
    """Admit all actions that can be admitted now; ``at_work`` follows which one is decided about."""
    if not state.dirty:
        return
    state.dirty = False
    for ledger in state.supply.paced.values():
        ledger.advance(state.now)
    if not state.queues.active and not state.resizing.changed:
        return
    has_residents = bool(state.supply.resident)
    if has_residents:
        state.residency.begin_cycle()
    cycle = Cycle(state, decisions, at_work)
    # Again while evicted candidates may run on other nodes, or grants have opened seats.
    while cycle.run() or state.residency.scan_again():
        pass
    at_work.actions = ()
    if has_residents:
        state.residency.end_cycle(decisions)
    state.dirty = False


class _Place(msgspec.Struct, frozen=True, gc=False):
    """Where an action fits now, and all its needs there."""

    node: str | None
    needs: list[Need]


class Cycle:
    """One cycle: scans of all queues until a scan changes nothing for the next one."""

    __slots__ = ("_at_work", "_decisions", "_lazy_arranger", "_scan", "_state")

    def __init__(self, state: State, decisions: list[Decision], at_work: AtWork) -> None:
        self._state = state
        self._decisions = decisions
        self._at_work = at_work
        self._lazy_arranger: GroupArranger | None = None
        self._scan = Scan(paced=state.supply.paced, beside=state.supply.beside)

    def run(self) -> bool:
        """Scan every queue once, then arrange; return whether another scan may admit more."""
        self._scan.begin()
        if self._state.moves.active:
            for needs in claims_of_moves(self._state).values():
                self._scan.claim(needs)
        if self._lazy_arranger is not None:
            self._lazy_arranger.begin_scan()
        self._scan_heads()
        if self._lazy_arranger is None and not self._state.resizing.changed:
            return False
        return self._arranger.arrange(self._scan, self._decisions)

    @property
    def _arranger(self) -> GroupArranger:
        """Candidates and shares of the cycle; made when it is first needed, for most cycles never."""
        if self._lazy_arranger is None:
            self._lazy_arranger = GroupArranger(self._state, self._at_work)
            self._lazy_arranger.begin_scan()
        return self._lazy_arranger

    # Phase 1: scan

    def _scan_heads(self) -> None:
        state = self._state
        heads = self._heads()
        ranked = len(heads) > 1
        shared = bool(state.sharing.cohorts)
        while heads:
            borrows, rank, queue = heads[0]
            key = queue.key
            live = queue.head()
            self._at_work.actions = () if live is None else (live,)
            if (
                shared
                and live is not None
                and not (borrows or key.held)
                and self._arranger.shares.borrows(key)
            ):
                heapreplace(heads, (True, rank, queue))
                continue
            if live is not None and self._admit(queue, live):
                following = queue.head()
                if following is not None:
                    rank = self._rank(key, following) if ranked else ()
                    heapreplace(heads, (borrows, rank, queue))
                    continue
                state.queues.retire(key)
            heappop(heads)

    def _heads(self) -> list[tuple[bool, Rank, WaitQueue]]:
        """Return the queues as a heap by rank of their heads; arrivals differ, so no ranks are equal.

        A queue alone needs no rank.
        """
        state = self._state
        found: list[tuple[WaitQueue, LiveAction]] = []
        for key, queue in list(state.queues.active.items()):
            live = queue.head()
            if live is None:
                state.queues.retire(key)
            else:
                found.append((queue, live))
        if len(found) == 1:
            return [(False, (), found[0][0])]
        heads = [(False, self._rank(queue.key, live), queue) for queue, live in found]
        heapify(heads)
        return heads

    def _rank(self, key: QueueKey, live: LiveAction) -> Rank:
        """Return the sort key of ``live``, the head of the queue ``key``, among all heads."""
        state = self._state
        self._at_work.actions = (live,)
        return policy_of(state, key.pool).rank(state.residency.rank(key, live))

    def _admit(self, queue: WaitQueue, live: LiveAction) -> bool:
        """Admit ``live``, the head of ``queue``, or store why the queue waits; return which."""
        state, scan, key = self._state, self._scan, queue.key
        if key.needs.resident and self._admit_to_seat(key, live):
            return True
        if (reason := self._waits_aside(queue, live)) is not None:
            queue.reason = reason
            return False
        if queue.lone is not None and self._still_short(queue, queue.lone, live):
            return False
        nodes: Iterable[LiveNode] = usable_nodes(state, key, live) if key.needs.wants_node else ()
        if key.needs.wants_node and not nodes:
            queue.reason = why_no_node(state, key)
            return False
        if not queue.in_cluster or scan.admits(state.supply.ledgers, queue.in_cluster):
            if not policy_of(state, key.pool).arranges:
                if self._grant(queue, live, nodes):
                    return True
            elif (admitted := self._offer(queue, live, nodes)) is not None:
                return admitted
        queue.reason = self._block(queue, live, nodes)
        return False

    def _admit_to_seat(self, key: QueueKey, live: LiveAction) -> bool:
        """Grant ``live`` a seat on units that others hold, if no action ahead of it waits for them."""
        seat = self._state.residency.seat(key, live)
        if seat is None or seat.resource in self._scan.blocked or self._halted(key):
            return False
        amount = len(seat.home.units) * MILLI
        if not self._arranger.shares.affords(key, seat.resource, amount):
            return False
        grant(self._state, live, seat.node, self._decisions, seat=seat)
        return True

    def _halted(self, key: QueueKey) -> WaitReason | None:
        """Return which pause or quarantine stops the whole queue, if any."""
        if key.held:
            return WaitReason("task_paused", key.held)
        pool = self._state.config.pools.get(key.pool)
        if pool is not None and pool.paused:
            return WaitReason("pool_paused", key.pool)
        return self._state.residency.halted(key) if key.needs.resident else None

    def _waits_aside(self, queue: WaitQueue, live: LiveAction) -> WaitReason | None:
        """Return why ``live`` waits without blocking or claiming anything, if so."""
        key = queue.key
        if (halted := self._halted(key)) is not None:
            return halted
        if key.needs.project and (short := self._arranger.short_of_share(queue)) is not None:
            cohort, amount = short
            shares = self._arranger.shares
            first = shares.first(cohort, key.needs.project)
            if first is None:
                shares.wait(cohort, live, amount)
            return WaitReason("share", cohort.name, first)
        return self._state.residency.held_back(queue) if key.needs.resident else None

    def _still_short(self, queue: WaitQueue, need: Need, live: LiveAction) -> bool:
        """Return whether a queue with no other need than ``need`` waits for it as before.

        A shortcut for `_block` at a fifth of its cost: with many APIs nearly every queue of a cycle is
        such a one. A changed configuration forgets the reason (`handlers.configuration`).
        """
        scan, (resource, _) = self._scan, need
        if queue.reason is None or queue.reason.code not in {"short_of", "behind"}:
            return False
        if resource in scan.blocked:
            queue.reason = WaitReason("behind", resource, scan.blocked[resource])
            return True
        if not scan.short(self._state.supply.ledgers, *need):
            return False
        scan.blocked[resource] = live.id
        queue.reason = WaitReason("short_of", resource)
        self._wake_when_ready(*need)
        return True

    # Phases 2 and 3: a place, and a grant or a candidate

    def _grant(self, queue: WaitQueue, live: LiveAction, nodes: Iterable[LiveNode]) -> bool:
        """Grant ``live`` on the first node where it fits, in a pool whose policy does not arrange."""
        if not queue.key.needs.wants_node:
            grant(self._state, live, None, self._decisions)
            return True
        for node in nodes:
            name = node.name
            if self._scan.admits(self._state.supply.ledgers, queue.on_node(name)):
                grant(self._state, live, name, self._decisions)
                queue.sticky_node = None
                return True
        return False

    def _offer(self, queue: WaitQueue, live: LiveAction, nodes: Iterable[LiveNode]) -> bool | None:
        """Make ``live`` a candidate in the first place where it fits; None if it fits nowhere.

        False: it was evicted before and is still deferred, so it only claims its needs.
        """
        deferred: _Place | None = None
        for place in self._places(queue, nodes):
            if self._admit_at(live, place):
                queue.sticky_node = None
                return True
            deferred = deferred or place
        if deferred is None:
            return None
        self._scan.claim(deferred.needs)
        self._arranger.take_share(live, deferred.needs)
        queue.sticky_node = deferred.node
        queue.reason = WaitReason("deferred", _key_at(live, deferred.node))
        return False

    def _places(self, queue: WaitQueue, nodes: Iterable[LiveNode]) -> Iterator[_Place]:
        """Yield where the head of ``queue`` fits, then where it does once malleable actions shrink."""
        state = self._state
        if not queue.key.needs.wants_node:
            yield _Place(None, queue.in_cluster)
            return
        full = []
        for node in nodes:
            on_node = queue.on_node(node.name)
            if self._scan.admits(state.supply.ledgers, on_node):
                yield _Place(node.name, on_node + queue.in_cluster)
            else:
                full.append(node)
        live = queue.head()
        if live is not None and queue.key.pool in state.resizing.pools:
            for node in full:
                on_node = queue.on_node(node.name)
                if self._deferred(live, _key_at(live, node.name)):
                    continue
                if self._arranger.make_room(self._scan, on_node):
                    yield _Place(node.name, on_node + queue.in_cluster)

    def _admit_at(self, live: LiveAction, place: _Place) -> bool:
        """Grant ``live`` or make it a candidate; False if its group is deferred."""
        state = self._state
        key = _key_at(live, place.node) if live.needs.key else None
        if key is None and live.pool not in state.resizing.pools:
            grant(state, live, place.node, self._decisions)
            return True
        if key is not None and self._deferred(live, key):
            return False
        assert live.queue is not None  # it is the head of a queue
        self._arranger.add(key, Candidate(live, place.node, place.needs, live.queue))
        return True

    def _deferred(self, live: LiveAction, key: ResourceId) -> bool:
        """Return whether ``live`` waits with the candidates that were evicted from the group ``key``."""
        deferral = self._state.queues.deferrals.get(key)
        return (
            deferral is not None
            and live.order >= deferral.first
            and not malleable(self._state, live)
        )

    # Phase 5: block and claim

    def _block(self, queue: WaitQueue, live: LiveAction, nodes: Iterable[LiveNode]) -> WaitReason:
        """Let the head of ``queue`` wait, and block and claim where another action's end helps it."""
        supply = self._state.supply
        for need in queue.in_cluster:
            if not supply.large_enough([need]):
                return WaitReason(
                    "no_backend" if _is_empty(supply, need[0]) else "too_large", need[0]
                )
        if not queue.key.needs.wants_node:
            return self._refuse(live, queue.in_cluster)
        large = [node.name for node in nodes if supply.large_enough(queue.on_node(node.name))]
        if not large:
            queue.sticky_node = None
            return WaitReason("too_large", queue.key.node or queue.key.pool)
        if queue.sticky_node not in large:
            queue.sticky_node = large[0]
        needs = queue.on_node(queue.sticky_node or large[0])
        if queue.key.node is not None and queue.key.pool in self._state.rebalancing.pools:
            self._state.rebalancing.waits = True
        return self._refuse(live, needs + queue.in_cluster)

    def _refuse(self, live: LiveAction, needs: list[Need]) -> WaitReason:
        """Block and claim ``needs``; set a timer if time alone makes them fit."""
        reason = self._scan.refuse(self._state.supply.ledgers, live.id, needs)
        resource = ResourceId(reason.subject or "")
        if reason.code == "short_of" and resource in self._state.supply.paced:
            amount = next(amount for name, amount in needs if name == resource)
            self._wake_when_ready(resource, amount)
        elif reason.code == "short_of" and not resource.startswith("memory:"):
            self._arranger.take_share(live, needs)
        return reason

    def _wake_when_ready(self, resource: ResourceId, amount: int) -> None:
        """Set a timer for when time alone lets ``amount`` fit, if it does."""
        ledger = self._state.supply.paced.get(resource)
        ready_at = None if ledger is None else ledger.ready_at(amount)
        if ready_at is not None:
            self._state.timers.set_pace(resource, ready_at)


def _is_empty(supply: Supply, resource: ResourceId) -> bool:
    """Return whether seats of ``resource`` are short since no unit has any."""
    ledger = supply.seated.get(resource)
    return ledger is not None and not ledger.feasible(1)


def _key_at(live: LiveAction, node: str | None) -> ResourceId:
    """Return the key resource of ``live`` if it ran on ``node``."""
    needs = live.needs
    if node is None or (needs.in_cluster and needs.key_in_cluster):
        return ResourceId(needs.key)
    return node_resource(needs.key, node)
