"""GroupArranger: collects the candidates of one cycle and lets policies decide about them (paper §4.2, Algorithm 1).

Theory of operation. During the scan a candidate of a pool whose policy arranges is not granted yet:
its minimum is *reserved*, so that later candidates see what is left. After the scan, `arrange` takes
the groups one by one (key resource, pool; sorted by name), offers each the units that the reservations
of other groups and all claims leave, and lets the policy decide. It grants a prefix of each group; the
others are *evicted* and wait again, at their old place.

Rules
1. Until all groups are decided, evicted candidates keep their reservations on other resources.
2. A group with evicted candidates is *deferred*: later cycles only let them claim, until units of the
   resource are released, the group changes, or a timer rings at the predicted end of the first action
   that holds the resource. Otherwise the next cycle would admit an evicted action as a first candidate.
3. An evicted action that may run on another node is tried there in the same cycle.
4. Grants come last: before them go resizes that release units (`resizer`), after them those that use more.
5. A group in which no candidate has a choice is granted without a prediction.

An estimate considers at most `HORIZON` waiting actions behind the candidates: on longer queues it leaves
out the same number of actions on both sides of every comparison. Actions that may run on any node of a
pool are spread evenly over its nodes there.
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
from domain.ports import Ledger, ShapedLedger, provides
from domain.resources import MILLI
from scheduler.core.cycle.pool_policies import fits_at_once, policy_of
from scheduler.core.cycle.resizer import Resizer, UnitChange, gains, losses, malleable
from scheduler.core.cycle.scan import Scan
from scheduler.core.policies.choices import Choices, grained
from scheduler.core.policies.group import Arrangement, Group, fair_share
from scheduler.core.sharing.cohorts import CohortKey, charged, largest_within
from scheduler.core.sharing.shares import ShareBook, cohort_at
from scheduler.core.state.at_work import AtWork
from scheduler.core.state.demand import Need, QueueKey
from scheduler.core.state.durations import LEAST_SECONDS, choices_of, residual_seconds
from scheduler.core.state.lifecycle import grant
from scheduler.core.state.live import LiveAction, Order
from scheduler.core.state.model import Arranged, State
from scheduler.core.state.queues import WaitQueue, WaitReason
from scheduler.core.state.timers import TimerKind

#: Waiting actions behind the candidates that an estimate considers.
HORIZON = 2000


class Candidate(msgspec.Struct, frozen=True, eq=False, gc=False):
    """An action that the scan has admitted and a policy decides about."""

    live: LiveAction
    node: str | None
    needs: list[Need]
    #: The queue it was head of.
    queue: QueueKey


class GroupArranger:
    """Candidates of one cycle, their reservations, and what becomes of them."""

    __slots__ = (
        "_admitted",
        "_at_work",
        "_evicted",
        "_granted",
        "_groups",
        "_lazy_resizer",
        "_shares",
        "_state",
    )

    def __init__(self, state: State, at_work: AtWork) -> None:
        self._state = state
        self._at_work = at_work
        self._lazy_resizer: Resizer | None = None
        self._shares: ShareBook | None = None
        self._groups: dict[tuple[ResourceId, str], list[Candidate]] = {}
        #: Kind and pool → milli-units reserved by all candidates of this scan.
        self._admitted: dict[tuple[str, str], int] = {}
        #: Candidates to grant, with the amount of their key resource where a policy has chosen it.
        self._granted: list[tuple[Candidate, int | None]] = []
        self._evicted: list[tuple[ResourceId, Candidate]] = []

    def begin_scan(self) -> None:
        """Begin a scan, in which projects may take what is left of their shares now."""
        self._shares = None
        if self._lazy_resizer is not None:
            self._lazy_resizer.begin_scan(self.shares)

    @property
    def shares(self) -> ShareBook:
        """What projects may take in this scan; made when it is first needed."""
        if self._shares is None:
            self._shares = ShareBook(self._state)
        return self._shares

    @property
    def _resizer(self) -> Resizer:
        """Changes to running actions; made when it is first needed."""
        if self._lazy_resizer is None:
            self._lazy_resizer = Resizer(self._state, self.shares)
        return self._lazy_resizer

    def add(self, key: ResourceId | None, candidate: Candidate) -> None:
        """Reserve the needs of ``candidate`` until `arrange`; without a ``key`` it is granted as it is."""
        live = candidate.live
        self._state.queues.active[candidate.queue].remove(live)
        self.take_share(live, candidate.needs)
        holder = _reserved(live)
        for resource, amount in candidate.needs:
            self._reserve(live, holder, resource, amount)
        if key is None:
            self._granted.append((candidate, None))
        else:
            self._groups.setdefault((key, live.pool), []).append(candidate)
            if self._state.supply.resident:
                kind = live.needs.key, live.pool
                self._admitted[kind] = self._admitted.get(kind, 0) + live.needs.key_amount

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
        if resource in state.supply.resident:
            state.residency.reserve(live.action, holder, resource, amount, beside)
        else:
            state.supply.ledgers[resource].allocate(holder, amount)

    def take_share(self, live: LiveAction, needs: list[Need]) -> None:
        """Charge ``needs`` to the share of the project of ``live`` for the rest of the scan."""
        if live.needs.project:
            self.shares.take(live, needs)

    def make_room(self, scan: Scan, needs: list[Need]) -> bool:
        """Shrink running malleable actions until ``needs`` fit; return whether they do."""
        ledgers = self._state.supply.ledgers
        if any(resource in scan.blocked for resource, _ in needs):
            return False
        short = [need for need in needs if scan.short(ledgers, *need)]
        return all(self._resizer.runners(resource) for resource, _ in short) and all(
            self._resizer.make_room(resource, scan.claims.get(resource, ()), amount)
            for resource, amount in short
        )

    def short_of_share(self, queue: WaitQueue) -> tuple[CohortKey, int] | None:
        """Return the share of which the project has too little left, and the amount the queue needs.

        Where the pool's policy resizes, malleable actions shrink first: those of the project, and
        those that borrow from it.
        """
        key = queue.key
        short = self.shares.short(key)
        if short is None or not policy_of(self._state, key.pool).resizes:
            return short
        while short is not None and self.shares.first(short[0], key.needs.project) is None:
            if not self._resizer.make_room_in_share(short[0], key.needs.project, short[1]):
                return short
            short = self.shares.short(key)
        return short

    def arrange(self, scan: Scan, decisions: list[Decision]) -> bool:
        """Decide about all groups: grant, defer, resize.

        Return whether another scan may admit more: an evicted candidate elsewhere, or units that were taken.
        """
        state = self._state
        if not (self._groups or self._granted or state.resizing.changed):
            self._return_shares()
            return False
        for (key, pool), members in sorted(self._groups.items(), key=itemgetter(0)):
            self._at_work.actions = [member.live for member in members]
            self._arrange_group(key, pool, members, scan.claims.get(key, []))
            state.resizing.changed.discard(key)
        self._groups.clear()
        self._admitted.clear()
        self._resize_changed(scan)
        self._return_shares()
        resizer = self._lazy_resizer
        changes = [] if resizer is None else resizer.changes()
        decisions += losses(changes)
        if len(self._granted) > 1:
            self._granted.sort(key=lambda one: one[0].live.order)
        for member, amount in self._granted:
            self._at_work.actions = (member.live,)
            self._release(member)
            grant(state, member.live, member.node, decisions, amount)
        self._granted.clear()
        if resizer is not None:
            decisions += gains(changes)
            resizer.commit(changes)
        again = self._freed(changes)
        for key, candidate in self._evicted:
            self._release(candidate)
            again |= self._requeue(key, candidate)
        self._evicted.clear()
        return again

    def _freed(self, changes: list[UnitChange]) -> bool:
        """Return whether a pool with shares made running actions narrower: what that left free may admit more.

        A later scan of the cycle does not widen an action that one has resized, so scans end.
        """
        state, pools = self._state, self._state.config.pools
        if not (changes and state.sharing.cohorts and state.queues.active):
            return False
        return any(
            after.amount < before.amount and pools[live.pool].scan_after_shrinking
            for live, before, after in changes
            if live.pool in pools
        )

    def _resize_changed(self, scan: Scan) -> None:
        """Share out released units among running actions of resources that had no candidates."""
        state = self._state
        for key in sorted(state.resizing.changed):
            if runners := self._resizer.runners(key):
                self._at_work.actions = runners
                free = available(state.supply.ledgers[key], scan.claims.get(key, []))
                self._resizer.share_out(key, free, ())
                self._resizer.grow()
        state.resizing.changed.clear()

    def _return_shares(self) -> None:
        """Undo the charges of this scan: grants charge shares themselves."""
        if self._shares is not None:
            self._shares.give_back()

    def _arrange_group(
        self, key: ResourceId, pool: str, members: list[Candidate], claims: list[int]
    ) -> None:
        """Let the policy of ``pool`` decide about one group."""
        state, ledger = self._state, self._state.supply.ledgers[key]
        if max([len(_counts(member)) for member in members]) == 1:
            self._grant_all(key, members, claims)
            return
        for member in members:
            ledger.release(_reserved(member.live))
        resizable = [member for member in members if malleable(state, member.live)]
        if provides(ledger, ShapedLedger):  # its free units do not add up to a sum
            resizable = []
        rigid = [m for m in members if m not in resizable] if resizable else members
        least = [_needed(member, key) for member in resizable]
        held_back = 0
        if rigid:
            held_back = self._decide(key, pool, rigid, resizable, [*claims, *least])
        if policy_of(state, pool).resizes:
            free = max(sum(least), available(ledger, claims) - held_back)
            wide = self._resizer.share_out(key, free, [member.live for member in resizable])
            for member, amount in zip(resizable, wide, strict=True):
                self._choose(key, member, amount)
            self._resizer.grow()
            self._record(key, pool, resizable, Arrangement(wide))

    def _grant_all(self, key: ResourceId, members: list[Candidate], claims: list[int]) -> None:
        """Grant a group in which each candidate has one feasible unit count (Algorithm 1, lines 5, 6)."""
        self._granted += ((member, None) for member in members)
        if self._state.resizing.pools and self._resizer.runners(key):
            free = available(self._state.supply.ledgers[key], claims)
            self._resizer.share_out(key, free, ())
            self._resizer.grow()

    def _decide(
        self,
        key: ResourceId,
        pool: str,
        members: list[Candidate],
        others: list[Candidate],
        claims: list[int],
    ) -> int:
        """Let the policy decide about ``members``; return the milli-units that it denies to evicted ones.

        ``others`` of the group are granted in any case.
        """
        state, policy = self._state, policy_of(self._state, pool)
        lives = [member.live for member in members]
        kind = lives[0].needs.key
        hosted = key in state.supply.resident
        resident = hosted and all(live.needs.resident for live in lives)
        capped = not (
            resident and fits_at_once(state, kind, pool, self._admitted.get((kind, pool), 0))
        )
        beside = [other.live for other in others]
        group = group_of(state, key, pool, lives, beside, claims, capped=capped)
        self._cap_by_share(key, members, group)
        arrangement = policy.arrange(group)
        for at, (member, amount) in enumerate(zip(members, arrangement.units, strict=False), 1):
            left = (*arrangement.units[at:], *claims) if hosted else ()
            self._choose(key, member, amount, left)
        evicted = members[len(arrangement.units) :]
        self._evicted += ((key, member) for member in evicted)
        behind = len(group.behind)
        self._record(key, pool, members, arrangement, behind, no_choice=not group.elastic)
        if evicted:
            self._defer(key, evicted, group, arrangement)
        return sum(_needed(member, key) for member in evicted)

    def _cap_by_share(self, key: ResourceId, members: list[Candidate], group: Group) -> None:
        """Remove counts beyond the projects' shares; a project's actions split its share evenly."""
        cohort = cohort_at(self._state, members[0].live.pool, key)
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

    def _choose(
        self, key: ResourceId, member: Candidate, amount: int, others: Sequence[int] = ()
    ) -> None:
        """Grant ``amount`` of ``key`` to ``member`` in the end; the amounts ``others`` must still fit."""
        holder = _reserved(member.live)
        self._reserve(member.live, holder, key, amount, others)
        if member.live.needs.project:
            self.shares.widen(member.live, key, _needed(member, key), amount)
        self._granted.append((member, amount))

    def _record(
        self,
        key: ResourceId,
        pool: str,
        members: list[Candidate],
        arrangement: Arrangement,
        behind: int = 0,
        *,
        no_choice: bool = False,
    ) -> None:
        if members:
            state, names = self._state, tuple(member.live.id for member in members)
            policy = policy_of(state, pool).name
            actions = len(names) + behind
            state.arranged.append(
                Arranged(state.now, key, policy, names, actions, arrangement, no_choice)
            )

    def _defer(
        self, key: ResourceId, evicted: list[Candidate], group: Group, arrangement: Arrangement
    ) -> None:
        state = self._state
        soonest = min((*group.running, *arrangement.ends))
        until = state.now + max(LEAST_SECONDS, soonest)
        first = min(member.live.order for member in evicted)
        until = state.queues.defer(key, until, first)
        state.timers.set(until, TimerKind.DEFERRAL, key)

    def _requeue(self, key: ResourceId, candidate: Candidate) -> bool:
        """Put an evicted action back into its queue; return whether it may run on another node."""
        live = candidate.live
        queue = self._state.queues.push(live, candidate.queue)
        if queue.head() is live:
            queue.reason = WaitReason("deferred", key)
            queue.sticky_node = candidate.node
        return candidate.node is not None and queue.key.node is None

    def _release(self, candidate: Candidate) -> None:
        holder = _reserved(candidate.live)
        for resource, _ in candidate.needs:
            self._state.supply.ledgers[resource].release(holder)


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
    """Return a group as policies see it; predictions are left out when no candidate has a choice.

    ``others`` are granted whatever the policy decides. ``capped``: the fair share is computed for a
    policy that uses it.
    """
    choices = [choices_of(state, live) for live in candidates]
    if key in state.supply.resident:
        choices = state.residency.choices(key, candidates, choices)
    least = sum(each.smallest for each in choices)
    group = Group(key, operator_of(state.supply.ledgers[key], claims, least), choices)
    policy = policy_of(state, pool)
    if group.elastic and (len(candidates) > 1 or policy.caps_grants):
        waiting = behind(state, key, pool, {live.id for live in (*candidates, *others)})
        group.behind = [choices_of(state, live) for live in waiting]
        holders = list(state.holding(key))
        group.running = [grained(residual_seconds(state, live)) for live in holders]
        if policy.caps_grants and capped:
            more = [choices_of(state, live) for live in others]
            waiting_choices = [*choices, *more, *group.behind]
            group.fair_share = _fair_share(state, key, holders, waiting_choices)
    return group


def operator_of(ledger: Ledger, claims: list[int], least: int) -> Operator:
    """Return how the units that are free beside ``claims`` can be allocated; ``least`` of them are certain."""
    if provides(ledger, ShapedLedger):
        return ledger.operator(claims)
    return UnitsOperator(max(least, available(ledger, claims)))


def available(ledger: Ledger, claims: list[int]) -> int:
    """Return how many milli-units can be allocated beside ``claims``."""
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

    Queues that are paused or wait for their project's share are left out: they cannot use free units.
    """
    kind, _, node = key.partition(":")
    cluster = key in state.config.resources
    nodes = [] if cluster else sorted(each.name for each in state.supply.nodes_of(pool))
    queues = []
    for queue in state.queues.active.values():
        of = queue.key
        halted = of.held or queue.out_of_share
        if of.needs.key == (key if cluster else kind) and not halted:
            if cluster or of.node == node:
                queues.append((queue, 0, 1))
            elif of.node is None and of.pool == pool and node in nodes:
                queues.append((queue, nodes.index(node), len(nodes)))
    found = [queue.in_order(first, HORIZON, every) for queue, first, every in queues]
    if len(found) == 1:
        (first,) = found
    else:
        first = list(islice(merge(*found, key=_order), HORIZON))
    return [live for live in first if live.action.id not in without]


def _order(live: LiveAction) -> Order:
    return live.order


def _fair_share(
    state: State, key: ResourceId, holders: list[LiveAction], waiting: list[Choices]
) -> int:
    """Return the cap of policies that share: milli-units left by inelastic actions, per elastic action."""
    elastic = sum(len(each) > 1 for each in waiting)
    units = state.supply.ledgers[key].capacity
    units -= sum(each.smallest for each in waiting if len(each) == 1)
    for live in holders:
        if len(live.action.cost.get(live.needs.key, ())) > 1:
            elastic += 1
        else:
            units -= sum(each.amount for each in live.allocations if each.resource == key)
    return fair_share(units, elastic)
