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
4. Grants come last: before them go orders to give up units (`widths`), after them those to use more.
5. A group of one without a choice, or none of whose members has one, costs no prediction.

Behind the candidates stand at most `HORIZON` waiting actions: on longer queues the estimate leaves
out the same number of actions on both sides of every comparison. Actions that may run on any node
of a pool are spread evenly over its nodes there.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from heapq import merge
from itertools import islice
from operator import itemgetter

import msgspec

from domain.decisions import Decision
from domain.ids import ActionId, ResourceId
from domain.operators import Operator, UnitsOperator
from domain.ports import Ledger, Shaped
from domain.resources import MILLI
from scheduler.core.cycle.pool_policies import all_at_once, policy_of
from scheduler.core.cycle.resizer import Widths, malleable
from scheduler.core.cycle.scan import Scan
from scheduler.core.policies.balanced import fair_share
from scheduler.core.policies.choices import Choices, grained
from scheduler.core.policies.group import Arrangement, Group
from scheduler.core.policies.malleable import Malleable
from scheduler.core.sharing.cohorts import CohortKey, charged, largest_within
from scheduler.core.sharing.shares import ShareBook, key_at
from scheduler.core.state.demand import Need, QueueKey
from scheduler.core.state.durations import LEAST_SECONDS, choices_of, residual_seconds
from scheduler.core.state.lifecycle import grant
from scheduler.core.state.live import LiveAction
from scheduler.core.state.model import Arranged, State
from scheduler.core.state.queues import Deferral, WaitQueue, WaitReason
from scheduler.core.state.timers import TimerKind

#: Waiting actions behind the candidates that an estimate looks at.
HORIZON = 2000


class Candidate(msgspec.Struct, frozen=True, eq=False, gc=False):
    """An action that the scan has admitted and a policy decides about."""

    live: LiveAction
    node: str | None
    needs: list[Need]
    #: The line it was head of.
    line: QueueKey


