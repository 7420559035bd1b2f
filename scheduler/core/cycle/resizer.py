"""Resizer: shrinks running malleable actions for waiting ones, and grows them into free units.

One `Resizer` lives for one cycle. It changes ledgers at once, so that the scan and the policies see
the result, and reports the `changes` at the end: `losses` go out before the grants that use the
units, `gains` after them. A node receives both in this order.

Accounting. Work done is the integral of E(m) · m over the time an action ran with m units, so the
end of a resized action is predicted from the rest of T_ori; the integral of m itself is its cost
(`Finish.key_milli_seconds`).
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator, Sequence
from operator import attrgetter, neg
from typing import NamedTuple, cast

from domain.allocation import Allocation
from domain.decisions import Resize
from domain.errors import CapacityError
from domain.ids import ActionId, ResourceId, node_resource
from domain.ports import ResizableLedger
from domain.resources import MILLI
from scheduler.core.cycle.pool_policies import policy_of
from scheduler.core.policies.group import ResizeCandidate
from scheduler.core.sharing.cohorts import CohortKey
from scheduler.core.sharing.shares import ShareBook, charge, cohort_at
from scheduler.core.state.durations import account, left_seconds, speedup_of
from scheduler.core.state.live import READY, LiveAction
from scheduler.core.state.model import State
from scheduler.core.state.timers import TimerKind

#: Time between two changes of one action for which no other action waits.
RESIZE_SECONDS = 0.25
#: Changes of one action that `Finish` lists; the journal has all.
WIDTHS_KEPT = 512

_ORDER = attrgetter("order")


def malleable(state: State, live: LiveAction) -> bool:
    """Return whether ``live`` may be resized while it runs, in a pool whose policy does that."""
    return live.resizable and live.pool in state.resizing.pools


class Resizer:
    """Changes of one cycle to the units of running actions."""

    def __init__(self, state: State, shares: ShareBook) -> None:
        self._state = state
        self._before: dict[ActionId, Allocation] = {}
        self._runners: dict[ResourceId, list[LiveAction]] = {}
        self._growing: list[tuple[LiveAction, int]] = []
        self.begin_scan(shares)

    def begin_scan(self, shares: ShareBook) -> None:
        """Begin a scan, in which projects may take what ``shares`` allows."""
        self._shares = shares
        self._givers: dict[CohortKey, dict[str, list[LiveAction]]] = {}

    def runners(self, resource: ResourceId) -> list[LiveAction]:
        """Return the running actions that may be resized on ``resource``, in order."""
        found = self._runners.get(resource)
        if found is None:
            found = self._runners[resource] = self._find_runners(resource)
        return found

    def _find_runners(self, resource: ResourceId) -> list[LiveAction]:
        state = self._state
        there = state.supply.resizable.get(resource)
        # isinstance with the protocol would take longer than resizing.
        if not there or not hasattr(state.supply.ledgers.get(resource), "resize"):
            return []
        node = state.supply.nodes.get(resource.partition(":")[2])
        if node is None or node.state is not READY:
            return []
        pools = state.resizing.pools
        found = [live for live in there.values() if live.aborting is None and live.pool in pools]
        found.sort(key=_ORDER)
        return found

    def make_room(self, resource: ResourceId, claims: Sequence[int], amount: int) -> bool:
        """Shrink the widest actions until ``amount`` fits beside ``claims``; else change nothing."""
        ledger, runners = self._state.supply.ledgers.get(resource), self.runners(resource)
        if ledger is None or not runners:
            return False
        self._givers.clear()  # an action that shrinks can give less from now on
        widths = [_held(live).amount for live in runners]
        least = [live.action.cost[live.needs.key][0] for live in runners]
        wanted = (*claims, amount)
        if sum(wanted) > ledger.free + sum(widths) - sum(least):
            return False
        undo: list[tuple[LiveAction, Allocation]] = []
        while not ledger.fits(wanted):
            at = _widest(runners, widths, least)
            if at is None:
                break
            undo.append((runners[at], _held(runners[at])))
            counts = _counts(runners[at])
            widths[at] = counts[bisect_left(counts, widths[at]) - 1]
            self._set(runners[at], widths[at])
        if ledger.fits(wanted):
            return True
        for live, held in reversed(undo):
            self._set(live, held.amount, held.units)
        return False

    def share_out(
        self, resource: ResourceId, free: int, arriving: Sequence[LiveAction]
    ) -> list[int]:
        """Share out ``resource`` among malleable actions; return the milli-units of ``arriving``.

        ``free`` milli-units may be used beside those that running actions hold; `grow` follows.
        """
        runners = self._settled(resource)
        several = [*runners, *arriving]
        self._growing = []
        if not several:
            return []
        held = [_held(live).amount for live in runners]
        total = free + sum(held)
        purses = self._purses(resource, runners, arriving)
        wide = self._resize(several, total, purses)
        if (
            purses is not None and total - sum(wide) >= MILLI
        ):  # perhaps more than all of them can use
            self._state.sharing.limited.add(resource)
        for live, has, width in zip(runners, held, wide, strict=False):
            if width < has:
                self._set(live, width)
            elif width > has:
                self._growing.append((live, width))
        return wide[len(runners) :]

    def _settled(self, resource: ResourceId) -> list[LiveAction]:
        """Return the runners that were not resized a moment ago; a timer lets a cycle examine the others."""
        state, settled, due = self._state, [], None
        for live in self.runners(resource):
            if live.resized_at is None or live.resized_at + RESIZE_SECONDS <= state.now:
                settled.append(live)
            else:
                due = live.resized_at + RESIZE_SECONDS
        # One timer is enough, that of the last one: a timer before it would be stale.
        if due is not None and state.resizing.due.get(resource) != due:
            state.timers.set(due, TimerKind.RESIZE, resource)
            state.resizing.due[resource] = due
        return settled

    def _purses(
        self, resource: ResourceId, runners: list[LiveAction], arriving: Sequence[LiveAction]
    ) -> dict[str, int] | None:
        """Return what each project's actions may hold beyond their smallest counts; None without shares.

        There are some ``runners`` or ``arriving`` ones.
        """
        if not self._state.sharing.cohorts:
            return None
        several = [*runners, *arriving]
        key = cohort_at(self._state, several[0].pool, resource)
        if key is None:
            return None
        spare = {live.action.project: 0 for live in several}
        for live in runners:
            spare[live.action.project] += _held(live).amount - _counts(live)[0]
        return self._shares.allowances(key, spare)

    def make_room_in_share(self, key: CohortKey, project: str, amount: int) -> bool:
        """Shrink the widest action that uses the share of ``project`` by one count, if there is one."""
        cohort, givers = self._state.sharing.cohorts[key], self._givers_of(key)
        owns = cohort.entitled(project, amount) >= 0
        may = [
            live
            for other, theirs in givers.items()
            if other == project or (owns and cohort.entitled(other) < 0)
            for live in theirs
        ]
        if not may:
            return False
        widest = max(may, key=lambda live: (_held(live).amount, live.order))
        held, counts = _held(widest), _counts(widest)
        self._set(widest, max(count for count in counts if count < held.amount))
        if _held(widest).amount == counts[0]:
            givers[widest.action.project].remove(widest)
        self._state.resizing.changed.add(held.resource)
        return True

    def _givers_of(self, key: CohortKey) -> dict[str, list[LiveAction]]:
        """Return the actions that can shrink within a share, by project; cached for one scan."""
        found = self._givers.get(key)
        if found is None:
            found = self._givers[key] = defaultdict(list)
            for node in self._state.supply.nodes_of(key.pool) if key.pool else ():
                for live in self.runners(node_resource(key.name, node.name)):
                    if _held(live).amount > _counts(live)[0]:
                        found[live.action.project].append(live)
        return found

    def grow(self) -> None:
        """Grow the actions that the last `share_out` made wider, after new ones have reserved their units."""
        for live, width in self._growing:
            before = self._before.get(live.id)
            try:
                self._set(live, width, before.units if before else ())
            except CapacityError:  # fragments of shared cores: it keeps its units
                continue
        self._growing = []

    def _resize(
        self, lives: Sequence[LiveAction], total: int, allowances: dict[str, int] | None
    ) -> list[int]:
        """Return the milli-units of each action by the pool's policy."""
        state = self._state
        candidates = [
            ResizeCandidate(speedup_of(state, live), left_seconds(state, live), live.action.project)
            for live in lives
        ]
        return policy_of(state, lives[0].pool).resize(candidates, total, allowances)

    def _set(self, live: LiveAction, amount: int, prefer: Sequence[int] = ()) -> None:
        held = _held(live)
        # Only actions on such ledgers are runners.
        ledger = cast("ResizableLedger", self._state.supply.ledgers[held.resource])
        allocation = ledger.resize(live.holder, amount, prefer)
        if live.id not in self._before:
            self._before[live.id] = held
            account(self._state, live)
        live.allocations = _with(live, allocation)
        if self._state.sharing.cohorts:
            charge(self._state, live, (held,), -1)
            charge(self._state, live, (allocation,))

    def changes(self) -> list[UnitChange]:
        """Return the actions that hold other units than at the beginning of the cycle."""
        changed = []
        for action_id, before in self._before.items():
            live = self._state.actions[action_id]
            after = _held(live)
            if after != before:
                changed.append(UnitChange(live, before, after))
        return changed

    def commit(self, changes: Sequence[UnitChange]) -> None:
        """Record when and to what the changed actions were resized."""
        now = self._state.now
        for live, before, after in changes:
            live.resized_at = now
            live.resizes += 1
            had = live.widths or ((0.0, before.amount),)
            if len(had) < WIDTHS_KEPT:
                granted_at = live.granted_at if live.granted_at is not None else now
                live.widths = (*had, (now - granted_at, after.amount))
        self._before.clear()
        self._runners.clear()


