"""Elastic grants: what policies make of the candidates of one cycle (paper §4.2, Algorithm 1).

Theory of operation. While the scan goes on, a candidate of a pool whose policy arranges is not
granted yet: what it was admitted with is *reserved*, so that later ones see what is left. After the
scan, `settle` takes the groups one by one (key resource, pool; in the order of names), gives each
the units that the reservations of others and all claims leave, and lets the policy decide. Those
that go are granted; the others wait again, at their old place.

Rules
1. Until all groups are settled, the evicted keep their reservations on other resources: they claim.
2. Who was evicted is *deferred*: later cycles only let it claim, until units of the resource are
   released, the group changes, or the first action that holds the resource was predicted to end
   (a timer). Otherwise the next cycle, whatever it is for, would let it go as a first candidate.
3. An evicted action that may run on another node is tried there in the same cycle.
4. A group of one without a choice, or none of whose members has one, costs no prediction.

Behind the candidates stand at most `HORIZON` waiting actions: on longer queues the estimate leaves
out the same number of actions on both sides of every comparison. Actions that may run on any node
of a pool are spread evenly over its nodes there.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from heapq import nsmallest
from typing import NamedTuple

from domain.decisions import Decision
from domain.ids import ActionId, ResourceId
from domain.operators import UnitsOperator
from domain.ports import Ledger
from domain.resources import MILLI
from scheduler.core.durations import LEAST_SECONDS, choices_of, residual_seconds
from scheduler.core.lifecycle import grant, stand
from scheduler.core.policies.balanced import fair_share
from scheduler.core.policies.choices import Choices, grained
from scheduler.core.policies.group import Arrangement, Group
from scheduler.core.pools import policy_of
from scheduler.core.queues import Need, QueueKey, WaitReason
from scheduler.core.scan import Scan
from scheduler.core.state import Arranged, Deferral, LiveAction, State
from scheduler.core.timers import TimerKind

#: Waiting actions behind the candidates that an estimate looks at.
HORIZON = 2000


class Candidate(NamedTuple):
    """An action that the scan has admitted and a policy decides about."""

    live: LiveAction
    node: str | None
    needs: list[Need]
    #: The line it was head of.
    line: QueueKey


class Elastic:
    """The candidates of one scan."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._groups: dict[tuple[ResourceId, str], list[Candidate]] = defaultdict(list)
        self._evicted: list[tuple[ResourceId, Candidate]] = []

    def reserve(self, key: ResourceId, candidate: Candidate) -> None:
        """Hold what ``candidate`` was admitted with until `settle`."""
        live = candidate.live
        self._state.queues[candidate.line].leave(live)
        for resource, amount in candidate.needs:
            self._state.ledgers[resource].allocate(_reserved(live), amount)
        self._groups[key, live.pool].append(candidate)

    def settle(self, scan: Scan, decisions: list[Decision]) -> bool:
        """Grant, defer, and say whether somebody who was evicted may try another node."""
        for (key, pool), members in sorted(self._groups.items(), key=lambda item: item[0]):
            self._arrange(key, pool, members, scan.claims.get(key, []), decisions)
        self._groups.clear()
        elsewhere = False
        for key, candidate in self._evicted:
            self._release(candidate)
            elsewhere |= self._wait(key, candidate)
        self._evicted.clear()
        return elsewhere

    def _arrange(
        self,
        key: ResourceId,
        pool: str,
        members: list[Candidate],
        claims: list[int],
        decisions: list[Decision],
    ) -> None:
        """Let the policy of ``pool`` decide about one group."""
        state, policy = self._state, policy_of(self._state, pool)
        ledger = state.ledgers[key]
        for member in members:
            ledger.release(_reserved(member.live))
        group = group_of(state, key, pool, [member.live for member in members], claims)
        assert policy.arrange is not None  # else nobody would have been reserved for it
        arrangement = policy.arrange(group)
        for member, amount in zip(members, arrangement.units, strict=False):
            self._release(member)
            grant(state, member.live, member.node, decisions, amount)
        evicted = members[len(arrangement.units) :]
        self._evicted += ((key, member) for member in evicted)
        if group.elastic:
            names = tuple(member.live.id for member in members)
            state.arranged.append(Arranged(state.now, key, policy.name, names, arrangement))
        if evicted:
            self._defer(key, evicted, group, arrangement)

    def _defer(
        self, key: ResourceId, evicted: list[Candidate], group: Group, arrangement: Arrangement
    ) -> None:
        state = self._state
        soonest = min((*group.running, *arrangement.ends))
        until = state.now + max(LEAST_SECONDS, soonest)
        first = evicted[0].live.order
        before = state.deferrals.get(key)  # of another pool, or an earlier scan of this cycle
        if before is not None:
            until, first = min(until, before.until), min(first, before.first)
        state.deferrals[key] = Deferral(until, first)
        state.timers.set(until, TimerKind.DEFERRAL, key)

    def _wait(self, key: ResourceId, candidate: Candidate) -> bool:
        """Put an evicted action back; say whether it may run on another node."""
        live = candidate.live
        queue = stand(self._state, live, candidate.line)
        if queue.head() is live:
            queue.reason = WaitReason("deferred", key)
            queue.sticky_node = candidate.node
        return candidate.node is not None and queue.key.node is None

    def _release(self, candidate: Candidate) -> None:
        for resource, _ in candidate.needs:
            self._state.ledgers[resource].release(_reserved(candidate.live))