class Elastic:
    """The candidates of one cycle."""

    __slots__ = ("_admitted", "_evicted", "_going", "_groups", "_resized", "_shares", "_state")

    def __init__(self, state: State) -> None:
        self._state = state
        self._resized: Widths | None = None
        self._shares: ShareBook | None = None
        self._groups: dict[tuple[ResourceId, str], list[Candidate]] = {}
        #: Kind and pool → milli-units that all candidates of this scan were admitted with.
        self._admitted: Counter[tuple[str, str]] = Counter()
        #: Who goes, with how much of its key resource where a policy has said so.
        self._going: list[tuple[Candidate, int | None]] = []
        self._evicted: list[tuple[ResourceId, Candidate]] = []

    def begin(self) -> None:
        """Begin a scan, in which projects may take what is left of their shares now."""
        self._shares = None
        if self._resized is not None:
            self._resized.begin(self.shares)

    @property
    def shares(self) -> ShareBook:
        """What projects may take in this scan; most scans ask nobody."""
        if self._shares is None:
            self._shares = ShareBook(self._state)
        return self._shares

    @property
    def _widths(self) -> Widths:
        """Widths of what runs; most cycles look at none."""
        if self._resized is None:
            self._resized = Widths(self._state, self.shares)
        return self._resized

    def reserve(self, key: ResourceId | None, candidate: Candidate) -> None:
        """Hold what ``candidate`` was admitted with until `settle`; without a key it just goes."""
        live = candidate.live
        self._state.queues.active[candidate.line].remove(live)
        self.take(live, candidate.needs)
        holder = _reserved(live)
        for resource, amount in candidate.needs:
            self._reserve(live, holder, resource, amount)
        if key is None:
            self._going.append((candidate, None))
        else:
            self._groups.setdefault((key, live.pool), []).append(candidate)
            if self._state.fleet.resident:
                self._admitted[live.needs.key, live.pool] += live.needs.key_amount

    def _reserve(
        self,
        live: LiveAction,
        holder: str,
        resource: ResourceId,
        amount: int,
        beside: Sequence[int] = (),
    ) -> None:
        """Reserve ``amount`` for ``live``; the amounts ``beside`` must still fit afterwards."""
        state = self._state
        if resource in state.fleet.resident:
            state.residency.reserve(live.action, holder, resource, amount, beside)
        else:
            state.fleet.ledgers[resource].allocate(holder, amount)

    def take(self, live: LiveAction, needs: list[Need]) -> None:
        """``live`` has ``needs`` of its project's share for the rest of the scan."""
        if live.needs.project:
            self.shares.take(live, needs)

    def squeeze(self, scan: Scan, needs: list[Need]) -> bool:
        """Make room for ``needs`` among running malleable actions; say whether they fit then."""
        ledgers = self._state.fleet.ledgers
        if any(resource in scan.blocked for resource, _ in needs):
            return False
        short = [need for need in needs if scan.short(ledgers, *need)]
        return all(self._widths.runners(resource) for resource, _ in short) and all(
            self._widths.squeeze(resource, scan.claims.get(resource, ()), amount)
            for resource, amount in short
        )

    def short_of_share(self, queue: WaitQueue) -> tuple[CohortKey, int] | None:
        """Return of what the project of a line has too little left, and the amount it takes.

        Where the pool's policy resizes, malleable actions make room first: those of the project, and
        those that borrow what is its own.
        """
        key = queue.key
        short = self.shares.short(key)
        if short is None or not isinstance(policy_of(self._state, key.pool), Malleable):
            return short
        while short is not None and self.shares.first(short[0], key.needs.project) is None:
            if not self._widths.make_room(short[0], key.needs.project, short[1]):
                return short
            short = self.shares.short(key)
        return short

    def settle(self, scan: Scan, decisions: list[Decision]) -> bool:
        """Grant, defer, and say whether somebody who was evicted may try another node."""
        state = self._state
        if not (self._groups or self._going or state.resizing.changed):
            self._give_back()
            return False
        for (key, pool), members in sorted(self._groups.items(), key=itemgetter(0)):
            self._arrange(key, pool, members, scan.claims.get(key, []))
            state.resizing.changed.discard(key)
        self._groups.clear()
        self._admitted.clear()
        for key in sorted(state.resizing.changed):
            if self._widths.runners(key):
                free = available(state.fleet.ledgers[key], scan.claims.get(key, []))
                self._widths.share(key, free, ())
                self._widths.grow()
        state.resizing.changed.clear()
        self._give_back()
        if self._resized is not None:
            decisions += self._resized.losses()
        for member, amount in sorted(self._going, key=lambda one: one[0].live.order):
            self._release(member)
            grant(state, member.live, member.node, decisions, amount)
        self._going.clear()
        if self._resized is not None:
            decisions += self._resized.gains()
            self._resized.commit()
        elsewhere = False
        for key, candidate in self._evicted:
            self._release(candidate)
            elsewhere |= self._wait(key, candidate)
        self._evicted.clear()
        return elsewhere

    def _give_back(self) -> None:
        """Undo what was taken of shares: now it is granted, or not."""
        if self._shares is not None:
            self._shares.give_back()

    def _arrange(
        self, key: ResourceId, pool: str, members: list[Candidate], claims: list[int]
    ) -> None:
        """Let the policy of ``pool`` decide about one group."""
        state, ledger = self._state, self._state.fleet.ledgers[key]
        if not any(len(_counts(member)) > 1 for member in members):
            self._all_go(key, members, claims)
            return
        for member in members:
            ledger.release(_reserved(member.live))
        supple = [member for member in members if malleable(state, member.live)]
        if isinstance(ledger, Shaped):  # what is free cannot be shared out as a sum
            supple = []
        rigid = [member for member in members if member not in supple] if supple else members
        least = [_needed(member, key) for member in supple]
        held_back = 0
        if rigid:
            held_back = self._decide(key, pool, rigid, supple, [*claims, *least])
        if isinstance(policy_of(state, pool), Malleable):
            free = max(sum(least), available(ledger, claims) - held_back)
            wide = self._widths.share(key, free, [member.live for member in supple])
            for member, amount in zip(supple, wide, strict=True):
                self._go(key, member, amount)
            self._widths.grow()
            self._note(key, pool, supple, Arrangement(wide))

    def _all_go(self, key: ResourceId, members: list[Candidate], claims: list[int]) -> None:
        """Let those go of whom nobody has a choice (Algorithm 1, lines 5 and 6)."""
        self._going += ((member, None) for member in members)
        if self._state.resizing.enabled and self._widths.runners(key):
            self._widths.share(key, available(self._state.fleet.ledgers[key], claims), ())
            self._widths.grow()

    def _decide(
        self,
        key: ResourceId,
        pool: str,
        members: list[Candidate],
        others: list[Candidate],
        claims: list[int],
    ) -> int:
        """Ask the policy about ``members``; return what those that it evicts would have taken."""
        state, policy = self._state, policy_of(self._state, pool)
        lives = [member.live for member in members]
        kind = lives[0].needs.key
        hosted = key in state.fleet.resident
        resident = hosted and all(live.needs.resident for live in lives)
        capped = not (resident and all_at_once(state, kind, pool, self._admitted[kind, pool]))
        beside = [other.live for other in others]
        group = group_of(state, key, pool, lives, beside, claims, capped=capped)
        self._cut(key, members, group)
        assert policy.arrange is not None  # else nobody would have been reserved for it
        arrangement = policy.arrange(group)
        for at, (member, amount) in enumerate(zip(members, arrangement.units, strict=False), 1):
            left = (*arrangement.units[at:], *claims) if hosted else ()
            self._go(key, member, amount, left)
        evicted = members[len(arrangement.units) :]
        self._evicted += ((key, member) for member in evicted)
        if group.elastic:
            self._note(key, pool, members, arrangement, len(group.behind))
        if evicted:
            self._defer(key, evicted, group, arrangement)
        return sum(_needed(member, key) for member in evicted)

    def _cut(self, key: ResourceId, members: list[Candidate], group: Group) -> None:
        """Leave only counts that the projects' shares allow: what is left is split evenly."""
        cohort = key_at(self._state, members[0].live.pool, key)
        if cohort is None:
            return
        sharing = Counter(member.live.action.project for member in members)
        allowed = self.shares.allowances(cohort, dict.fromkeys(sharing, 0))
        choices = []
        for member, each in zip(members, group.candidates, strict=True):
            project = member.live.action.project
            most = charged(cohort.name, _needed(member, key)) + allowed[project] // sharing[project]
            choices.append(each.capped(largest_within(cohort.name, most)))
        group.candidates = choices

    def _go(
        self, key: ResourceId, member: Candidate, amount: int, others: Sequence[int] = ()
    ) -> None:
        """Let ``member`` go with ``amount``; of ``key`` there must be left what ``others`` take."""
        holder = _reserved(member.live)
        self._reserve(member.live, holder, key, amount, others)
        if member.live.needs.project:
            self.shares.widen(member.live, key, _needed(member, key), amount)
        self._going.append((member, amount))

    def _note(
        self,
        key: ResourceId,
        pool: str,
        members: list[Candidate],
        arrangement: Arrangement,
        behind: int = 0,
    ) -> None:
        if members:
            state, names = self._state, tuple(member.live.id for member in members)
            policy = policy_of(state, pool).name
            actions = len(names) + behind
            state.arranged.append(Arranged(state.now, key, policy, names, actions, arrangement))

    def _defer(
        self, key: ResourceId, evicted: list[Candidate], group: Group, arrangement: Arrangement
    ) -> None:
        state = self._state
        soonest = min((*group.running, *arrangement.ends))
        until = state.now + max(LEAST_SECONDS, soonest)
        first = min(member.live.order for member in evicted)
        before = state.queues.deferrals.get(
            key
        )  # of another pool, or an earlier scan of this cycle
        if before is not None:
            until, first = min(until, before.until), min(first, before.first)
        state.queues.deferrals[key] = Deferral(until, first)
        state.timers.set(until, TimerKind.DEFERRAL, key)

    def _wait(self, key: ResourceId, candidate: Candidate) -> bool:
        """Put an evicted action back; say whether it may run on another node."""
        live = candidate.live
        queue = self._state.queues.push(live, candidate.line)
        if queue.head() is live:
            queue.reason = WaitReason("deferred", key)
            queue.sticky_node = candidate.node
        return candidate.node is not None and queue.key.node is None

    def _release(self, candidate: Candidate) -> None:
        holder = _reserved(candidate.live)
        for resource, _ in candidate.needs:
            self._state.fleet.ledgers[resource].release(holder)