class UnitChange(NamedTuple):
    """A running action whose units one cycle has changed."""

    live: LiveAction
    before: Allocation
    after: Allocation


def losses(changes: Sequence[UnitChange]) -> Iterator[Resize]:
    """Yield resizes of actions that lose units: nodes must apply them before the units are granted."""
    for live, before, after in changes:
        kept = set(before.units).intersection(after.units)
        if len(kept) < len(before.units):
            units = tuple(sorted(kept))
            yield _resize(live, Allocation(after.resource, len(units) * MILLI, units))


def gains(changes: Sequence[UnitChange]) -> Iterator[Resize]:
    """Yield resizes of actions that gain units."""
    for live, before, after in changes:
        if not set(before.units).issuperset(after.units):
            yield _resize(live, after)


def _resize(live: LiveAction, allocation: Allocation) -> Resize:
    everything = _with(live, allocation)
    return Resize(live.id, live.node or "", live.attempt, allocation, everything)


def _with(live: LiveAction, allocation: Allocation) -> tuple[Allocation, ...]:
    """Return what ``live`` holds, with another ``allocation`` of that resource, which comes last."""
    if len(live.allocations) == 1:
        return (allocation,)
    others = [each for each in live.allocations if each.resource != allocation.resource]
    return (*others, allocation)


def _held(live: LiveAction) -> Allocation:
    """Return the allocation of the key resource of ``live``, which runs."""
    if len(live.allocations) == 1:
        return live.allocations[0]
    key = live.key_resource
    return next(each for each in live.allocations if each.resource == key)


def _widest(runners: Sequence[LiveAction], widths: list[int], least: list[int]) -> int | None:
    """Return the index of the widest runner that can shrink, of equal ones the last; None without one."""
    able = [at for at, width in enumerate(widths) if width > least[at]]
    if not able:
        return None
    most = max([widths[at] for at in able])
    widest = [at for at in able if widths[at] == most]
    if len(widest) == 1:
        return widest[0]
    return min(widest, key=lambda at: tuple(map(neg, runners[at].order)))


def _counts(live: LiveAction) -> tuple[int, ...]:
    return live.action.cost[live.needs.key]
