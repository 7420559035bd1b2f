"""Shares of projects during admission: what a project may still take, and which actions wait for it.

Rules (`cohorts` has the formula)
1. An action whose project has too little left waits for that alone: it blocks and claims nothing,
   but later actions of its project do not overtake it on that resource.
2. Lent units return as actions end; no action is ended for them. To ensure that they return, actions
   that would borrow are served after all actions within nominal shares, and may not borrow units for
   which one of these waits (Kueue: requests under nominal quota first, and quota is reserved for
   those that others' borrowing delays). Malleable actions return borrowed units at once.
3. An action that waits for other resources claims its amount of the share, as it claims units.
4. A policy that chooses among counts sees those that the shares allow: first each project's own, then
   equal parts of what may be borrowed.
5. After a share was reduced, its rest may be negative, and is shown so.
6. Orphans of finished actions count for no project; nodes that take no actions have no capacity to
   share.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping

from domain.action import Action
from domain.allocation import Allocation
from domain.ids import ActionId, ResourceId
from domain.inventory import Config
from domain.resources import MILLI
from scheduler.core.sharing.cohorts import Cohort, CohortKey, charged
from scheduler.core.state.demand import Need, Needs, QueueKey
from scheduler.core.state.live import LiveAction
from scheduler.core.state.model import State


def load_shares(state: State) -> None:
    """Read the shares of the configuration in force, and charge what live actions hold."""
    state.sharing.cohorts = _declared(state.config)
    for live in state.actions.values() if state.sharing.cohorts else ():
        charge(state, live, live.allocations)


def charge(
    state: State, live: LiveAction, allocations: Iterable[Allocation], sign: int = 1
) -> None:
    """Charge ``allocations`` of ``live`` to its project; ``sign`` -1 returns them.

    What yields takes nothing of the capacity, so it is no part of a share.
    """
    for allocation in allocations:
        if allocation.yields:
            continue
        key = cohort_at(state, live.pool, allocation.resource)
        if key is not None:
            state.sharing.cohorts[key].add(live.action.project, sign * allocation.amount)


def _declared(config: Config) -> dict[CohortKey, Cohort]:
    cohorts = {
        CohortKey("", name): Cohort(parts)
        for name, parts in config.shares.items()
        if parts and name in config.resources
    }
    for pool in config.pools.values():
        for kind, parts in pool.shares.items():
            if parts:
                cohorts[CohortKey(pool.name, kind)] = Cohort(parts)
    return cohorts


def capacity(state: State, key: CohortKey) -> int:
    """Return the capacity to share now."""
    if not key.pool:
        ledger = state.supply.ledgers.get(ResourceId(key.name))
        return 0 if ledger is None else ledger.capacity
    found = 0
    for node in state.supply.nodes_of(key.pool):
        ledger = state.supply.node_ledger(key.name, node.name)
        if ledger is not None and state.supply.usable(node):
            found += ledger.capacity
    return found


def ceiling(state: State, pool: str, name: str, project: str) -> int | None:
    """Return the most that one action of ``project`` can ever get of ``name``; None: no limit.

    Silent nodes count, since they may return. Without any node there is no limit yet.
    """
    there = state.config.resources.get(name)
    key = CohortKey(pool if there is None else "", name)
    if key not in state.sharing.cohorts:
        return None
    if there is None:
        nodes = [node.inventory.resources for node in state.supply.nodes_of(pool)]
        if not nodes:
            return None
        there = sum(each[name].capacity for each in nodes if name in each)
    return Cohort(state.sharing.cohorts[key].shares).left(project, there)


def with_project(state: State, needs: Needs, action: Action, pool: str) -> Needs:
    """Return ``needs`` with the project, so that actions queue by project, if they charge a share."""
    if any(_cohorts_of(state, pool, needs)):
        return needs._replace(project=action.project)
    return needs


def _cohorts_of(state: State, pool: str, needs: Needs) -> Iterable[tuple[CohortKey, int]]:
    """Yield the cohorts that ``needs`` charge, and the amounts."""
    for place, wanted in (("", needs.in_cluster), (pool, needs.on_node)):
        for name, amount in wanted:
            key = CohortKey(place, name)
            if key in state.sharing.cohorts:
                yield key, charged(name, amount)


def takes_of_share(state: State, queue: QueueKey, key: CohortKey) -> bool:
    """Return whether actions of ``queue`` charge the cohort ``key``."""
    return any(key == one for one, _ in _cohorts_of(state, queue.pool, queue.needs))


def cohort_key(state: State, pool: str, name: str) -> CohortKey:
    """Return the cohort key of the resource ``name`` of a cost."""
    key = CohortKey("", name)
    return key if key in state.sharing.cohorts else CohortKey(pool, name)


class ShareBook:
    """What projects may take during one scan, with charges that are undone at its end."""

    __slots__ = ("_borrowing", "_capacity", "_first", "_promised", "_state", "_taken")

    def __init__(self, state: State) -> None:
        self._state = state
        self._capacity: dict[CohortKey, int] = {}
        #: (project, cohort) → the action that waits for the share and is not overtaken.
        self._first: dict[tuple[str, CohortKey], ActionId] = {}
        #: Projects that borrow: all their later actions are served late.
        self._borrowing: set[tuple[str, CohortKey]] = set()
        #: Amounts that are not lent, since their owners wait for them.
        self._promised: dict[CohortKey, int] = defaultdict(int)
        #: Charges of candidates.
        self._taken: list[tuple[Cohort, str, int]] = []

    def borrows(self, queue: QueueKey) -> bool:
        """Return whether the head of ``queue`` would borrow; then its project borrows from now on."""
        project = queue.needs.project
        wanted = list(_cohorts_of(self._state, queue.pool, queue.needs)) if project else []
        found = any(
            (project, key) in self._borrowing
            or self._state.sharing.cohorts[key].entitled(project, amount) < 0
            for key, amount in wanted
        )
        if found:
            self._borrowing.update((project, key) for key, _ in wanted)
        return found

    def left(self, key: CohortKey, project: str, amount: int = 0) -> int:
        """Return how much ``project`` may still take if it takes ``amount`` at once."""
        cohort = self._state.sharing.cohorts[key]
        borrows = cohort.entitled(project, amount) < 0
        return cohort.left(project, self._there(key), self._promised[key] if borrows else 0)

    def affords(self, queue: QueueKey, resource: ResourceId, amount: int) -> bool:
        """Return whether the project of ``queue`` may take ``amount`` of ``resource``."""
        key, project = cohort_at(self._state, queue.pool, resource), queue.needs.project
        return key is None or not project or amount <= self.left(key, project, amount)

    def short(self, queue: QueueKey) -> tuple[CohortKey, int] | None:
        """Return the cohort of which the project of ``queue`` has too little left, and the amount needed."""
        project = queue.needs.project
        for key, amount in _cohorts_of(self._state, queue.pool, queue.needs):
            if (project, key) in self._first or amount > self.left(key, project, amount):
                return key, amount
        return None

    def first(self, key: CohortKey, project: str) -> ActionId | None:
        """Return the action of ``project`` that waits for its share and is not overtaken."""
        return self._first.get((project, key))

    def wait(self, key: CohortKey, live: LiveAction, amount: int) -> None:
        """Let ``live`` wait for its share; its project's own part is not lent meanwhile."""
        project = live.action.project
        self._first[project, key] = live.id
        cohort = self._state.sharing.cohorts[key]
        if cohort.entitled(project, amount) >= 0:
            kept = max(0, cohort.share_of(project).kept - cohort.used.get(project, 0))
            self._promised[key] += max(0, amount - kept)

    def take(self, live: LiveAction, needs: Iterable[Need]) -> None:
        """Charge ``needs`` of ``live`` for the rest of the scan."""
        if not live.needs.project:
            return
        for resource, amount in needs:
            key = cohort_at(self._state, live.pool, resource)
            if key is not None:
                self._take(key, live.action.project, charged(key.name, amount))

    def widen(self, live: LiveAction, resource: ResourceId, before: int, after: int) -> None:
        """Charge ``after`` of ``resource`` to ``live`` instead of ``before``."""
        key = cohort_at(self._state, live.pool, resource) if live.needs.project else None
        if key is not None:
            more = charged(key.name, after) - charged(key.name, before)
            self._take(key, live.action.project, more)

    def _take(self, key: CohortKey, project: str, amount: int) -> None:
        cohort = self._state.sharing.cohorts[key]
        cohort.add(project, amount)
        self._taken.append((cohort, project, amount))

    def give_back(self, since: int = 0) -> None:
        """Undo all charges, or those from the ``since``-th on."""
        while len(self._taken) > since:
            cohort, project, amount = self._taken.pop()
            cohort.add(project, -amount)

    def allowances(self, key: CohortKey, spare: Mapping[str, int]) -> dict[str, int]:
        """Return how much projects may take beyond their present use, all at the same time.

        ``spare`` is how much each would return for that. Each project gets the rest of its nominal
        share first, then equal parts of what may be borrowed.
        """
        cohort, since = self._state.sharing.cohorts[key], len(self._taken)
        allowed: Counter[str] = Counter()
        for project, amount in spare.items():
            self._take(key, project, -amount)
        for borrowing in (False, True):
            for number, project in enumerate(spare):
                most = max(0, self.left(key, project, MILLI if borrowing else 0))
                own = max(0, cohort.entitled(project))
                more = most // (len(spare) - number) if borrowing else min(most, own)
                allowed[project] += more
                self._take(key, project, more)
        self.give_back(since)
        return dict(allowed)

    def _there(self, key: CohortKey) -> int:
        found = self._capacity.get(key)
        if found is None:
            found = self._capacity[key] = capacity(self._state, key)
        return found


def cohort_at(state: State, pool: str, resource: ResourceId) -> CohortKey | None:
    """Return the cohort that grants of ``resource`` to actions of ``pool`` charge, if there is one."""
    key = CohortKey("", resource)
    if key in state.sharing.cohorts:
        return key
    key = CohortKey(pool, resource.partition(":")[0])
    return key if key in state.sharing.cohorts else None