def _reserved(live: LiveAction) -> str:
    return f"reserved:{live.action.id}"


def _counts(member: Candidate) -> tuple[int, ...]:
    """Return the counts of its key resource that ``member`` may get."""
    return member.live.action.cost[member.live.needs.key]


def _needed(member: Candidate, resource: ResourceId) -> int:
    """Return what ``member`` was admitted with of ``resource``."""
    return next(amount for name, amount in member.needs if name == resource)


def group_of(
    state: State,
    key: ResourceId,
    pool: str,
    candidates: list[LiveAction],
    others: list[LiveAction],
    claims: list[int],
    *,
    capped: bool = True,
) -> Group:
    """Show a group as policies see it; nothing is predicted when there is nothing to choose.

    ``others`` are admitted as well, and go whatever the policy says. ``capped``: a policy that shares
    is told the fair share.
    """
    choices = [choices_of(state, live) for live in candidates]
    if key in state.fleet.resident:
        choices = state.residency.choices(key, candidates, choices)
    least = sum(each.smallest for each in choices)
    group = Group(key, operator_of(state.fleet.ledgers[key], claims, least), choices)
    policy = policy_of(state, pool)
    if group.elastic and (len(candidates) > 1 or policy.shares):
        waiting = behind(state, key, pool, {live.id for live in (*candidates, *others)})
        group.behind = [choices_of(state, live) for live in waiting]
        holders = list(state.holding(key))
        group.running = [grained(residual_seconds(state, live)) for live in holders]
        if policy.shares and capped:
            more = [choices_of(state, live) for live in others]
            waiting_choices = [*choices, *more, *group.behind]
            group.fair_share = _fair_share(state, key, holders, waiting_choices)
    return group


