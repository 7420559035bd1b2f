"""What projects may take of a resource that they share: Kueue's formula, with one cohort.

Every project has a *nominal* share. What it does not use others may borrow, up to what it lends;
what it lacks it may borrow, up to its own limit. Capacity that is nobody's nominal share belongs to
the cohort. Without a limit, everything may be lent or borrowed; a project without a share has a
nominal one of 0. (Kueue, pkg/cache/scheduler/resource_node.go.)

Rules
1. An action whose project has too little left waits for that alone: it blocks and claims nothing,
   but later ones of its project do not overtake it on that resource.
2. What is lent comes back as actions end; nobody's action is ended for it. After a share was cut,
   what is left of it is negative, and shown so.
3. What runs on for nobody (orphans of actions that are over) counts for no project.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping

from domain.action import Action
from domain.ids import ActionId, ResourceId
from domain.inventory import Config
from domain.limits import Share
from scheduler.core.needs import Needs
from scheduler.core.queues import Need
from scheduler.core.state import State

_NONE = Share(0)


def available(
    shares: Mapping[str, Share], capacity: int, used: Mapping[str, int], project: str
) -> int:
    """Return how much ``project`` may still take, in milli-units; negative after a cut."""
    unclaimed = max(0, capacity - sum(share.nominal for share in shares.values()))
    parent = unclaimed + sum(share.nominal - share.kept for share in shares.values())
    for name in {*shares, *used}:
        parent -= max(0, used.get(name, 0) - shares.get(name, _NONE).kept)
    share, mine = shares.get(project, _NONE), used.get(project, 0)
    own = max(0, share.kept - mine)
    if share.borrow is None:
        return own + parent
    room = (share.nominal - share.kept) - max(0, mine - share.kept) + share.borrow
    return own + min(parent, room)


def ceiling(config: Config, resource: str, project: str) -> int | None:
    """Return the most that one action of ``project`` can ever have; None: it is not shared."""
    shares = config.shares.get(resource)
    if not shares:
        return None
    return available(shares, config.resources.get(resource, 0), {}, project)


def with_project(needs: Needs, action: Action, config: Config) -> Needs:
    """Let actions queue by project where they take of what projects share."""
    if any(name in config.shares for name, _ in needs.in_cluster):
        return needs._replace(project=action.project)
    return needs


class ShareBook:
    """What projects have and may take, during one scan."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._used: dict[ResourceId, dict[str, int]] = {}
        #: (project, resource) → who waits for the share and is not overtaken.
        self._first: dict[tuple[str, ResourceId], ActionId] = {}

    def left(self, project: str, resource: ResourceId) -> int | None:
        """Return how much ``project`` may still take; None when the resource is not shared."""
        shares = self._state.config.shares.get(resource)
        ledger = self._state.ledgers.get(resource)
        if not shares or ledger is None:
            return None
        return available(shares, ledger.capacity, self._usage(resource), project)

    def short(
        self, project: str, needs: Iterable[Need], action_id: ActionId
    ) -> tuple[ResourceId, ActionId | None] | None:
        """Return the resource of which the project has too little left for ``needs``.

        With it comes the action of the same project that is first to wait for it, if another one.
        """
        for resource, amount in needs:
            first = self._first.get((project, resource))
            if first is not None:
                return resource, first
            left = self.left(project, resource)
            if left is not None and amount > left:
                self._first[project, resource] = action_id
                return resource, None
        return None

    def took(self, project: str, needs: Iterable[Need]) -> None:
        """``project`` gets ``needs`` in this scan."""
        for resource, amount in needs:
            if resource in self._state.config.shares:
                self._usage(resource)[project] += amount

    def _usage(self, resource: ResourceId) -> dict[str, int]:
        used = self._used.get(resource)
        if used is None:
            used = self._used[resource] = usage(self._state, resource)
        return used


def usage(state: State, resource: ResourceId) -> dict[str, int]:
    """Return what each project holds of ``resource``, in milli-units."""
    used: dict[str, int] = defaultdict(int)
    for holder, allocation in state.ledgers[resource].holders().items():
        live = state.actions.get(ActionId(holder.rpartition("#")[0]))
        if live is not None:
            used[live.action.project] += allocation.amount
    return used