def _reserved(live: LiveAction) -> str:
    return f"reserved:{live.id}"


def group_of(
    state: State,
    key: ResourceId,
    pool: str,
    candidates: list[LiveAction],
    claims: list[int],
) -> Group:
    """Show a group as policies see it; nothing is predicted when there is nothing to choose."""
    choices = [choices_of(state, live) for live in candidates]
    least = sum(each.smallest for each in choices)
    free = max(least, available(state.ledgers[key], claims))
    group = Group(key, UnitsOperator(free), choices)
    policy = policy_of(state, pool)
    if group.elastic and (len(candidates) > 1 or policy.shares):
        waiting = behind(state, key, pool, {live.id for live in candidates})
        group.behind = [choices_of(state, live) for live in waiting]
        holders = list(holding(state, key))
        group.running = [grained(residual_seconds(state, live)) for live in holders]
        if policy.shares:
            group.fair_share = _fair_share(state, key, holders, [*choices, *group.behind])
    return group


def available(ledger: Ledger, claims: list[int]) -> int:
    """Return how many milli-units could be shared out beside ``claims``."""
    most = ledger.free
    if most > 0 and ledger.fits((*claims, most)):
        return most
    low, high = 0, max(0, most) // MILLI
    while low < high:
        middle = (low + high + 1) // 2
        if ledger.fits((*claims, middle * MILLI)):
            low = middle
        else:
            high = middle - 1
    return low * MILLI


def holding(state: State, key: ResourceId) -> Iterator[LiveAction]:
    """Yield the live actions that hold units of ``key``."""
    for holder in state.ledgers[key].holders():
        live = state.actions.get(ActionId(holder.rpartition("#")[0]))
        if live is not None and live.holder == holder:
            yield live


def behind(state: State, key: ResourceId, pool: str, without: set[ActionId]) -> list[LiveAction]:
    """Return the waiting actions of the group ``key``, in order, up to `HORIZON`."""
    kind, _, node = key.partition(":")
    cluster = key in state.config.resources
    nodes = [] if cluster else sorted(each.name for each in state.nodes_of(pool))
    found: list[LiveAction] = []
    for queue in state.queues.values():
        line = queue.key
        if line.needs.key != (key if cluster else kind):
            continue
        if cluster or line.node == node:
            found += queue.waiting()
        elif line.node is None and line.pool == pool and node in nodes:
            members = sorted(queue.waiting(), key=_order)
            found += members[nodes.index(node) :: len(nodes)]
    return [live for live in nsmallest(HORIZON, found, key=_order) if live.id not in without]


def _order(live: LiveAction) -> tuple[int, int]:
    return live.order


def _fair_share(
    state: State, key: ResourceId, holders: list[LiveAction], waiting: list[Choices]
) -> int:
    """Return the cap of `balanced`: units that inelastic actions leave, per elastic action."""
    elastic = sum(len(each) > 1 for each in waiting)
    units = state.ledgers[key].capacity
    units -= sum(each.smallest for each in waiting if len(each) == 1)
    for live in holders:
        if len(live.action.cost.get(live.needs.key, ())) > 1:
            elastic += 1
        else:
            units -= sum(each.amount for each in live.allocations if each.resource == key)
    return fair_share(units, elastic)