def operator_of(ledger: Ledger, claims: list[int], least: int) -> Operator:
    """Return how what is free beside ``claims`` may be handed out; ``least`` of it is certain."""
    if isinstance(ledger, Shaped):
        return ledger.operator(claims)
    return UnitsOperator(max(least, available(ledger, claims)))


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


def behind(state: State, key: ResourceId, pool: str, without: set[ActionId]) -> list[LiveAction]:
    """Return the waiting actions of the group ``key``, in order, up to `HORIZON`.

    Not those that wait for their project's share: nobody is held back for their sake.
    """
    kind, _, node = key.partition(":")
    cluster = key in state.config.resources
    nodes = [] if cluster else sorted(each.name for each in state.fleet.nodes_of(pool))
    lines = []
    for queue in state.queues.active.values():
        line = queue.key
        halted = line.held or queue.out_of_share
        if line.needs.key == (key if cluster else kind) and not halted:
            if cluster or line.node == node:
                lines.append((queue, 0, 1))
            elif line.node is None and line.pool == pool and node in nodes:
                lines.append((queue, nodes.index(node), len(nodes)))
    found = [queue.in_order(first, HORIZON, every) for queue, first, every in lines]
    if len(found) == 1:
        (first,) = found
    else:
        first = list(islice(merge(*found, key=_order), HORIZON))
    return [live for live in first if live.action.id not in without]


def _order(live: LiveAction) -> tuple[int, int]:
    return live.order


def _fair_share(
    state: State, key: ResourceId, holders: list[LiveAction], waiting: list[Choices]
) -> int:
    """Return the cap of `balanced`: units that inelastic actions leave, per elastic action."""
    elastic = sum(len(each) > 1 for each in waiting)
    units = state.fleet.ledgers[key].capacity
    units -= sum(each.smallest for each in waiting if len(each) == 1)
    for live in holders:
        if len(live.action.cost.get(live.needs.key, ())) > 1:
            elastic += 1
        else:
            units -= sum(each.amount for each in live.allocations if each.resource == key)
    return fair_share(units, elastic)
